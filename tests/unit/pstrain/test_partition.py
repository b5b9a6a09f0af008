"""Partitioners and the div layout: the exact arithmetic of the originals."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstrain.errors import InvalidArgumentError
from pstrain.partition import (
    FixedShardsPartitioner,
    MaxSizePartitioner,
    MinSizePartitioner,
    Partitioner,
    shard_count,
    split_rows,
    split_rows_at,
)


def _sizes(rows: int, shards: int) -> list[int]:
    return [stop - start for start, stop in split_rows(rows, shards)]


def test_variable_without_rows_has_one_shard() -> None:
    assert _sizes(0, 1) == [0]
    assert shard_count(FixedShardsPartitioner(2), (0, 3), "float32") == 1


def test_first_shards_hold_remaining_rows() -> None:
    assert _sizes(13, 5) == [3, 3, 3, 2, 2]
    assert _sizes(10, 4) == [3, 3, 2, 2]
    assert split_rows(4, 2) == ((0, 2), (2, 4))


@given(rows=st.integers(1, 10_000), data=st.data())
def test_shards_cover_all_rows_in_order(rows: int, data: st.DataObject) -> None:
    shards = data.draw(st.integers(1, rows))
    ranges = split_rows(rows, shards)
    assert ranges[0][0] == 0
    assert ranges[-1][1] == rows
    assert all(a[1] == b[0] for a, b in itertools.pairwise(ranges))
    assert max(_sizes(rows, shards)) - min(_sizes(rows, shards)) <= 1


@pytest.mark.parametrize("shards", [0, -1, 4])
def test_split_into_empty_shards_is_refused(shards: int) -> None:
    with pytest.raises(InvalidArgumentError, match="3 rows"):
        split_rows(3, shards)


@pytest.mark.parametrize(
    ("cuts", "expected"),
    [
        ([], ((0, 12),)),
        ([0, 5, 8], ((0, 5), (5, 12))),
        ([0, 3, 7], ((0, 7), (7, 12))),
        ([0, 6], ((0, 6), (6, 12))),
    ],
)
def test_shards_begin_at_cuts_nearest_to_even_boundaries(cuts: list[int], expected: Any) -> None:
    assert split_rows_at(cuts, 12, 2) == expected


def test_partitioner_base_class_is_abstract() -> None:
    with pytest.raises(NotImplementedError):
        Partitioner()((1,), "float32")


def test_shard_count_is_limited_by_rows_and_is_one_for_scalars() -> None:
    assert shard_count(lambda **_: [9, 1], (4, 2), "float32") == 4
    assert shard_count(lambda **_: [9], (), "float32") == 1
    assert shard_count(None, (4, 2), "float32") == 1
    assert shard_count(lambda **_: [1, 1], (4, 2), "float32") == 1
    for answer in (np.array([3, 1]), (3.0, 1), [np.int64(3), 1]):
        assert shard_count(lambda answer=answer, **_: answer, (4, 2), "float32") == 3


@pytest.mark.parametrize(
    "answer", [None, [], [0, 1], [1, 2], [2], 2, "21", [2.5, 1], [None, 1], [float("nan"), 1]]
)
def test_shard_count_refuses_invalid_partitioner_answers(answer: object) -> None:
    with pytest.raises(InvalidArgumentError, match="variable_partitioner"):
        shard_count(lambda **_: answer, (4, 2), "float32")  # type: ignore[arg-type, return-value]
    with pytest.raises(InvalidArgumentError, match="only the first axis can be cut"):
        shard_count(lambda **_: [2, 1, 2], (4, 2, 2), "float32")


@pytest.mark.parametrize(
    "partitioner",
    [FixedShardsPartitioner(2), MinSizePartitioner(max_shards=2), MaxSizePartitioner(8)],
)
def test_partitioners_refuse_scalars_and_open_shapes(partitioner: Any) -> None:
    for expected in (ValueError, IndexError):
        with pytest.raises(expected, match="scalar"):
            partitioner((), np.float32)
    for rows in (None, -1):
        with pytest.raises(ValueError, match="fully defined"):
            partitioner((rows, 2), np.float32)


@pytest.mark.parametrize(
    ("partitioner", "shape", "dtype", "expected"),
    [
        (FixedShardsPartitioner(2), (6, 3), np.float32, [2, 1]),
        (FixedShardsPartitioner(4), (3, 7), np.float32, [3, 1]),
        (MinSizePartitioner(), (2**20,), np.float32, [1]),
        (MinSizePartitioner(max_shards=8), (65_536,), np.float32, [1]),
        (MinSizePartitioner(max_shards=8), (65_537,), np.float32, [2]),
        (MinSizePartitioner(max_shards=1), (65_537,), np.float32, [1]),
        (MinSizePartitioner(1, 100), (5, 2), np.float32, [5, 1]),
        (MinSizePartitioner(256 << 10, 2), (1024, 1024), np.float32, [2, 1]),
        (MinSizePartitioner(256 << 10, 64), (1024, 1024), np.float32, [16, 1]),
        (MaxSizePartitioner(3), (6, 1), np.float32, [6, 1]),
        (MaxSizePartitioner(4), (6, 1), np.float32, [6, 1]),
        (MaxSizePartitioner(20), (6, 1), np.float32, [2, 1]),
        (MaxSizePartitioner(1024), (6, 1), np.float32, [1, 1]),
        (MaxSizePartitioner(4, 2), (6, 1), np.float32, [2, 1]),
        (MaxSizePartitioner(16), (4,), np.int64, [2]),
        (MaxSizePartitioner(16), (4,), "int64", [2]),
        (MaxSizePartitioner(32, bytes_per_string=8), (8,), "O", [2]),
        (MaxSizePartitioner(32, bytes_per_string=16), (6, 1), np.dtype("U7"), [3, 1]),
    ],
)
def test_partitioners_match_tensorflow_arithmetic(
    partitioner: Any, shape: Any, dtype: Any, expected: list[int]
) -> None:
    assert list(partitioner(shape=shape, dtype=dtype)) == expected


@pytest.mark.parametrize("axis", [2, -3])
def test_axis_that_a_shape_lacks_is_refused(axis: int) -> None:
    for partitioner in (
        FixedShardsPartitioner(2),
        MinSizePartitioner(4, 10),
        MaxSizePartitioner(4),
    ):
        with pytest.raises(IndexError, match=rf"shape \(3, 7\) has no axis {axis} to partition"):
            partitioner((3, 7), np.float32, axis=axis)


def test_strings_count_bytes_per_string_by_all_their_names() -> None:
    for dtype in (str, object, "string", "U5", "S3"):
        assert MinSizePartitioner(32, 10, bytes_per_string=16)((6,), dtype) == [3]


def test_partitioners_accept_axis() -> None:
    assert FixedShardsPartitioner(2)((3, 7), np.float32, axis=1) == [1, 2]
    assert FixedShardsPartitioner(2)((3, 7), np.float32, axis=-2) == [2, 1]
    assert MinSizePartitioner(4, 10)((1, 3), np.float32, axis=1) == [1, 3]
    assert MaxSizePartitioner(4)((1, 3), np.float32, axis=1) == [1, 3]
