"""Compiles the kernels ahead of the first step: once per machine, and on all of its cores.

Knows Numba's cache and processes, nothing of what kernels compute. Invariant: child processes only
fill the cache; whatever they could not compile is compiled in this process, where its error shows.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final

from dataservice.runtime.compile_notice import notice
from dataservice.runtime.machine.cores import available_cores
from dataservice.runtime.process.children import exit_with_parent, spawn_module
from pstrain import kernels
from pstrain.errors import DataServiceError

logger = logging.getLogger(__name__)

# Each process takes a quarter of a gigabyte of memory.
_PROCESSES_MAX: Final = 4
_TIMEOUT_S: Final = 300.0


def compile_kernels(
    report: Callable[[str], None] | None = None, modules: Sequence[str] | None = None
) -> None:
    """Compiles those kernels of ``modules`` (None: all) that Numba's cache lacks; blocks.

    Kernels in the cache are not loaded: the first call of each loads it, in milliseconds. With an
    empty cache all kernels take 40 seconds of one core, so call this in one process before
    starting others that share the cache. ``report`` is called with a line for each compiled module.
    """
    left = [name for name in _smallest_first(modules) if not kernels.is_compiled(name)]
    has_shared = False
    while left:
        name = left.pop(0)
        if not kernels.is_compiled(name) and kernels.warm_up(name) and not has_shared:
            missing = [other for other in left if not kernels.is_compiled(other)]
            if report is None and len(missing) > 1:
                notice.tell()
            _fill_cache(missing, min(available_cores(), _PROCESSES_MAX))
            has_shared = True
        if report is not None:
            report(f"compiled {name}")


def prepare_kernels(modules: Sequence[str] | None = None) -> None:
    """Runs :func:`compile_kernels` and loads the smallest module, for a process that calls kernels.

    The first kernel that a process loads takes a tenth of a second, because it loads Numba's
    run-time parts too.
    """
    compile_kernels(modules=modules)
    kernels.warm_up(_smallest_first(modules)[0])


def _smallest_first(modules: Sequence[str] | None) -> list[str]:
    return sorted(modules or kernels.modules(), key=_size_bytes)


def _fill_cache(names: Sequence[str], processes: int) -> None:
    groups = balanced_groups(names, processes)
    if len(groups) < 2:
        return
    deadline_s = time.monotonic() + _TIMEOUT_S
    with ExitStack() as children:
        started = [children.enter_context(spawn_module(__name__, group)) for group in groups]
        for child, group in zip(started, groups, strict=True):
            try:
                failure: object = child.wait(max(0.0, deadline_s - time.monotonic()))
            except DataServiceError as error:
                failure = error
            if failure:
                logger.info("kernels of %s are compiled here: %s", ", ".join(group), failure)


def balanced_groups(names: Sequence[str], count: int) -> list[list[str]]:
    """Splits modules into at most ``count`` non-empty groups of about equal source length."""
    groups: list[list[str]] = [[] for _ in range(min(count, len(names)))]
    lengths = [0] * len(groups)
    for name in sorted(names, key=_size_bytes, reverse=True):
        least = lengths.index(min(lengths))
        groups[least].append(name)
        lengths[least] += _size_bytes(name)
    return groups


def _size_bytes(name: str) -> int:
    """Returns the size of a module's source, to which its compile time is about proportional."""
    (folder,) = kernels.__path__
    return os.path.getsize(os.path.join(folder, f"{name}.py"))


def main(names: Sequence[str]) -> None:
    """Compiles these modules; the entry point of a child process."""
    exit_with_parent()
    for name in names:
        kernels.warm_up(name)


if __name__ == "__main__":
    main(sys.argv[1:])
