"""Numba kernels on plain arrays, and how each module of them is compiled.

Knows nothing of what the arrays mean. Invariant: once every module was warmed up, a step over
batches of any size compiles nothing, so that no trainer or server stalls in the middle of its work.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from types import ModuleType

from numba.core.dispatcher import Dispatcher

from dataservice.runtime import kernel_cache
from dataservice.runtime.late_scipy import import_scipy_late

_WARM_UP = "warm_up"

# Before any kernel is made.
kernel_cache.compile_together(__path__[0])
import_scipy_late()


def modules() -> list[str]:
    """Names of the modules that can be warmed up."""
    names = [module.name for module in pkgutil.iter_modules(__path__)]
    return [name for name in names if hasattr(_module(name), _WARM_UP)]


def warm_up(name: str) -> bool:
    """Compiles a module's kernels for the types they are called with, or loads them from the cache.

    Whether any of them was not there. For all modules see ``pstrain.compiling``.
    """
    module = _module(name)
    kernels = [value for value in vars(module).values() if isinstance(value, Dispatcher)]
    before = _compiled(kernels)
    getattr(module, _WARM_UP)()
    # Where Numba is told to compile nothing, there is none.
    if kernels:
        kernel_cache.record_compiled(getattr(module, _WARM_UP))
    return _compiled(kernels) > before


def is_compiled(name: str) -> bool:
    """Whether the cache has all of a module's kernels: each is loaded at its first call."""
    return kernel_cache.is_compiled(getattr(_module(name), _WARM_UP))


def _compiled(kernels: Iterable[Dispatcher]) -> int:
    """How often this process has compiled one of them, as it was not in the cache."""
    return sum(sum(kernel.stats.cache_misses.values()) for kernel in kernels)


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{name}")
