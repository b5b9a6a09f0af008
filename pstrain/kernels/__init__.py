"""Numba kernels on plain arrays, and the compilation of each module of kernels.

Knows nothing of what the arrays mean. Invariant: once every module has been warmed up, a step over
batches of any size compiles nothing, so that no trainer or server stalls in the middle of its work.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from types import ModuleType

from numba.core.dispatcher import Dispatcher

from dataservice.runtime import kernel_cache

_WARM_UP = "warm_up"

kernel_cache.configure_numba(__path__[0])


def modules() -> list[str]:
    """Returns the names of the modules that can be warmed up."""
    names = [module.name for module in pkgutil.iter_modules(__path__)]
    return [name for name in names if hasattr(_module(name), _WARM_UP)]


def warm_up(name: str) -> bool:
    """Compiles a module's kernels for the types they are called with, or loads them from the cache.

    Returns True if any of them was not in the cache. For all modules see ``pstrain.compiling``.
    """
    module = _module(name)
    kernels = [value for value in vars(module).values() if isinstance(value, Dispatcher)]
    before = _compiled(kernels)
    getattr(module, _WARM_UP)()
    # There are no kernels if Numba's compiler is switched off.
    if kernels:
        kernel_cache.record_compiled(getattr(module, _WARM_UP))
    return _compiled(kernels) > before


def is_compiled(name: str) -> bool:
    """True if the cache has all of a module's kernels, so that their first calls only load them."""
    return kernel_cache.is_compiled(getattr(_module(name), _WARM_UP))


def _compiled(kernels: Iterable[Dispatcher]) -> int:
    """Returns how often this process had to compile one of ``kernels`` for lack of a cached one."""
    return sum(sum(kernel.stats.cache_misses.values()) for kernel in kernels)


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{name}")
