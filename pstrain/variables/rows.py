"""Arithmetic between a variable's rows, its shards, and the ids and values of a request.

Pure: reads and changes no variable. Invariant: all arrays that these functions return are
contiguous, in range and of the variable's dtype, so that kernels and servers need not check them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pstrain import buffers
from pstrain.errors import InvalidArgumentError
from pstrain.features.field_groups import FieldGroups, group_by_field
from pstrain.kernels.routing import route
from pstrain.vocabulary import Lookup, ShardSpec, Update, VariableSpec

Array = NDArray[Any]

# About what the description of one variable takes in a message, beside its values.
_DESCRIPTION_BYTES = 128


def row_bounds(spec: VariableSpec) -> NDArray[np.int64]:
    """Returns int64 [shards + 1]: the first row of each shard, then the number of rows."""
    return _bounds(spec.shards)


@functools.lru_cache(maxsize=4096)
def _bounds(shards: tuple[ShardSpec, ...]) -> NDArray[np.int64]:
    return np.array([s.row_start for s in shards] + [shards[-1].row_stop], np.int64)


def look_up(spec: VariableSpec, ids: Array) -> Lookup:
    """Groups the distinct ids by shard; ``rows`` of the result is uninitialised [U, width].

    Ids of two axes, [n, fields], are grouped by field too. Raises InvalidArgumentError naming the
    first id outside the variable.
    """
    array = np.ascontiguousarray(ids, np.int64)
    found: NDArray[np.int32] | FieldGroups
    if array.ndim == 2:
        distinct, groups = group_by_field(array)
        unique, offsets, order, bad = route(distinct, row_bounds(spec))
        found = groups._replace(order=order)
    else:
        unique, offsets, found, bad = route(array.reshape(-1), row_bounds(spec))
    if bad >= 0:
        flat = array.reshape(-1)
        position = int(((flat < 0) | (flat >= spec.rows)).argmax())
        raise InvalidArgumentError(
            f"id {flat[position]} at position {position} is outside [0, {spec.rows}) of variable "
            f"{spec.name!r}"
        )
    return Lookup(unique, offsets, found, buffers.empty((len(unique), spec.width)))


def as_rows(spec: VariableSpec, value: Any, rows: int) -> Array:
    """Converts ``value`` to contiguous [rows, width] of the variable's dtype.

    Broadcasts nothing but a scalar. Raises InvalidArgumentError naming the variable, the shape it
    needs and the shape it got.
    """
    array = np.asarray(value)
    expected = shape_of_rows(spec, rows)
    if rows == 0 and array.shape == (0,):
        # An empty list has one axis only and a default dtype.
        array = np.empty(expected, spec.dtype)
    if array.shape == expected and array.dtype == spec.dtype and array.flags.carray:
        return array.reshape(rows, spec.width)
    if array.shape != expected and array.shape != ():
        raise InvalidArgumentError(
            f"value of shape {array.shape} does not fit variable {spec.name!r}, "
            f"which needs {expected}"
        )
    check_kind(array, spec.dtype, spec.name)
    full = np.full(expected, array, spec.dtype) if array.shape != expected else array
    # Kernels are compiled for arrays that can be written to.
    return np.require(full, spec.dtype, ("C", "W")).reshape(rows, spec.width)


def check_kind(array: Array, dtype: str, name: str) -> None:
    """Raises InvalidArgumentError if converting ``array`` to ``dtype`` would change its values."""
    if not _fits_kind(array.dtype, np.dtype(dtype)):
        raise InvalidArgumentError(
            f"value of dtype {array.dtype} cannot become {dtype} of variable {name!r} "
            f"without loss; convert it first"
        )
    check_range(array, dtype, name)


def _fits_kind(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """True if the conversion is allowed; :func:`check_range` checks the values of integers."""
    are_integers = given.kind in "iu" and wanted.kind in "iu"
    return are_integers or np.can_cast(given, wanted, "same_kind")


def check_range(array: Array, dtype: str, name: str) -> None:
    """Raises InvalidArgumentError if an integer is outside the range of the integer ``dtype``."""
    if array.dtype.kind not in "iu" or np.can_cast(array.dtype, dtype) or not array.size:
        return
    kind = np.dtype(dtype)
    if kind.kind not in "iu":
        return
    limits = np.iinfo(kind)
    for value in (array.min(), array.max()):
        if not limits.min <= int(value) <= limits.max:
            raise InvalidArgumentError(
                f"value {value} is outside of the {dtype} of variable {name!r}"
            )


def shape_of_rows(spec: VariableSpec, rows: int) -> tuple[int, ...]:
    """Returns the shape of ``rows`` rows of the variable; () for a scalar."""
    return (rows, *spec.shape[1:]) if spec.shape else ()


def rows_of_value(spec: VariableSpec, value: Any, start: int) -> int:
    """Returns how many rows from ``start`` on ``value`` covers; a scalar covers all of them."""
    shape = np.shape(value)
    return shape[0] if shape and spec.shape else spec.rows - start


def check_ids(spec: VariableSpec, ids: Array) -> None:
    """Raises InvalidArgumentError, which names the first id outside the variable, if one is."""
    outside = (ids < 0) | (ids >= spec.rows)
    if outside.any():
        raise InvalidArgumentError(
            f"id {ids[outside.argmax()]} is outside [0, {spec.rows}) of variable {spec.name!r}"
        )


def overlaps(spec: VariableSpec, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yields (shard index, first row, last row + 1) for each shard that overlaps the rows."""
    if not 0 <= start <= stop <= spec.rows:
        raise InvalidArgumentError(
            f"rows [{start}, {stop}) are outside [0, {spec.rows}) of variable {spec.name!r}"
        )
    for index, shard in enumerate(spec.shards):
        a, b = max(start, shard.row_start), min(stop, shard.row_stop)
        if a < b:
            yield index, int(a), int(b)


def transfers(
    spec: VariableSpec, start: int, stop: int, chunk_bytes: int
) -> Iterator[dict[int, tuple[int, int, int]]]:
    """Yields rows ``[start, stop)`` in turns, each with one chunk per server that has rows left.

    A turn is {server: (shard index, first row, last row + 1)}.
    """
    rows = max(1, chunk_bytes // row_bytes(spec))
    queues: dict[int, list[tuple[int, int, int]]] = {}
    for index, a, b in overlaps(spec, start, stop):
        chunks = [(index, c, min(c + rows, b)) for c in range(a, b, rows)]
        queues.setdefault(spec.shards[index].ps, []).extend(chunks)
    while queues:
        yield {ps: chunks.pop(0) for ps, chunks in queues.items()}
        queues = {ps: chunks for ps, chunks in queues.items() if chunks}


def groups(specs: Sequence[VariableSpec], max_bytes: int) -> list[list[VariableSpec]]:
    """Cuts ``specs``, in order, into groups whose values share messages of about ``max_bytes``.

    A variable that is larger, or that has no rows, is a group by itself.
    """
    found: list[list[VariableSpec]] = []
    room = 0
    for spec in specs:
        size = spec.rows * row_bytes(spec) + _DESCRIPTION_BYTES if spec.rows else max_bytes
        if size > room:
            found.append([])
            room = max_bytes
        found[-1].append(spec)
        room -= size
    return found


def row_bytes(spec: VariableSpec) -> int:
    """Returns the bytes of one row's values, without slots; at least 1."""
    return max(1, spec.width * np.dtype(spec.dtype).itemsize)


def update_parts(update: Update) -> Iterator[tuple[int, NDArray[np.int64] | None, Array]]:
    """Yields (shard index, ids or None, gradient [n, width]) for each shard of the update.

    Ids are None for the gradient of a whole variable.
    """
    spec, gradient, lookup = update
    if spec.dtype != "float32":
        raise InvalidArgumentError(
            f"variable {spec.name!r} has dtype {spec.dtype}; only float32 variables can be trained"
        )
    if lookup is None:
        rows = as_rows(spec, gradient, spec.rows)
        for index, shard in enumerate(spec.shards):
            yield index, None, rows[shard.row_start : shard.row_stop]
        return
    rows = gradient
    if rows.dtype != np.float32 or not rows.flags.carray:
        rows = np.require(gradient, np.float32, ("C", "W"))
    if rows.shape != (len(lookup.unique), spec.width):
        raise InvalidArgumentError(
            f"gradient of variable {spec.name!r} has shape {rows.shape}, expected "
            f"{(len(lookup.unique), spec.width)}: one row per distinct id"
        )
    for index in range(len(spec.shards)):
        part = slice(lookup.offsets[index], lookup.offsets[index + 1])
        if part.stop > part.start:
            yield index, lookup.unique[part], rows[part]


def scatter_parts(
    spec: VariableSpec, ids: Array, rows: Any
) -> Iterator[tuple[int, ShardSpec, NDArray[np.int64], Array]]:
    """Yields (index, shard, ids, rows [n, width]) in order for each shard of a scatter."""
    flat = np.ascontiguousarray(ids, np.int64).reshape(-1)
    check_ids(spec, flat)
    values = as_rows(spec, rows, flat.size)
    owner = np.searchsorted(row_bounds(spec), flat, side="right") - 1
    for index, shard in enumerate(spec.shards):
        mine = owner == index
        if mine.any():
            yield index, shard, flat[mine], values[mine]
