"""Prefetches rows of a slab into the cache before they are needed.

A step visits the rows of a large table in random order, and would wait for memory at each visit.
Requested some visits ahead, the rows arrive in parallel. Knows nothing of what rows mean.
Invariant: changes no value, and an index outside the slab is harmless.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

ROWS_AHEAD = 16
LINE_BYTES = 64
FLOAT_BYTES = 4


def _request(context: Any, builder: Any, kind: Any, array: Any, row: Any, offset: Any) -> None:
    """Emits the instruction that fetches the cache line of an address, for writing."""
    ir = cgutils.ir
    view = context.make_array(kind)(context, builder, array)
    stride = cgutils.unpack_tuple(builder, view.strides)[0]
    start = builder.bitcast(view.data, ir.IntType(8).as_pointer())
    place = builder.gep(start, [builder.add(builder.mul(row, stride), offset)])
    flag = ir.IntType(32)
    function = builder.module.declare_intrinsic(
        "llvm.prefetch",
        [place.type],
        ir.FunctionType(ir.VoidType(), [place.type, flag, flag, flag]),
    )
    for_writing, keep, is_data = flag(1), flag(3), flag(1)
    builder.call(function, [place, for_writing, keep, is_data])


@intrinsic  # type: ignore[untyped-decorator]
def prefetch(_typing: Any, array: Any, row: Any, offset: Any) -> Any:  # noqa: ARG001
    """Requests the cache line ``offset`` bytes after the start of ``array[row]``, for writing."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _request(context, builder, signature.args[0], *arguments)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp), generate


@intrinsic  # type: ignore[untyped-decorator]
def ask_for(_typing: Any, array: Any, row: Any, size_bytes: Any) -> Any:  # noqa: ARG001
    """Requests the first ``size_bytes`` of ``array[row]``.

    This is an intrinsic, because a compiled function with array arguments counts references to
    them, by instructions that make each row wait for the one before.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_, row_, size_ = arguments
        kind, most, line = signature.args[0], 2 * LINE_BYTES, size_.type(LINE_BYTES)
        # Most rows take one or two cache lines, for which a loop would cost more than the requests.
        _request(context, builder, kind, array_, row_, size_.type(0))
        with builder.if_then(builder.icmp_signed(">", size_, line)):
            _request(context, builder, kind, array_, row_, line)
        with (
            builder.if_then(builder.icmp_signed(">", size_, size_.type(most)), likely=False),
            cgutils.for_range_slice(
                builder, size_.type(most), size_, line, size_.type, inc=True
            ) as (at, _),
        ):
            _request(context, builder, kind, array_, row_, at)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp), generate


def aligned_empty(shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """Returns an uninitialised array that begins with a cache line, so that rows cross fewer."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.empty(size + LINE_BYTES, np.uint8)
    first = -memory.ctypes.data % LINE_BYTES
    return memory[first : first + size].view(dtype).reshape(shape)
