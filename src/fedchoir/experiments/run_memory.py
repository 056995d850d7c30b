"""What a run of a sweep needs of this machine's memory, measured by the process that executes it."""

import os

import torch

from fedchoir.experiments.config import Experiment
from fedchoir.experiments.placement import HOST
from fedchoir.utils.devices import pick_devices
from fedchoir.utils.memory import forget_peak, gpu_memory, peak_host_memory

CONTEXT = 700 * 2**20  # bytes of CUDA and its libraries in a process, which torch does not count


class RunMemory:
    """The most that this process needed since the last run in it ended."""

    def __init__(self) -> None:
        forget_peak()
        if torch.cuda.is_initialized():
            for number in range(torch.cuda.device_count()):
                torch.cuda.reset_peak_memory_stats(number)

    def peak(self, experiment: Experiment) -> dict[str, int]:
        """Bytes by place, as in `fedchoir.experiments.placement`. Of engine processes on GPUs only the number is known
        here, so they count as if they filled their GPUs: such a run starts on GPUs that no other run uses."""
        devices = pick_devices(experiment.devices, experiment.device)
        gpus = {gpu_name(device.index or 0): device.index or 0 for device in devices if device.type == "cuda"}
        alone = len(devices) == 1
        used = {
            name: torch.cuda.max_memory_reserved(number) + CONTEXT if alone else gpu_memory(name)[1]
            for name, number in gpus.items()
        }
        return {HOST: peak_host_memory(), **used}


def gpu_name(number: int) -> str:
    """The name that NVIDIA gives to a GPU, or to a part of one (MIG) that was made visible by its name."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if number < len(visible) and visible[number].startswith("MIG-"):
        return visible[number]
    return f"GPU-{torch.cuda.get_device_properties(number).uuid}"
