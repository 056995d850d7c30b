"""Stand-ins for sbatch, srun, sacct and scontrol: every task of an array is a process of this machine at once.

``write_commands`` puts them into a folder for PATH. State is kept in files: ``ID_TASK.state`` and the submitted script.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

COMMANDS = ("sbatch", "srun", "sacct", "scontrol")


def write_commands(folder: Path) -> None:
    for name in COMMANDS:
        path = folder / name
        path.write_text(f"#!/bin/sh\nexec '{sys.executable}' '{Path(__file__).resolve()}' '{folder}' {name} \"$@\"\n")
        path.chmod(0o755)


def sbatch(folder: Path, script: str) -> None:
    number = 100 + len(list(folder.glob("*.script")))
    text = Path(script).read_text()
    (folder / f"{number}.script").write_text(text)
    if "partition=absent" in text:
        sys.exit("sbatch: error: invalid partition specified: absent")
    array = re.search(r"#SBATCH --array=0-(\d+)", text)
    tasks = [f"{number}_{k}" for k in range(int(array[1]) + 1)] if array else [str(number)]
    for task in tasks:
        start(folder, task)
    print(f"Submitted batch job {number}")


def start(folder: Path, task: str) -> None:
    """A process that executes the task and records how it ends."""
    (folder / f"{task}.state").write_text("PENDING")
    with Path("/dev/null").open("w") as nowhere:
        subprocess.Popen(
            [sys.executable, __file__, str(folder), "supervise", task], stdout=nowhere, stderr=nowhere,
            start_new_session=True,
        )  # fmt: skip


def supervise(folder: Path, task: str) -> None:
    import os

    number, _, index = task.partition("_")
    array = {"SLURM_ARRAY_JOB_ID": number, "SLURM_ARRAY_TASK_ID": index} if index else {}
    (folder / f"{task}.state").write_text("RUNNING")
    process = subprocess.Popen(
        ["bash", str(folder / f"{number}.script")], env={**os.environ, "SLURM_JOB_ID": number, **array}
    )
    code = process.wait()
    if (folder / f"{task}.requeue").exists():
        (folder / f"{task}.requeue").unlink()
        start(folder, task)
    else:
        (folder / f"{task}.state").write_text("COMPLETED" if code == 0 else "FAILED")


def srun(folder: Path, *arguments: str) -> None:
    """Only the command; the options name log files."""
    import os

    at = arguments.index(sys.executable)
    os.execv(arguments[at], list(arguments[at:]))


def sacct(folder: Path, *arguments: str) -> None:
    print("JobID|State|NodeList")
    for path in folder.glob("*.state"):
        print(f"{path.stem}|{path.read_text()}|here")


def scontrol(folder: Path, command: str, task: str) -> None:
    assert command == "requeue"
    (folder / f"{task}.requeue").touch()


if __name__ == "__main__":
    globals()[sys.argv[2]](Path(sys.argv[1]), *sys.argv[3:])
