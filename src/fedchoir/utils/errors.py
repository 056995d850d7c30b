"""Errors that a user can correct: one line names what is wrong and what would be right."""


class UsageError(ValueError):
    """A setting, file or argument is wrong. The command line prints the message and exits with code 2."""


class StorageError(RuntimeError):
    """The disk did not take a checkpoint. The one before is intact and the run can be resumed."""


class Interrupted(KeyboardInterrupt):
    """A run was stopped with Ctrl-C. It can be resumed."""

    code = 130  # of the process
    saved: str = ""  # what is in its checkpoint, and where


class Terminated(Interrupted):
    """A run was stopped with another signal, such as SIGTERM. It can be resumed."""

    code = 143


class WorkerError(RuntimeError):
    """A process of the run died or failed. The last checkpoint is intact and the run can be resumed."""

    signal: int | None = None  # that killed the process
    gpu_full = False  # it found no free memory on its GPU


class QuorumError(RuntimeError):
    """Too few clients answered an exchange. The last checkpoint is intact and the run can be resumed."""
