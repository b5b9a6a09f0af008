"""float32 arrays as bfloat16, which is uint16 to NumPy, and back.

Knows arrays only. Invariant: rounding is to nearest, ties to even, wherever it is done, so the same
values give the same bits; what is widened is what was rounded.
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
    """As many columns of ``rows`` as ``out`` [n, width] has; ``out`` is contiguous."""
    if rows.shape == out.shape and rows.flags.c_contiguous:
        # Rows of a few numbers are one long one.
        rows, out = rows.reshape(1, -1), out.reshape(1, -1)
    bfloat16.to_bfloat16(rows, out)


def widen_into(out: NDArray[np.float32], rounded: NDArray[np.uint16]) -> None:
    """Both contiguous, of one shape."""
    bfloat16.from_bfloat16(buffers.read_only(rounded).reshape(-1), out.reshape(-1).view(np.uint32))


def widened(rounded: NDArray[np.uint16]) -> NDArray[np.float32]:
    """A new array."""
    out = buffers.empty(rounded.shape)
    widen_into(out, rounded)
    return out
