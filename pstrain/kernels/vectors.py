"""SIMD vectors of eight or sixteen float32 numbers for kernels, so that sums stay in registers.

A compiler vectorises simple loops by itself, but it keeps the sums of a small matrix product in
memory, and does not vectorise a loop as short as a row of a table. Explicit vectors avoid both.
They work on every processor: if its registers are narrower, LLVM uses several. Vectors of one size
support ``+ - * /``. Rows of an array must be contiguous; the lanes of a vector are
``array[row, column : column + lanes]``. Knows no model. Nothing is checked, so callers must stay
inside of the arrays.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from numba import njit
from numba.core import cgutils, config, types
from numba.core.codegen import get_host_cpu_features
from numba.extending import intrinsic, models, overload, register_model

from pstrain.kernels.prefetch import FLOAT_BYTES

LANES = 8
WIDE_LANES = 16
TWO_LANES = 2 * WIDE_LANES
FOUR_LANES = 4 * WIDE_LANES
_HALF_BITS = 16


def _has_wide_registers() -> bool:
    features = get_host_cpu_features() if config.CPU_FEATURES is None else config.CPU_FEATURES
    return "+avx512f" in features.split(",")


WIDE_REGISTERS = _has_wide_registers()
"""True if one register holds a wide vector, so that a kernel may keep many of them."""


class _Vector(types.Type):
    """Numba's type of a vector of ``lanes`` float32 numbers."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        super().__init__(name=f"float32x{lanes}")


_vector = _Vector(LANES)
_wide_vector = _Vector(WIDE_LANES)


def _llvm_type(kind: _Vector) -> Any:
    return cgutils.ir.VectorType(cgutils.ir.FloatType(), kind.lanes)


@register_model(_Vector)
class _VectorModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _llvm_type(kind))


def _address(context: Any, builder: Any, kind: Any, array: Any, row: Any, column: Any) -> Any:
    """Returns the address of ``array[row, column]``."""
    view = context.make_array(kind)(context, builder, array)
    stride = cgutils.unpack_tuple(builder, view.strides)[0]
    start = builder.bitcast(view.data, cgutils.ir.IntType(8).as_pointer())
    size = cgutils.ir.Constant(column.type, kind.dtype.bitwidth // 8)
    at = builder.add(builder.mul(row, stride), builder.mul(column, size))
    return builder.gep(start, [at])


def _same(builder: Any, kind: _Vector, number: Any) -> Any:
    """Returns a vector with ``number`` in every lane."""
    ir = cgutils.ir
    lanes = ir.Constant(_llvm_type(kind), ir.Undefined)
    first = builder.insert_element(lanes, number, ir.IntType(32)(0))
    zero = ir.Constant(ir.VectorType(ir.IntType(32), kind.lanes), None)
    return builder.shuffle_vector(first, lanes, zero)


def _zeros_of(kind: _Vector) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def zeros(_typing: Any) -> Any:
        def generate(_context: Any, _builder: Any, _signature: Any, _arguments: Any) -> Any:
            return cgutils.ir.Constant(_llvm_type(kind), None)

        return kind(), generate

    return zeros


def _load_of(kind: _Vector) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def load(_typing: Any, array: Any, row: Any, column: Any) -> Any:  # noqa: ARG001
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            at = _address(context, builder, signature.args[0], *arguments)
            place = builder.bitcast(at, _llvm_type(kind).as_pointer())
            return builder.load(place, align=FLOAT_BYTES)

        return kind(array, types.intp, types.intp), generate

    return load


def _load_broadcast_of(kind: _Vector) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def load_broadcast(_typing: Any, array: Any, row: Any, column: Any) -> Any:  # noqa: ARG001
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            at = _address(context, builder, signature.args[0], *arguments)
            number = builder.load(builder.bitcast(at, cgutils.ir.FloatType().as_pointer()))
            return _same(builder, kind, number)

        return kind(array, types.intp, types.intp), generate

    return load_broadcast


def _broadcast_of(kind: _Vector) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def broadcast(_typing: Any, number: Any) -> Any:  # noqa: ARG001
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return _same(builder, kind, arguments[0])

        return kind(types.float32), generate

    return broadcast


zeros = _zeros_of(_vector)
"""``zeros()``: a vector of ``LANES`` zeros."""
zeros_wide = _zeros_of(_wide_vector)
load = _load_of(_vector)
"""``load(array, row, column)``: ``array[row, column : column + LANES]``."""
load_wide = _load_of(_wide_vector)
load_broadcast = _load_broadcast_of(_vector)
"""``load_broadcast(array, row, column)``: ``array[row, column]`` in every lane."""
load_broadcast_wide = _load_broadcast_of(_wide_vector)
broadcast = _broadcast_of(_vector)
"""``broadcast(number)``: a float32 number in every lane."""
broadcast_wide = _broadcast_of(_wide_vector)


@intrinsic  # type: ignore[untyped-decorator]
def store(_typing: Any, array: Any, row: Any, column: Any, values: Any) -> Any:  # noqa: ARG001
    """Stores the lanes of ``values`` in ``array[row, column:]``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        at = _address(context, builder, signature.args[0], *arguments[:3])
        place = builder.bitcast(at, _llvm_type(values).as_pointer())
        builder.store(arguments[3], place, align=FLOAT_BYTES)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, values), generate


@intrinsic  # type: ignore[untyped-decorator]
def store_bfloat16(_typing: Any, array: Any, row: Any, column: Any, values: Any) -> Any:  # noqa: ARG001
    """Stores a vector or a number as bfloat16 in uint16: the upper halves of the bits.

    Rounds to nearest, ties to even. NaN stays NaN.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        at = _address(context, builder, signature.args[0], *arguments[:3])
        halves = _upper_halves(builder, values, arguments[3])
        place = builder.bitcast(at, halves.type.as_pointer())
        builder.store(halves, place, align=_HALF_BITS // 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, values), generate


def _upper_halves(builder: Any, kind: Any, values: Any) -> Any:
    """Returns the rounded upper halves as integers.

    Adding just under half of the range that is cut off carries if the number has to be rounded up.
    """
    ir = cgutils.ir

    def integers(bits: int) -> Any:
        one = ir.IntType(bits)
        return ir.VectorType(one, kind.lanes) if isinstance(kind, _Vector) else one

    def every_lane(number: int) -> Any:
        lanes = [number] * kind.lanes if isinstance(kind, _Vector) else number
        return ir.Constant(integers(32), lanes)

    half = every_lane(_HALF_BITS)
    bits = builder.bitcast(values, integers(32))
    is_odd = builder.and_(builder.lshr(bits, half), every_lane(1))
    rounded = builder.add(bits, builder.add(is_odd, every_lane(0x7FFF)))
    # The carry would turn some NaNs into infinity or zero; this bit makes any NaN a quiet NaN.
    quiet = builder.or_(bits, every_lane(0x00400000))
    kept = builder.select(builder.fcmp_unordered("uno", values, values), quiet, rounded)
    return builder.trunc(builder.lshr(kept, half), integers(_HALF_BITS))


def _lane_by_lane(instruction: str) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def compute(_typing: Any, first: Any, second: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return getattr(builder, instruction)(*arguments)

        return first(first, second), generate

    return compute


plus = _lane_by_lane("fadd")
"""``plus(first, second)``: the sums of two vectors, lane by lane."""


def _define(symbol: Any, instruction: str) -> None:
    """Overloads the operator ``symbol`` for two vectors of one size."""
    compute = _lane_by_lane(instruction)

    @overload(symbol)  # type: ignore[untyped-decorator]
    def for_vectors(first: Any, second: Any) -> Any:
        def computed(first: Any, second: Any) -> Any:
            return compute(first, second)

        return computed if isinstance(first, _Vector) and first == second else None


_define(operator.add, "fadd")
_define(operator.sub, "fsub")
_define(operator.mul, "fmul")
_define(operator.truediv, "fdiv")


@intrinsic  # type: ignore[untyped-decorator]
def plus_product(_typing: Any, total: Any, first: Any, second: Any) -> Any:
    """Returns ``total + first * second``, rounded only once if the processor can do that."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        kind = _llvm_type(total)
        name = f"llvm.fmuladd.v{total.lanes}f32"
        function = cgutils.get_or_insert_function(
            builder.module, cgutils.ir.FunctionType(kind, [kind] * 3), name
        )
        return builder.call(function, [arguments[1], arguments[2], arguments[0]])

    return total(total, first, second), generate


@intrinsic  # type: ignore[untyped-decorator]
def positive_part(_typing: Any, values: Any) -> Any:
    """Returns max(value, 0), lane by lane; NaN stays NaN."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        nothing = cgutils.ir.Constant(_llvm_type(values), None)
        below = builder.fcmp_ordered("<", arguments[0], nothing)
        return builder.select(below, nothing, arguments[0])

    return values(values), generate


@intrinsic  # type: ignore[untyped-decorator]
def _sqrt_of_lanes(_typing: Any, values: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        kind = _llvm_type(values)
        function = cgutils.get_or_insert_function(
            builder.module,
            cgutils.ir.FunctionType(kind, [kind]),
            f"llvm.sqrt.v{values.lanes}f32",
        )
        return builder.call(function, arguments)

    return values(values), generate


def sqrt(value: Any) -> Any:
    """Returns the square root of a number, or of each lane of a vector."""
    return np.sqrt(value)


@overload(sqrt)  # type: ignore[untyped-decorator]
def _sqrt(value: Any) -> Any:
    def of_vector(value: Any) -> Any:
        return _sqrt_of_lanes(value)

    def of_number(value: Any) -> Any:
        return np.sqrt(value)

    return of_vector if isinstance(value, _Vector) else of_number


@njit(nogil=True, cache=True)
def load_two(array: Any, row: int, column: int) -> Any:
    """Loads two adjacent wide vectors, ``TWO_LANES`` numbers."""
    return load_wide(array, row, column), load_wide(array, row, column + WIDE_LANES)


@njit(nogil=True, cache=True)
def store_two(out: Any, row: int, column: int, a: Any, b: Any) -> None:
    """Stores two adjacent wide vectors, as :func:`load_two` loads them."""
    store(out, row, column, a)
    store(out, row, column + WIDE_LANES, b)


@njit(nogil=True, cache=True)
def load_four(array: Any, row: int, column: int) -> Any:
    """Loads four adjacent wide vectors, ``FOUR_LANES`` numbers."""
    return (
        load_wide(array, row, column),
        load_wide(array, row, column + WIDE_LANES),
        load_wide(array, row, column + 2 * WIDE_LANES),
        load_wide(array, row, column + 3 * WIDE_LANES),
    )


@njit(nogil=True, cache=True)
def store_four(out: Any, row: int, column: int, a: Any, b: Any, c: Any, d: Any) -> None:
    """Stores four adjacent wide vectors, as :func:`load_four` loads them."""
    store(out, row, column, a)
    store(out, row, column + WIDE_LANES, b)
    store(out, row, column + 2 * WIDE_LANES, c)
    store(out, row, column + 3 * WIDE_LANES, d)
