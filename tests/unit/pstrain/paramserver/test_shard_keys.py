"""Counts and lists of the idle keys of a shard."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from pstrain import initializers
from pstrain.errors import InvalidArgumentError
from pstrain.kernels.keys import NO_KEY, VACATED
from pstrain.paramserver.shard import Shard
from tests.unit.pstrain.paramserver.shard_cases import ids, make_spec

ROWS = 1_000_000


def keyed_shard() -> Shard:
    """Returns a shard with keys in all rows but two: a quarter is idle for 2 periods, others 1."""
    initializer = initializers.constant(NO_KEY)
    spec = make_spec(ROWS, 1, dtype="int64", shape=(ROWS,), initializer=initializer)
    shard = Shard(spec, 0)
    shard.slab[1:, 0] = np.arange(1, ROWS)
    shard.slab[9] = VACATED
    shard.uses.begin(1)
    shard.uses.note(np.flatnonzero(np.arange(ROWS) % 4))
    shard.uses.begin(2)
    return shard


def test_idle_keys_of_many_rows_are_counted_and_listed() -> None:
    shard = keyed_shard()
    old, rest = np.arange(4, ROWS, 4), np.delete(np.arange(ROWS), np.s_[::4])
    rest = rest[rest != 9]
    assert shard.count_idle(0, ROWS).tolist() == [0, len(rest), len(old)]
    assert shard.count_idle(4, 10).tolist() == [0, 3, 2]
    assert shard.count_idle(9, 10).tolist() == []
    np.testing.assert_array_equal(shard.idle_rows(0, ROWS, 1, 0), old)
    both = shard.idle_rows(0, ROWS, 1, len(rest))
    np.testing.assert_array_equal(both, np.concatenate([old, rest]))
    assert shard.idle_rows(9, 10, 0, 5).tolist() == []
    with pytest.raises(InvalidArgumentError, match="outside rows"):
        shard.count_idle(0, ROWS + 1)
    with pytest.raises(InvalidArgumentError, match="no keys"):
        Shard(make_spec(), 0).idle_rows(0, 1, 0, 0)


def test_idle_keys_are_counted_in_little_memory() -> None:
    shard = keyed_shard()
    tracemalloc.start()
    try:
        shard.count_idle(0, ROWS)
        shard.idle_rows(0, ROWS, 3, 0)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 10 * ROWS
    assert shard.idle_rows(4, 9, 1, 0).tolist() == ids(4, 8).tolist()
