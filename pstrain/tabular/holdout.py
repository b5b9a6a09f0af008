"""Divides rows into a training and a validation part by a hash of their values.

Knows nothing of files or labels. Invariant: the part of a row depends on its values and the seed
alone, so it is the same in every epoch and process, and equal rows are in the same part. Columns
that cannot become text, such as structs, do not count.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dataservice.runtime.number_arrays import from_numbers
from pstrain.errors import DataError, InvalidArgumentError
from pstrain.features import columns
from pstrain.features.bags import Lists, is_list

Part = Literal["training", "validation"]

_BUCKETS = 2**31 - 1
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


class HoldOut:
    """A function for ``flat_map(..., format="arrow")`` that keeps the rows of one part.

    ``share`` of all rows is held out for validation.
    """

    def __init__(self, share: float, part: Part, seed: int = 0):
        if not 0 < share < 1:
            raise InvalidArgumentError(
                f"the share held out for validation must be between 0 and 1, got {share}"
            )
        self.share, self.part, self.seed = share, part, seed

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        # Compared in 53 bits: integers and float64 both hold such numbers exactly.
        is_held_out = (_hash_rows(batch, self.seed) >> np.uint64(11)) < int(self.share * 2**53)
        wanted = is_held_out if self.part == "validation" else ~is_held_out
        return batch.filter(from_numbers(wanted))


def _hash_rows(batch: pa.RecordBatch, seed: int) -> NDArray[np.uint64]:
    total = np.full(batch.num_rows, np.uint64(seed & (2**63 - 1)), dtype=np.uint64)
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if not _tells_apart(column.type):
            continue
        hashes = _hash_lists if is_list(column.type) else _hash_values
        total ^= hashes(name, column)
        total *= _MULTIPLIER
        total ^= total >> np.uint64(29)
    return total


def _tells_apart(type_: pa.DataType) -> bool:
    if is_list(type_):
        return not is_list(type_.value_type) and _tells_apart(type_.value_type)
    return not (pa.types.is_nested(type_) or pa.types.is_interval(type_))


def _hash_values(name: str, column: pa.Array) -> NDArray[np.uint64]:
    found = np.empty((len(column), 1), dtype=np.int64)
    columns.ids_into(name, _hashable(name, column), _BUCKETS, True, 0, found, 0)
    return found[:, 0].astype(np.uint64)


def _hash_lists(name: str, column: pa.Array) -> NDArray[np.uint64]:
    """Hashes each list by its values and their places; a null list hashes as an empty one."""
    lists = Lists(name, column)
    if not len(lists.values):
        return np.zeros(len(column), np.uint64)
    first, lengths = lists.offsets[:-1], np.diff(lists.offsets)
    places = np.arange(1, len(lists.values) + 1) - np.repeat(first, lengths)
    hashes = _hash_values(name, lists.values) + places.astype(np.uint64) * np.uint64(_BUCKETS)
    hashes *= _MULTIPLIER
    hashes ^= hashes >> np.uint64(29)
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(hashes, dtype=np.uint64)])
    return sums[lists.offsets[1:]] - sums[first]


def _hashable(name: str, column: pa.Array) -> pa.Array:
    """Returns the values as integers or strings, whichever needs fewer copies."""
    if columns.is_categorical(column.type):
        return column
    try:
        if pa.types.is_floating(column.type):
            return column.cast(pa.float64()).view(pa.int64())
        return column.cast(pa.string(), safe=False)  # not all bytes are text
    except pa.ArrowException as error:
        raise DataError(
            f"column {name!r} holds {column.type}, by which rows cannot be told apart: name other "
            "rows to validate on with --validation-data"
        ) from error
