"""How many cores this process may use.

A container may run on all cores of its machine and still get the CPU time of two: when its quota is
used up, the kernel stops all of its threads until the next period. So a process there that starts a
thread per core of the machine is slower than one that starts two. Knows nothing of who starts
threads. Invariant: at least one core; a limit that cannot be read counts as no quota.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterable
from typing import Final

from dataservice.runtime.machine.control_groups import Group, Read, own_groups, text_of

# The variables from which NumPy's arithmetic, torch, Numba's parallel loops and Arrow's decoding
# take their number of threads. Without them, these libraries count the cores, whatever the quota.
_THREADS_OF_LIBRARIES: Final = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)
# The libraries of these variables use OMP_NUM_THREADS if their own variable is not set.
_FOLLOWING_OMP: Final = {"OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"}


def available_cores() -> int:
    """Returns the number of cores this process may use, in a container often fewer than it sees.

    It is the number of cores on which the process may run, limited by its quota of CPU time. The
    quota is read once, at the first call.
    """
    quota = _quota()
    return _runnable() if quota is None else min(_runnable(), quota)


def limit_libraries() -> None:
    """Limits the threads of NumPy, torch, Numba and Arrow to the quota, if there is one.

    For the project's own processes, before these libraries are imported. Variables that the user
    has set are kept.
    """
    cores = available_cores()
    if cores >= _runnable():
        return
    chosen = _FOLLOWING_OMP if os.environ.get("OMP_NUM_THREADS") else set()
    for name in _THREADS_OF_LIBRARIES:
        if name not in chosen:
            os.environ.setdefault(name, str(cores))


def _runnable() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@functools.cache
def _quota() -> int | None:
    return quota_cores(own_groups("cpu"), text_of)


def quota_cores(groups: Iterable[Group], read: Read) -> int | None:
    """Returns the smallest CPU quota of these groups, in whole cores; None if there is none.

    `read` returns the text of a file. A part of a core counts as one.
    """
    quotas = [
        quota
        for folder, is_unified in groups
        if (quota := (_unified_quota if is_unified else _first_quota)(folder, read)) is not None
    ]
    return max(1, math.ceil(min(quotas))) if quotas else None


def _unified_quota(folder: str, read: Read) -> float | None:
    quota, _, period = (read(f"{folder}/cpu.max") or "").partition(" ")
    return _ratio(quota, period or "100000")


def _first_quota(folder: str, read: Read) -> float | None:
    quota = read(f"{folder}/cpu.cfs_quota_us") or ""
    return _ratio(quota, read(f"{folder}/cpu.cfs_period_us") or "")


def _ratio(quota_us: str, period_us: str) -> float | None:
    """Returns quota per period; None for "max", -1, and anything else that is no number."""
    quota, period = quota_us.strip(), period_us.strip()
    if not quota.isdecimal() or not period.isdecimal() or not int(period):
        return None
    return int(quota) / int(period)
