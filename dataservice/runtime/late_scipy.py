"""Keeps Numba from importing SciPy before a function asks for linear algebra.

Before its first kernel Numba imports `scipy.linalg`, if SciPy is installed, only to find out that
it is there. That takes a quarter of a server's start. Knows no kernels. Invariant: functions that
do use linear algebra are compiled as usual, with Numba's own check.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import Any


def import_scipy_late() -> None:
    """Postpones Numba's import of SciPy; has no effect once a kernel was compiled or loaded."""
    if "numba.np.arraymath" in sys.modules:
        return
    from numba.np import linalg as module

    linalg: Any = module
    # Numba has no public way to do this. If its internal function is gone, SciPy is just imported.
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
