"""How many cores this process may use.

A container may run on all cores of its machine and still get the time of two: the kernel stops
whoever has used up its quota, with all threads, until the next period. So a process that starts a
thread per core of the machine there is slower than one that starts two. Knows Linux's files of
control groups, and nothing of who starts threads. Invariant: at least one core; where the files
are missing or say nothing that can be read, there is no quota.
"""

from __future__ import annotations

import functools
import math
import os
import posixpath
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

__all__ = ["available_cores", "limit_libraries", "quota_cores"]

# What NumPy's arithmetic, torch, Numba's parallel loops and Arrow's decoding take their number
# of threads from; without them they count the cores, whatever the quota.
_THREADS_OF_LIBRARIES: Final = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)


class _Mount(NamedTuple):
    kind: str
    options: frozenset[str]
    root: str
    point: str


def available_cores() -> int:
    """Cores this process may use, which in a container are fewer than the machine has.

    Those it may run on, at most as many as its quota of CPU time, as it was when first asked.
    """
    quota = _quota()
    return _runnable() if quota is None else min(_runnable(), quota)


def limit_libraries() -> None:
    """Under a quota, NumPy, torch, Numba and Arrow start no more threads than that allows.

    For processes of our own, before those are imported; a number that the user chose stays.
    """
    cores = available_cores()
    if cores < _runnable():
        for name in _THREADS_OF_LIBRARIES:
            os.environ.setdefault(name, str(cores))


def _runnable() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@functools.cache
def _quota() -> int | None:
    memberships, mounts = _text("/proc/self/cgroup"), _text("/proc/self/mountinfo")
    return quota_cores(memberships or "", mounts or "", _text)


def _text(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None


def quota_cores(memberships: str, mounts: str, read: Callable[[str], str | None]) -> int | None:
    """The smallest CPU quota of a process' control groups and all above them, in whole cores.

    Of the text of its `cgroup` and `mountinfo` files; `read` gives that of any other, or None. A
    part of a core counts as one. None where there is no quota.
    """
    quotas = [
        quota
        for folder, quota_of in _groups(memberships, mounts)
        if (quota := quota_of(folder, read)) is not None
    ]
    return max(1, math.ceil(min(quotas))) if quotas else None


_QuotaOf = Callable[[str, Callable[[str], str | None]], float | None]


def _groups(memberships: str, mounts: str) -> Iterator[tuple[str, _QuotaOf]]:
    """The folders of the groups that limit CPU time, and how their quota is read."""
    mounted = [mount for line in mounts.splitlines() if (mount := _mount(line)) is not None]
    for line in memberships.splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        unified = hierarchy == "0" and not controllers
        if not unified and "cpu" not in controllers.split(","):
            continue
        for mount in mounted:
            if mount.kind == "cgroup2" if unified else "cpu" in mount.options:
                quota_of = _unified_quota if unified else _first_quota
                yield from ((folder, quota_of) for folder in _folders(path, mount))


def _mount(line: str) -> _Mount | None:
    """A line of `mountinfo` that mounts control groups."""
    place, separator, filesystem = line.partition(" - ")
    fields, kinds = place.split(), filesystem.split()
    if not separator or len(fields) < 5 or len(kinds) < 3 or not kinds[0].startswith("cgroup"):
        return None
    options = frozenset(kinds[2].split(",")) if kinds[0] == "cgroup" else frozenset()
    return _Mount(kinds[0], options, fields[3], fields[4])


def _folders(path: str, mount: _Mount) -> Iterator[str]:
    """From the group itself up to the highest that can be seen.

    In a container the mount shows a part of the tree, and the path may lead out of it: then what
    is mounted is the container's own group.
    """
    inside = posixpath.relpath(path, mount.root)
    parts = [] if inside == "." or inside.startswith("..") else inside.split("/")
    for depth in range(len(parts), -1, -1):
        yield posixpath.join(mount.point, *parts[:depth])


def _unified_quota(folder: str, read: Callable[[str], str | None]) -> float | None:
    quota, _, period = (read(f"{folder}/cpu.max") or "").partition(" ")
    return _ratio(quota, period or "100000")


def _first_quota(folder: str, read: Callable[[str], str | None]) -> float | None:
    quota = read(f"{folder}/cpu.cfs_quota_us") or ""
    return _ratio(quota, read(f"{folder}/cpu.cfs_period_us") or "")


def _ratio(quota_us: str, period_us: str) -> float | None:
    """None for "max", -1, and what is no number."""
    quota, period = quota_us.strip(), period_us.strip()
    if not quota.isdecimal() or not period.isdecimal() or not int(period):
        return None
    return int(quota) / int(period)
