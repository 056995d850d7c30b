"""The devices of a run: one, or several with a process each."""

from collections.abc import Sequence

import torch

from fedchoir.utils.errors import UsageError, WorkerError

NO_MEMORY = ("CUDA error: out of memory", "_STATUS_ALLOC_FAILED")
"""In errors of CUDA and its libraries, which take memory that torch does not allocate."""


def pick_device(name: str, option: str = "--device") -> torch.device:
    """The device of a name; ``auto`` takes a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"{option} {name!r} is not possible: it should be auto, cpu, cuda or cuda:N") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"{option} {name}: torch sees no GPU here; use --device cpu or auto")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(f"{option} {name}: torch sees {torch.cuda.device_count()} GPU here, counted from cuda:0")
    return device


def pick_devices(names: Sequence[str] | None, default: str) -> list[torch.device]:
    """Devices by name, or a number (``("2",)``) of devices of the default's kind; without names, the default alone.

    >>> [len(pick_devices(names, "cpu")) for names in (("cpu", "cpu"), ("3",), None)]
    [2, 3, 1]
    """
    if not names:
        return [pick_device(default)]
    if len(names) > 1 or not names[0].isdecimal():
        return [pick_device(name, "--devices") for name in names]
    kind, count = pick_device(default).type, int(names[0])
    if count < 1:
        raise UsageError(f"--devices {names[0]} is not possible: it should be 1 or more, or names as in cuda:0,cuda:1")
    return [pick_device("cpu" if kind == "cpu" else f"{kind}:{n}", "--devices") for n in range(count)]


def full_gpu(error: Exception, device: torch.device) -> WorkerError | None:
    """The error for a GPU whose memory is full, with what helps, if that is what went wrong."""
    if not isinstance(error, torch.OutOfMemoryError) and not any(words in str(error) for words in NO_MEMORY):
        return None
    full = WorkerError(
        f"the memory of {device} is full; fewer runs at once (--jobs), another GPU (--device) or smaller batches "
        "(--set local_batch, --set public_batch) need less of it"
    )
    full.gpu_full = True
    return full


def describe(devices: Sequence[torch.device]) -> str:
    """The devices in words, for the result of a run."""
    if len(devices) > 1:
        return f"{len(devices)} processes: {', '.join(describe([device]) for device in devices)}"
    (device,) = devices
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device}, {torch.get_num_threads()} threads"  # sums depend on it in their last bits
