"""Child processes that exchange messages with their parent over a socket pair.

A message is a list of byte frames. A child ends when its parent does, even if the parent was killed.
"""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import IO

from fedchoir.utils.errors import WorkerError
from fedchoir.utils.stop_signals import STOPS, ignore_signals

STDERR_LINES = 3  # of a child that died, in the error message


class Channel:
    """One end of a socket pair. It raises `OSError` or `EOFError` once the other end is closed."""

    def __init__(self, descriptor: int) -> None:
        self._connection = Connection(descriptor)

    def send(self, frames: Sequence[bytes]) -> None:
        self._connection.send_bytes(b"%d" % len(frames))
        for frame in frames:
            self._connection.send_bytes(frame)

    def receive(self) -> list[bytes]:
        return [self._connection.recv_bytes() for _ in range(int(self._connection.recv_bytes()))]

    def poll(self, timeout: float | None) -> bool:
        """Wait until there is something to read, at most ``timeout`` seconds."""
        return self._connection.poll(timeout)

    def fileno(self) -> int:
        return self._connection.fileno()

    def close(self) -> None:
        self._connection.close()


class ChildProcess:
    """A child process with the parent's end of its channel.

    Errors call it by its ``name``. `multiprocessing.connection.wait` accepts several of them.
    """

    def __init__(
        self, name: str, descriptor: int, pid: int | None, kill: Callable[[], None], wait: Callable[[], int | None]
    ) -> None:
        self.name = name
        self._channel = Channel(descriptor)
        self._pid, self._kill, self._wait = pid, kill, wait
        self._stderr: deque[str] = deque(maxlen=STDERR_LINES)
        self._forwarder: threading.Thread | None = None

    @classmethod
    def spawn(cls, name: str, module: str, environment: Mapping[str, str] | None = None) -> ChildProcess:
        """Start ``python -m module``, which calls `parent_channel`. What it writes to stderr appears on ours."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                pass_fds=[theirs.fileno()],
                env={**os.environ, **(environment or {})},
            )
        child = cls(name, ours.detach(), process.pid, process.kill, process.wait)
        child._forwarder = threading.Thread(target=child._forward, args=(process.stderr,), daemon=True)
        child._forwarder.start()
        return child

    @classmethod
    def fork(cls, name: str, work: Callable[[Channel], None]) -> ChildProcess:
        """Call ``work`` with the child's end of the channel in a copy of this process, which then ends."""
        ours, theirs = socket.socketpair()

        def run() -> None:
            ours.close()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            work(_child_channel(theirs.detach()))

        process = multiprocessing.get_context("fork").Process(target=run, daemon=True)
        process.start()
        theirs.close()

        def wait() -> int | None:
            process.join()
            return process.exitcode

        return cls(name, ours.detach(), process.pid, process.kill, wait)

    def send(self, frames: Sequence[bytes]) -> None:
        """Raises `WorkerError` if the child has died."""
        try:
            self._channel.send(frames)
        except OSError:
            raise self._died() from None

    def receive(self, timeout: float | None = None) -> list[bytes]:
        """The next message. Raises `WorkerError` if the child has died and `TimeoutError` after ``timeout`` seconds."""
        try:
            if self._channel.poll(timeout):
                return self._channel.receive()
        except (EOFError, OSError):
            raise self._died() from None
        raise TimeoutError(f"{self.name} did not answer within {timeout:g} s")

    def fileno(self) -> int:
        return self._channel.fileno()

    def ask_to_stop(self) -> None:
        """Send SIGUSR1. The child must not have been waited for."""
        assert self._pid is not None
        os.kill(self._pid, signal.SIGUSR1)

    def kill(self) -> None:
        self._kill()

    def close(self) -> None:
        """Kill the child, if it still runs, and wait for its end."""
        self.kill()
        self._wait()
        if self._forwarder is not None:
            self._forwarder.join(1.0)
        self._channel.close()

    def _forward(self, stderr: IO[str]) -> None:
        with stderr:
            for line in stderr:
                sys.stderr.write(line)
                if line.strip():
                    self._stderr.append(line.strip())

    def _died(self) -> WorkerError:
        code = self._wait() or 0
        if self._forwarder is not None:
            self._forwarder.join(1.0)  # its last lines may still be in the pipe
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        error = WorkerError(": ".join([f"{self.name} {how}", *filter(None, [" | ".join(self._stderr)])]))
        error.signal = -code if code < 0 else None
        return error


def parent_channel(heeded: signal.Signals | None = None) -> Channel:
    """The channel to the parent, in a process that `ChildProcess.spawn` started. Of the signals that stop a process,
    this one alone is ``heeded``: the others reach the parent too, which asks its children or ends them."""
    ignore_signals(*(number for number in STOPS if number != heeded))
    return _child_channel(int(sys.argv[1]))


def _child_channel(descriptor: int) -> Channel:
    ignore_signals(signal.SIGINT)  # Ctrl-C reaches the parent too, and the parent ends its children
    threading.Thread(target=_exit_with_parent, args=(descriptor,), daemon=True).start()
    return Channel(descriptor)


def _exit_with_parent(descriptor: int) -> None:
    """Wait until the other end is closed: the parent is gone."""
    poll = select.poll()
    poll.register(descriptor, 0)  # a hang-up is always reported
    poll.poll()
    os._exit(1)
