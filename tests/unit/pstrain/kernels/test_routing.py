"""Deduplication and routing of ids against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstrain.kernels.routing import route


def _expected(ids: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns distinct ids by shard, then by first appearance, and the offsets of the shards."""
    unique, first = np.unique(ids, return_index=True)
    shard = np.searchsorted(starts, unique, side="right") - 1
    order = np.lexsort((first, shard))
    counts = np.bincount(shard, minlength=len(starts) - 1)
    return unique[order], np.concatenate([[0], np.cumsum(counts)])


@given(
    ids=st.lists(st.integers(0, 99), max_size=300),
    cuts=st.lists(st.integers(0, 100), max_size=12),
)
def test_route_agrees_with_numpy(ids: list[int], cuts: list[int]) -> None:
    starts = np.array([0, *sorted(cuts), 100], np.int64)
    asked = np.array(ids, np.int64)
    unique, offsets, inverse, bad = route(asked, starts)
    expected, expected_offsets = _expected(asked, starts)
    assert bad == -1
    assert inverse.dtype == np.int32
    np.testing.assert_array_equal(unique, expected)
    np.testing.assert_array_equal(offsets, expected_offsets)
    np.testing.assert_array_equal(unique[inverse], asked)


@pytest.mark.parametrize("count", [896, 897, 20_000])
@pytest.mark.parametrize("shards", [1, 3])
def test_many_distinct_ids_fit_into_routing_table(shards: int, count: int) -> None:
    starts = np.linspace(0, 10**9, shards + 1).astype(np.int64)
    # The smallest table has 1024 entries, at most seven eighths of them used.
    asked = np.random.default_rng(0).integers(0, 10**9, count)
    unique, offsets, inverse, bad = route(asked, starts)
    assert bad == -1
    assert offsets[-1] == len(unique) == len(np.unique(asked))
    np.testing.assert_array_equal(unique[inverse], asked)
    shard = np.searchsorted(starts, unique, side="right") - 1
    np.testing.assert_array_equal(shard, np.repeat(np.arange(shards), np.diff(offsets)))


@pytest.mark.parametrize(("ids", "position"), [([3, 10, 5], 1), ([-1], 0), ([0, 9, 9, -7], 3)])
def test_route_returns_position_of_first_id_outside(ids: list[int], position: int) -> None:
    assert route(np.array(ids, np.int64), np.array([0, 4, 10], np.int64))[3] == position


def test_route_accepts_bounds_that_do_not_start_at_zero() -> None:
    starts = np.array([100, 110], np.int64)
    assert route(np.array([100, 109], np.int64), starts)[3] == -1
    assert route(np.array([99], np.int64), starts)[3] == 0
