"""Execute the notebooks of examples/ as a user does, and read what their cells show."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
CELL_SECONDS = 300  # how long a cell may take on a busy machine
COLORS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class ThisInterpreter(KernelSpecManager):
    """Every kernel is the interpreter that runs the tests, whichever kernels are installed."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=command, display_name=kernel_name, language="python")


@dataclass(frozen=True)
class Executed:
    """A notebook after its execution: source and output of every code cell."""

    cells: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        return "\n".join(output for _, output in self.cells)

    def shown(self, source: str) -> str:
        """The output of the only cell whose source contains ``source``."""
        (output,) = [output for cell, output in self.cells if source in cell]
        return output


def execute(name: str, folder: Path) -> Executed:
    """Execute a notebook in an empty folder. Its temporary files are in ``folder/tmp``. Raises what a cell raises."""
    notebook = nbformat.read(EXAMPLES / name, as_version=4)
    (folder / "tmp").mkdir()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder / "tmp"), "IPYTHONDIR": str(folder)}
    with TemporaryDirectory(prefix="kernel-") as sockets:  # a path of a socket must be short
        kernel = AsyncKernelManager(
            kernel_spec_manager=ThisInterpreter(), transport="ipc", connection_file=str(Path(sockets) / "kernel.json")
        )
        client = NotebookClient(
            notebook, km=kernel, timeout=CELL_SECONDS, interrupt_on_timeout=True,
            resources={"metadata": {"path": str(folder)}},
        )  # fmt: skip
        client.execute(env=environment, cleanup_kc=True)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return Executed(tuple((cell.source, "".join(map(_text, cell.outputs))) for cell in code))


def _text(output: Any) -> str:
    text = output.text if output.output_type == "stream" else output.data.get("text/plain", "")
    return COLORS.sub("", text)


def numbers(line: str) -> list[float]:
    """The cells of a printed table's line that are numbers."""
    return [float(cell) for cell in line.split() if re.fullmatch(r"-?\d+(\.\d+)?", cell)]
