"""The server's record of which clients did not reply to each message.

Sites answer every exchange once. A server that resumes sends the messages since its checkpoint again, and sites send
their stored replies. This works only if the messages are the same, so a client that was not in an aggregate before the
interruption must not be in it afterwards.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path


class ReplyJournal:
    """Lines of JSON, one per message of a run. Without a path nothing is stored."""

    def __init__(self, path: Path | None, run: str) -> None:
        self._path, self._run = path, run
        self._failures: dict[int, dict[int, str]] = {}
        for line in path.read_text().splitlines() if path is not None and path.exists() else ():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                break  # a line cut off by a crash: no later message was sent
            if entry["run"] == run:
                self._failures[entry["serial"]] = {int(k): why for k, why in entry["failed"].items()}

    def failures(self, serial: int) -> dict[int, str]:
        """Why clients did not reply to this message before the interruption; empty if it was not sent before."""
        return self._failures.get(serial, {})

    def record(self, serial: int, failed: Mapping[int, str]) -> None:
        """Record the outcome of a message before the next one is sent."""
        if self._path is None or serial in self._failures:
            return
        self._failures[serial] = dict(failed)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps({"run": self._run, "serial": serial, "failed": failed}) + "\n")
            file.flush()
            os.fsync(file.fileno())
