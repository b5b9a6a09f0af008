"""Conversion of float32 arrays to bfloat16, which NumPy stores as uint16, and back.

Knows arrays only. Invariant: values are always rounded to nearest, ties to even, so equal values
give equal bits; widening returns exactly the rounded values.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pstrain import buffers
from pstrain.kernels import bfloat16

Array = NDArray[Any]

STORED_AS: Final = "uint16"


def round_into(out: NDArray[np.uint16], rows: NDArray[np.float32]) -> None:
    """Rounds the first ``width`` columns of ``rows`` into the contiguous ``out`` [n, width]."""
    if rows.shape == out.shape and rows.flags.c_contiguous:
        # The kernel is faster on one long row than on many short ones.
        rows, out = rows.reshape(1, -1), out.reshape(1, -1)
    bfloat16.to_bfloat16(rows, out)


def widen_into(out: NDArray[np.float32], rounded: NDArray[np.uint16]) -> None:
    """Widens ``rounded`` into ``out``; both are contiguous and of the same shape."""
    bfloat16.from_bfloat16(buffers.read_only(rounded).reshape(-1), out.reshape(-1).view(np.uint32))


def widened(rounded: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Returns ``rounded`` as a new float32 array."""
    out = buffers.empty(rounded.shape)
    widen_into(out, rounded)
    return out
