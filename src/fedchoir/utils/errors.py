"""Errors that a user can correct: one line names what is wrong and what would be right."""


class UsageError(ValueError):
    """A setting, file or argument is wrong. The command line prints the message and exits with code 2."""


class StorageError(RuntimeError):
    """The disk did not take a checkpoint. The one before is intact and the run can be resumed."""


class WorkerError(RuntimeError):
    """A process of the run died or failed. The last checkpoint is intact and the run can be resumed."""


class QuorumError(RuntimeError):
    """Too few clients answered an exchange. The last checkpoint is intact and the run can be resumed."""
