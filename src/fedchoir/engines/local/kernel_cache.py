"""Where compiled kernels of fused layers are kept: in the user's cache folder, by the versions that they depend on."""

import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from fedchoir.version import __version__

VARIABLE = "TRITON_CACHE_DIR"
COMPILED = ("*/*.cubin", "*/*.hsaco")  # one file a kernel and variant, of NVIDIA's and AMD's GPUs


def use_kernel_cache(device: torch.device) -> Path:
    """Let Triton, here and in child processes, keep compiled kernels in `kernel_folder`. A user's own choice stays."""
    folder = os.environ.setdefault(VARIABLE, str(kernel_folder(torch.cuda.get_device_capability(device))))
    return Path(folder)


def kernel_folder(capability: tuple[int, int]) -> Path:
    """Under $FEDCHOIR_CACHE, else ~/.cache/fedchoir. Another version or kind of GPU has another folder."""
    base = Path(os.environ.get("FEDCHOIR_CACHE") or Path.home() / ".cache" / "fedchoir").expanduser()
    try:
        triton = version("triton")
    except PackageNotFoundError:
        triton = "none"
    versions = f"fedchoir-{__version__}-torch-{torch.__version__}-triton-{triton}"
    return base / "kernels" / f"{versions}-sm{capability[0]}{capability[1]}"


def compiled_kernels(folder: Path) -> int:
    """How many compiled kernels a folder holds."""
    return sum(1 for pattern in COMPILED for _ in folder.glob(pattern))
