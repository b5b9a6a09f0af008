"""Partitioners: how many shards a variable is cut into, and which rows each shard has.

Pure arithmetic: knows nothing of servers or values. Invariant: only axis 0 is ever divided, and
the shards of a variable cover its rows in order without gaps ("div" layout: the first
``rows % shards`` shards hold one row more).
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dataservice.runtime.arguments import integer_at_least
from pstrain.errors import InvalidArgumentError, NoAxisError

PartitionFunction = Callable[..., Sequence[int]]


def split_rows(rows: int, shards: int) -> tuple[tuple[int, int], ...]:
    """Returns the row ranges ``(start, stop)`` of shards: 10 rows in 4 shards give 3, 3, 2, 2.

    0 rows give one empty shard. InvalidArgumentError for less than one shard, or for more
    shards than rows.
    """
    if shards < 1 or max(1, rows) < shards:
        raise InvalidArgumentError(f"cannot cut {rows} rows into {shards} shards of a row or more")
    base, extra = divmod(rows, shards)
    starts = [i * base + min(i, extra) for i in range(shards + 1)]
    return tuple(itertools.pairwise(starts))


def split_rows_at(cuts: Sequence[int], rows: int, shards: int) -> tuple[tuple[int, int], ...]:
    """Returns row ranges like :func:`split_rows`, but each starts at the nearest of ``cuts``.

    ``cuts`` are ascending. Returns fewer ranges if there are not enough cuts.
    """
    if not cuts:
        return ((0, rows),)
    starts = {0}
    for start, _ in split_rows(rows, min(rows, shards)):
        after = bisect.bisect_left(cuts, start)
        starts.add(min(cuts[max(0, after - 1) : after + 1], key=lambda cut: abs(cut - start)))
    return tuple(itertools.pairwise([*sorted(starts), rows]))


class Partitioner:
    """Base of partitioners, which decide the number of shards per axis from a shape and a dtype."""

    def __call__(self, shape: Sequence[int], dtype: Any, axis: int = 0) -> list[int]:
        """Returns the number of shards per axis; 1 for every axis except ``axis``."""
        raise NotImplementedError("a partitioner must define __call__(shape, dtype, axis)")

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({arguments})"


class FixedShardsPartitioner(Partitioner):
    """Cuts variables into ``num_shards`` shards, or one per row if there are fewer rows."""

    def __init__(self, num_shards: int) -> None:
        self.num_shards = integer_at_least(num_shards, 1, "num_shards")

    def __call__(self, shape: Sequence[int], dtype: Any, axis: int = 0) -> list[int]:  # noqa: ARG002
        return _only(shape, axis, min(self.num_shards, _rows(shape, axis)))


class MinSizePartitioner(Partitioner):
    """Cuts into the most shards of about ``min_shard_bytes`` or more, up to ``max_shards``."""

    def __init__(
        self, min_shard_bytes: int = 256 << 10, max_shards: int = 1, bytes_per_string: int = 16
    ) -> None:
        self.min_shard_bytes = integer_at_least(min_shard_bytes, 1, "min_shard_bytes")
        self.max_shards = integer_at_least(max_shards, 1, "max_shards")
        self.bytes_per_string = integer_at_least(bytes_per_string, 1, "bytes_per_string")

    def __call__(self, shape: Sequence[int], dtype: Any, axis: int = 0) -> list[int]:
        size_bytes = _size_bytes(shape, dtype, self.bytes_per_string)
        wanted = math.ceil(size_bytes / self.min_shard_bytes)
        return _only(shape, axis, max(1, min(_rows(shape, axis), self.max_shards, wanted)))


class MaxSizePartitioner(Partitioner):
    """Cuts into the fewest shards of up to ``max_shard_bytes`` each, but at most ``max_shards``."""

    def __init__(
        self, max_shard_bytes: int, max_shards: int | None = None, bytes_per_string: int = 16
    ) -> None:
        self.max_shard_bytes = integer_at_least(max_shard_bytes, 1, "max_shard_bytes")
        if max_shards is not None:
            integer_at_least(max_shards, 1, "max_shards")
        self.max_shards = max_shards
        self.bytes_per_string = integer_at_least(bytes_per_string, 1, "bytes_per_string")

    def __call__(self, shape: Sequence[int], dtype: Any, axis: int = 0) -> list[int]:
        rows = _rows(shape, axis)
        row_bytes = _size_bytes(shape, dtype, self.bytes_per_string) / max(1, rows)
        rows_per_shard = max(1, math.floor(self.max_shard_bytes / max(1, row_bytes)))
        shards = max(1, math.ceil(rows / rows_per_shard))
        return _only(shape, axis, min(shards, self.max_shards) if self.max_shards else shards)


def shard_count(partitioner: PartitionFunction | None, shape: tuple[int, ...], dtype: str) -> int:
    """Returns the number of shards that ``partitioner`` asks for; at most one per row.

    1 for a scalar, for a variable without rows, and without a partitioner. InvalidArgumentError if
    the partitioner does not answer one whole number per axis, at least 1 for the first axis and 1
    for every other.
    """
    if partitioner is None or not shape or not shape[0]:
        return 1
    answer = partitioner(shape=shape, dtype=np.dtype(dtype))
    counts = _whole_numbers(answer)
    if len(counts) != len(shape) or counts[0] < 1:
        raise InvalidArgumentError(
            f"variable_partitioner answered {answer!r} for shape {shape}; it must answer one "
            f"number of shards per axis, at least 1 for the first"
        )
    if any(count != 1 for count in counts[1:]):
        raise InvalidArgumentError(
            f"variable_partitioner answered {counts} for shape {shape}; only the first axis "
            f"can be cut, so every other number must be 1"
        )
    return max(1, min(counts[0], shape[0]))


def _whole_numbers(answer: Any) -> list[int]:
    """Returns ``answer`` as a list of integers; empty if it is anything else."""
    try:
        given = list(answer)
        counts = [int(count) for count in given]
    except (TypeError, ValueError, OverflowError):
        return []
    return counts if counts == given else []


def _only(shape: Sequence[int], axis: int, shards: int) -> list[int]:
    answer = [1] * len(shape)
    answer[axis] = shards
    return answer


def _defined(shape: Sequence[int]) -> Sequence[int]:
    if len(shape) == 0:
        raise NoAxisError("a scalar has no axis to partition")
    if any(size is None or size < 0 for size in shape):
        raise InvalidArgumentError(f"shape {tuple(shape)} must be fully defined to be partitioned")
    return shape


def _rows(shape: Sequence[int], axis: int) -> int:
    if not -len(_defined(shape)) <= axis < len(shape):
        raise NoAxisError(f"shape {tuple(shape)} has no axis {axis} to partition")
    return shape[axis]


def _size_bytes(shape: Sequence[int], dtype: Any, bytes_per_string: int) -> int:
    is_text = isinstance(dtype, str) and dtype == "string"
    kind = np.dtype(str if is_text else dtype)
    value_bytes = bytes_per_string if kind.kind in "USO" else kind.itemsize
    return math.prod(_defined(shape)) * value_bytes
