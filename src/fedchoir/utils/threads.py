"""The cores of this machine, and the share of each of several processes."""

import os


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_for(processes: int) -> int:
    """Threads for each of several processes; a smaller OMP_NUM_THREADS that the user set is kept."""
    share = max(1, cores() // processes)
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return min(share, int(wanted)) if wanted.isdecimal() and int(wanted) else share
