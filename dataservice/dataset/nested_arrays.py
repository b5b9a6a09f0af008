"""Takes nested Arrow arrays apart and puts them together again over other children.

Knows Arrow arrays, nothing of batches or plans. Invariant: an array that is put together has the
rows and nulls of the array it was taken from, also if that is a slice; Arrow's own casts of lists
of views do not keep them.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from dataservice.runtime.number_arrays import from_numbers


def children_of(array: pa.Array) -> list[pa.Array]:
    """Returns the child arrays of a nested array, without the values that a slice leaves out."""
    types, kind = pa.types, array.type
    if types.is_struct(kind):
        return [array.field(index) for index in range(kind.num_fields)]
    if types.is_fixed_size_list(kind):
        first, size = array.offset, kind.list_size
        return [array.values.slice(first * size, len(array) * size)]
    if types.is_map(kind):
        first, count = _entries(array)
        return [child.slice(first, count) for child in (array.keys, array.items)]
    return [array.flatten()]


def _entries(maps: pa.Array) -> tuple[int, int]:
    """Returns the index of the first entry of an array of maps, and the number of entries.

    Arrow's `keys` and `items` hold the entries of the whole array, even if this is a slice.
    """
    first, end = maps.offsets[0].as_py(), maps.offsets[-1].as_py()
    return first, end - first


def put_together(array: pa.Array, children: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
    """Returns `array` as type `kind`, over `children`, which were made from its own children."""
    types = pa.types
    nulls = array.is_null() if array.null_count else None
    if types.is_struct(kind):
        return pa.StructArray.from_arrays(children, fields=kind.fields, mask=nulls)
    if types.is_fixed_size_list(kind):
        return fixed_size_lists(children[0], len(array), kind, nulls)
    if types.is_map(kind):
        first, _ = _entries(array)
        offsets = pa.array(array.offsets.to_numpy() - first)  # a slice could not take a mask
        return pa.MapArray.from_arrays(offsets, *children, type=kind, mask=nulls)
    return _lists(array, children[0], kind, nulls)


def fixed_size_lists(
    values: pa.Array, count: int, kind: pa.DataType, nulls: pa.Array | None = None
) -> pa.Array:
    """Returns `count` lists of type `kind` over `values`, null where `nulls` is true."""
    if kind.list_size:
        return pa.FixedSizeListArray.from_arrays(values, type=kind, mask=nulls)
    # `from_arrays` divides by the list size, and crashes the process if it is 0.
    valid = None
    if nulls is not None:
        valid = from_numbers(~nulls.to_numpy(zero_copy_only=False)).buffers()[1]
    return pa.Array.from_buffers(kind, count, [valid], children=[values])


def _lists(
    array: pa.Array, values: pa.Array, kind: pa.DataType, nulls: pa.Array | None
) -> pa.Array:
    from pyarrow import compute  # imported here, since few tables have such columns

    lengths = compute.list_value_length(array).fill_null(0)
    first = pa.array([0], lengths.type)
    offsets = pa.concat_arrays([first, compute.cumulative_sum(lengths)])
    lists = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
    return lists.from_arrays(offsets, values, type=kind, mask=nulls)
