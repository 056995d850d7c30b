"""Cores, shared out among the processes of a machine."""

from __future__ import annotations

import os


def threads_for(processes: int) -> int:
    """Cores for each of several processes; a smaller OMP_NUM_THREADS of the user's is kept."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = max(1, cores // processes)
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return min(share, int(wanted)) if wanted.isdecimal() and int(wanted) else share
