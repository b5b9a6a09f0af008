"""Numba kernels on plain arrays, and their compilation ahead of the first step.

Knows nothing of what the arrays mean. Invariant: after :func:`warm_up` a step over batches of any
size compiles nothing, so that no trainer or server stalls in the middle of its work.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable

from pstrain.kernel_cache import compile_together

_WARM_UP = "warm_up"

# Before any kernel is made.
compile_together(__path__[0])


def warm_up(report: Callable[[str], None] | None = None) -> None:
    """Compiles every kernel for the types it is called with, or loads it from Numba's cache.

    Ten seconds the first time on a machine, half a second afterwards; run it in one process
    before starting others that share the cache. ``report`` is told each module as it is done.
    """
    for module in pkgutil.iter_modules(__path__):
        kernels = importlib.import_module(f"{__name__}.{module.name}")
        compile_all: Callable[[], None] | None = getattr(kernels, _WARM_UP, None)
        if compile_all is not None:
            compile_all()
            if report is not None:
                report(f"compiled {module.name}")
