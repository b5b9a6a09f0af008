"""The operator that makes the lists of each batch equally long.

Invariant: a padded column keeps its type whatever the length of its lists, so that all batches have
one schema; a mark on the field says that its lists are equally long, so that a NumPy reader gets a
2-D array.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dataservice.dataset.arrow_arrays import PLAIN
from dataservice.dataset.columns import require_columns
from dataservice.dataset.node import register_node
from dataservice.dataset.numpy_views import PADDED
from dataservice.dataset.operators.base import RowOperator
from dataservice.dataset.stream import RunContext, Transform
from dataservice.errors import InvalidArgumentError, InvalidTypeError, SchemaError
from dataservice.runtime.arguments import integer_at_least

# By column: a length, None for the longest list of the batch, () for a column without lists.
Shapes: TypeAlias = Mapping[str, "int | tuple[()] | None"]
# The values to pad with, by column, or one for all columns of lists.
Padding: TypeAlias = "Mapping[str, bool | int | float | str] | bool | int | float | str"

_DTYPES: Final = {kind: dtype for dtype, kind in PLAIN.items()}


@register_node
@dataclasses.dataclass(frozen=True, eq=False)
class Pad(RowOperator):
    """Pads list columns to the longest list of the batch, or to the length that `shapes` gives.

    Columns without a value in `values` are padded with 0, "" or False.
    """

    kind: ClassVar[str] = "pad"
    shapes: Shapes | None = None
    values: Padding | None = None

    def __post_init__(self) -> None:
        if not self.input.batched:
            raise InvalidArgumentError("padding takes batches; use padded_batch(n)")
        if self.shapes is not None:
            object.__setattr__(self, "shapes", checked_shapes(self.shapes))
        if self.values is not None:
            object.__setattr__(self, "values", checked_values(self.values))

    def transform(self, context: RunContext) -> Transform:  # noqa: ARG002
        shapes, values = self.shapes or {}, self.values

        def apply(batch: pa.RecordBatch, _location: Callable[[], str]) -> pa.RecordBatch:
            return padded(batch, shapes, values)

        return apply


def checked_shapes(shapes: Any) -> dict[str, int | tuple[()] | None]:
    """Returns the lengths by column; InvalidArgumentError for anything else.

    As in tf.data, a length may be given as the shape of a row, `[length]`, and a column without
    lists has the shape `[]`.
    """
    return {
        name: _checked_length(shape, f"padded_shapes[{name!r}]")
        for name, shape in _mapping(shapes, "padded_shapes").items()
    }


def _checked_length(shape: Any, what: str) -> int | tuple[()] | None:
    if isinstance(shape, list | tuple) and len(shape) <= 1:
        if not shape:
            return ()
        (shape,) = shape
    return None if shape is None else integer_at_least(shape, 1, what)


def checked_values(values: Any) -> dict[str, Any] | bool | int | float | str:
    """Returns the padding, by column or for all; InvalidArgumentError for anything else."""
    if isinstance(values, np.generic):
        values = values.item()
    if isinstance(values, bool | int | float | str):
        return values
    checked = _mapping(values, "padding_values")
    for name, value in checked.items():
        if not isinstance(value, bool | int | float | str):
            raise InvalidArgumentError(
                f"padding_values[{name!r}] must be a number or a string, got {value!r}"
            )
    return checked


def _mapping(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise InvalidTypeError(f"{what} must be a dict by column name, got {value!r}")
    # A plan cannot hold NumPy scalars as parameters.
    return {name: v.item() if isinstance(v, np.generic) else v for name, v in value.items()}


def padded(batch: pa.RecordBatch, shapes: Shapes, values: Padding | None) -> pa.RecordBatch:
    """Returns `batch` with equally long lists. SchemaError for a list longer than its shape."""
    by_column = values if isinstance(values, Mapping) else {}
    require_columns([*shapes, *by_column], batch.schema.names, what="padded_batch")
    default = None if isinstance(values, Mapping) else values
    fields, arrays = [], []
    for field, array in zip(batch.schema, batch.columns, strict=True):
        if field.name in shapes:
            _check_shape(field, shapes[field.name])
        if _is_list(field.type):
            value = by_column.get(field.name, default)
            array = _padded(array, field.name, shapes.get(field.name), value)
            field = pa.field(field.name, array.type, metadata=PADDED)
        fields.append(field)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _check_shape(field: pa.Field, shape: int | tuple[()] | None) -> None:
    """Raises SchemaError if a column cannot be of the shape that was given for it."""
    has_lists, is_fixed = _is_list(field.type), pa.types.is_fixed_size_list(field.type)
    if has_lists and shape == ():
        raise SchemaError(
            f"padded_batch: column {field.name!r} is of type {field.type}, whose shape is [None], "
            "or [length], not []"
        )
    if is_fixed and shape not in (None, field.type.list_size):
        raise SchemaError(
            f"padded_batch: column {field.name!r} has lists of {field.type.list_size} values, "
            f"which are not padded to {shape}; leave it out of padded_shapes"
        )
    if not has_lists and not is_fixed and shape != ():
        raise SchemaError(
            f"padded_batch: column {field.name!r} is of type {field.type}, which has no length; "
            "leave it out of padded_shapes, or write []"
        )


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def _padded(array: pa.Array, name: str, length: Any, value: Any) -> pa.Array:
    kind = array.type.value_type
    if pa.types.is_nested(kind):
        raise SchemaError(
            f"padded_batch: column {name!r} of type {array.type} has lists in lists; flatten or "
            "drop it before"
        )
    lengths = _lengths(array)
    longest = int(lengths.max(initial=0))
    if length is not None and longest > length:
        raise SchemaError(
            f"padded_batch: column {name!r} has a list of {longest} values, more than the "
            f"{length} of padded_shapes; raise it or cut the lists before"
        )
    width = longest if length is None else length
    inside = np.arange(width) < lengths[:, None]
    values = _filled(array.flatten(), inside, _filler(kind, value, name))
    offsets = np.arange(len(array) + 1) * width
    if pa.types.is_large_list(array.type):
        return pa.LargeListArray.from_arrays(pa.array(offsets), values, type=array.type)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, type=array.type)


def _lengths(array: pa.Array) -> np.ndarray:
    """Returns the length of each list; 0 for a null."""
    lengths = pc.list_value_length(array)
    return (pc.fill_null(lengths, 0) if array.null_count else lengths).to_numpy()


def _filled(flat: pa.Array, inside: np.ndarray, filler: pa.Array) -> pa.Array:
    """Returns, row after row, the next value of `flat` where `inside` is true, else `filler`."""
    if flat.null_count == 0 and (dtype := _DTYPES.get(flat.type)) is not None:
        filled = np.full(inside.shape, filler.to_numpy()[0], dtype)
        filled[inside] = flat.to_numpy()
        return pa.array(filled.reshape(-1))
    # Places without a value of a list take the filler, which is appended after all values.
    indices = np.full(inside.shape, len(flat))
    indices[inside] = np.arange(len(flat))
    return pa.concat_arrays([flat, filler]).take(pa.array(indices.reshape(-1)))


@functools.lru_cache(maxsize=256, typed=True)
def _filler(kind: pa.DataType, value: Any, name: str) -> pa.Array:
    """Returns the value to pad with, as an array of one."""
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    default: Any = "" if text else b"" if binary else 0
    if binary and isinstance(value, str):
        value = value.encode()
    try:
        if value is None:
            return pa.array([default]).cast(kind)
        return pa.array([value], kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise SchemaError(
            f"padded_batch: {value!r} is not a value to pad column {name!r} of {kind} with: {error}"
        ) from error
