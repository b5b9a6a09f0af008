"""The operator that makes the lists of each batch equally long.

Invariant: a padded column keeps its type whatever the length of its lists, so that all batches have
one schema; a mark on the field says that its lists are equally long, so that a NumPy reader gets a
2-D array.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

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

_DTYPES: Final = {kind: dtype for dtype, kind in PLAIN.items()}


@register_node
@dataclasses.dataclass(frozen=True, eq=False)
class Pad(RowOperator):
    """Pads list columns to the longest list of the batch, or to the length that `shapes` gives.

    `values` are the values to pad with, by column; 0, "" or False for the others.
    """

    kind: ClassVar[str] = "pad"
    shapes: Mapping[str, int | None] | None = None
    values: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if not self.input.batched:
            raise InvalidArgumentError("padding takes batches; use padded_batch(n)")
        if self.shapes is not None:
            object.__setattr__(self, "shapes", checked_shapes(self.shapes))
        if self.values is not None:
            object.__setattr__(self, "values", checked_values(self.values))

    def transform(self, context: RunContext) -> Transform:  # noqa: ARG002
        shapes, values = self.shapes or {}, self.values or {}

        def apply(batch: pa.RecordBatch, _location: Callable[[], str]) -> pa.RecordBatch:
            return padded(batch, shapes, values)

        return apply


def checked_shapes(shapes: Any) -> dict[str, int | None]:
    """Returns the lengths by column; InvalidArgumentError for anything else.

    As in tf.data, a length may be given as the shape of a row, `[length]`.
    """
    return {
        name: None if length is None else integer_at_least(length, 1, f"padded_shapes[{name!r}]")
        for name, shape in _mapping(shapes, "padded_shapes").items()
        for length in (shape if isinstance(shape, list | tuple) and len(shape) == 1 else (shape,))
    }


def checked_values(values: Any) -> dict[str, Any]:
    """Returns the padding by column; InvalidArgumentError for anything but numbers and strings."""
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


def padded(
    batch: pa.RecordBatch, shapes: Mapping[str, int | None], values: Mapping[str, Any]
) -> pa.RecordBatch:
    """Returns `batch` with equally long lists. SchemaError for a list longer than its shape."""
    require_columns([*shapes, *values], batch.schema.names, what="padded_batch")
    fields, arrays = [], []
    for field, array in zip(batch.schema, batch.columns, strict=True):
        if _is_list(field.type):
            array = _padded(array, field.name, shapes.get(field.name), values.get(field.name))
            field = pa.field(field.name, array.type, metadata=PADDED)
        elif field.name in shapes or field.name in values:
            raise SchemaError(
                f"padded_batch: column {field.name!r} is of type {field.type}, which has no length"
            )
        fields.append(field)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def _padded(array: pa.Array, name: str, length: int | None, value: Any) -> pa.Array:
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
