"""Eight float32 numbers that one instruction works on: sums that stay in registers.

A compiler turns simple loops into vector instructions by itself, but keeps the sums of a small
matrix product in memory; with these it does not. Works on every processor: where registers are
narrower, LLVM uses several. Rows of an array are contiguous; the lanes of a vector are
``array[row, column : column + LANES]``. Invariant: knows no model; nothing is checked, so whoever
uses it stays inside of the arrays.
"""

from __future__ import annotations

from typing import Any

from numba.core import cgutils, types
from numba.extending import intrinsic, models, register_model

LANES = 8
_FLOAT_BYTES = 4


class _Vector(types.Type):
    """Numba's name for ``LANES`` float32 numbers."""

    def __init__(self) -> None:
        super().__init__(name=f"float32x{LANES}")


_vector = _Vector()


def _llvm_type() -> Any:
    return cgutils.ir.VectorType(cgutils.ir.FloatType(), LANES)


@register_model(_Vector)
class _VectorModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _llvm_type())


def _address(context: Any, builder: Any, kind: Any, array: Any, row: Any, column: Any) -> Any:
    """Where ``array[row, column]`` lies."""
    view = context.make_array(kind)(context, builder, array)
    stride = cgutils.unpack_tuple(builder, view.strides)[0]
    start = builder.bitcast(view.data, cgutils.ir.IntType(8).as_pointer())
    size = cgutils.ir.Constant(column.type, _FLOAT_BYTES)
    at = builder.add(builder.mul(row, stride), builder.mul(column, size))
    return builder.gep(start, [at])


@intrinsic  # type: ignore[untyped-decorator]
def zeros(_typing: Any) -> Any:
    """LANES times 0."""

    def generate(_context: Any, _builder: Any, _signature: Any, _arguments: Any) -> Any:
        return cgutils.ir.Constant(_llvm_type(), None)

    return _vector(), generate


@intrinsic  # type: ignore[untyped-decorator]
def load(_typing: Any, array: Any, row: Any, column: Any) -> Any:  # noqa: ARG001
    """``array[row, column : column + LANES]``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        at = _address(context, builder, signature.args[0], *arguments)
        place = builder.bitcast(at, _llvm_type().as_pointer())
        return builder.load(place, align=_FLOAT_BYTES)

    return _vector(array, types.intp, types.intp), generate


@intrinsic  # type: ignore[untyped-decorator]
def store(_typing: Any, array: Any, row: Any, column: Any, values: Any) -> Any:  # noqa: ARG001
    """Sets ``array[row, column : column + LANES]``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        at = _address(context, builder, signature.args[0], *arguments[:3])
        place = builder.bitcast(at, _llvm_type().as_pointer())
        builder.store(arguments[3], place, align=_FLOAT_BYTES)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, _vector), generate


@intrinsic  # type: ignore[untyped-decorator]
def spread(_typing: Any, array: Any, row: Any, column: Any) -> Any:  # noqa: ARG001
    """``array[row, column]`` in every lane."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        ir = cgutils.ir
        at = _address(context, builder, signature.args[0], *arguments)
        number = builder.load(builder.bitcast(at, ir.FloatType().as_pointer()))
        lanes = ir.Constant(_llvm_type(), ir.Undefined)
        first = builder.insert_element(lanes, number, ir.IntType(32)(0))
        same = ir.Constant(ir.VectorType(ir.IntType(32), LANES), None)
        return builder.shuffle_vector(first, lanes, same)

    return _vector(array, types.intp, types.intp), generate


@intrinsic  # type: ignore[untyped-decorator]
def plus(_typing: Any, first: Any, second: Any) -> Any:  # noqa: ARG001
    """The sums, lane by lane."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.fadd(*arguments)

    return _vector(_vector, _vector), generate


@intrinsic  # type: ignore[untyped-decorator]
def plus_product(_typing: Any, total: Any, first: Any, second: Any) -> Any:  # noqa: ARG001
    """``total + first * second``, rounded once where the processor can."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        ir = cgutils.ir
        kind = _llvm_type()
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(kind, [kind] * 3), f"llvm.fmuladd.v{LANES}f32"
        )
        total, first, second = arguments
        return builder.call(function, [first, second, total])

    return _vector(_vector, _vector, _vector), generate


@intrinsic  # type: ignore[untyped-decorator]
def positive_part(_typing: Any, values: Any) -> Any:  # noqa: ARG001
    """max(value, 0) lane by lane; NaN stays NaN."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        nothing = cgutils.ir.Constant(_llvm_type(), None)
        below = builder.fcmp_ordered("<", arguments[0], nothing)
        return builder.select(below, nothing, arguments[0])

    return _vector(_vector), generate
