"""Keeps Numba from importing SciPy before a function asks for linear algebra.

Before its first kernel Numba imports `scipy.linalg`, where SciPy is installed, only to know that it
is there: a quarter of the time that a server takes to start. Knows no kernels. Invariant: functions
that do use linear algebra are compiled as ever, by Numba's own check.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import Any


def import_scipy_late() -> None:
    """To be called before the first kernel is compiled or loaded; later it does nothing."""
    if "numba.np.arraymath" in sys.modules:
        return
    from numba.np import linalg as module

    linalg: Any = module
    # Numba has no public way to say this; where its own is gone, it imports what it likes.
    if not hasattr(linalg, "ensure_blas"):
        return
    ensure_blas = linalg.ensure_blas
    linalg.ensure_blas = _ensure_installed
    try:
        from numba.np import arraymath  # noqa: F401
    finally:
        linalg.ensure_blas = ensure_blas


def _ensure_installed() -> None:
    if importlib.util.find_spec("scipy") is None:
        raise ImportError("SciPy is not installed")
