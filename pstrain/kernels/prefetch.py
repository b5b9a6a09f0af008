"""Asks the processor for rows of a slab before they are needed.

A step visits rows of a large table in no order: each visit would wait for memory by itself. Asked
for some visits ahead, they are on their way side by side. Knows nothing of what rows mean.
Invariant: changes no value, and an index outside the slab is harmless.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

ROWS_AHEAD = 16
LINE_BYTES = 64
_FLOAT_BYTES = 4


@intrinsic  # type: ignore[untyped-decorator]
def prefetch(_typing: Any, array: Any, row: Any, offset: Any) -> Any:  # noqa: ARG001
    """Requests the cache line ``offset`` bytes after the start of ``array[row]``, for writing."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        ir = cgutils.ir
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        stride = cgutils.unpack_tuple(builder, view.strides)[0]
        start = builder.bitcast(view.data, ir.IntType(8).as_pointer())
        at = builder.add(builder.mul(arguments[1], stride), arguments[2])
        place = builder.gep(start, [at])
        flag = ir.IntType(32)
        function = builder.module.declare_intrinsic(
            "llvm.prefetch",
            [place.type],
            ir.FunctionType(ir.VoidType(), [place.type, flag, flag, flag]),
        )
        for_writing, keep, is_data = flag(1), flag(3), flag(1)
        builder.call(function, [place, for_writing, keep, is_data])
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp), generate


@njit(nogil=True, cache=True)
def ask_ahead(
    slab: NDArray[np.float32],
    columns: int,
    row_start: int,
    ids: NDArray[Any],
    position: int,
) -> None:
    """Requests the first ``columns`` of the row that is visited ``ROWS_AHEAD`` visits later."""
    ahead = position + ROWS_AHEAD
    if ahead < ids.size:
        row = ids[ahead] - row_start
        for offset in range(0, columns * _FLOAT_BYTES, LINE_BYTES):
            prefetch(slab, row, offset)


@njit(nogil=True, cache=True)
def ask_for(array: NDArray[Any], row: int, size_bytes: int) -> None:
    """Requests the first ``size_bytes`` of ``array[row]``."""
    for offset in range(0, size_bytes, LINE_BYTES):
        prefetch(array, row, offset)


def aligned_empty(shape: tuple[int, int], dtype: str) -> NDArray[Any]:
    """An uninitialised array that begins with a cache line, so that rows straddle fewer."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.empty(size + LINE_BYTES, np.uint8)
    first = -memory.ctypes.data % LINE_BYTES
    return memory[first : first + size].view(dtype).reshape(shape)
