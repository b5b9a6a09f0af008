"""Snapshots of shards show the moment they were taken, whatever changes while they are read."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pstrain import initializers
from pstrain.errors import CancelledError
from pstrain.kernels.snapshots import RUN
from pstrain.paramserver import kept_rows
from pstrain.paramserver import snapshot as module
from pstrain.paramserver.kept_rows import KeptRows
from pstrain.paramserver.shard import Shard
from pstrain.paramserver.snapshot import Snapshot
from tests.unit.pstrain.paramserver.shard_cases import ADAGRAD, ADAM, SGD, ids, make_spec, ones


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BLOCK_BYTES", 512)
    monkeypatch.setattr(module, "_LIST_BYTES", 256)
    monkeypatch.setattr(kept_rows, "_CHUNK_BYTES", 512)


def change(shard: Shard, kind: int, chance: np.random.Generator) -> None:
    rows = np.unique(chance.integers(shard.row_start, shard.row_stop, 5))
    gradient = chance.random((len(rows), shard.width), np.float32)
    match kind:
        case 0:
            shard.update(ADAGRAD, rows, gradient)
        case 1:
            shard.update(ADAM, rows, gradient)
        case 2:
            shard.update(SGD, None, ones(shard.row_stop - shard.row_start, shard.width))
        case 3:
            shard.assign("add", int(rows[0]), ones(1, shard.width))
        case 4:
            shard.scatter("mul", rows, gradient)
        case 5:
            shard.restore(int(rows[0]), [gradient[:1]], None)


def read(blocks: Any) -> list[np.ndarray]:
    copied = [block.columns() for block in blocks]
    return [np.concatenate(parts) for parts in zip(*copied, strict=True)]


def columns(shard: Shard) -> list[np.ndarray]:
    edges = np.cumsum([0, *shard.column_widths])
    return [shard.slab[:, a:b].copy() for a, b in itertools.pairwise(edges)]


@settings(max_examples=60, deadline=None)
@given(
    width=st.sampled_from([1, 3, 16, 80]),
    before=st.lists(st.integers(0, 5), max_size=3),
    after=st.lists(st.integers(0, 5), max_size=12),
    every=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_snapshot_read_during_changes_shows_its_moment(
    width: int, before: list[int], after: list[int], every: int, seed: int
) -> None:
    chance = np.random.default_rng(seed)
    shard = Shard(make_spec(300, width, cuts=(150,)), 1)
    for kind in before:
        change(shard, kind, chance)
    taken: list[tuple[Snapshot, list[np.ndarray], Any, list[Any]]] = []
    for number, kind in enumerate([*after, 0]):
        if number % every == 0:
            snapshot = shard.snapshot()
            taken.append((snapshot, columns(shard), snapshot.blocks(), []))
        change(shard, kind, chance)
        for _, _, blocks, seen in taken:
            if (block := next(blocks, None)) is not None:
                seen.append(block.columns())
    for snapshot, expected, blocks, seen in taken:
        seen += [block.columns() for block in blocks]
        for index, values in enumerate(expected):
            np.testing.assert_array_equal(np.concatenate([b[index] for b in seen]), values)
        snapshot.close()


@pytest.mark.parametrize("dtype", ["int64", "float64", "uint8", "bool"])
def test_snapshot_keeps_values_of_any_dtype(dtype: str) -> None:
    shard = Shard(make_spec(40, 3, dtype=dtype, initializer=initializers.zeros()), 0)
    snapshot = shard.snapshot()
    shard.assign("set", 0, np.ones((40, 3), dtype))
    (values,) = read(snapshot.blocks())
    assert values.dtype == dtype
    assert not values.any()


def test_snapshot_shows_rows_without_values() -> None:
    shard = Shard(make_spec(40, 0, initializer=initializers.zeros()), 0)
    (values,) = read(shard.snapshot().blocks())
    assert values.size == 0


def test_snapshot_keeps_only_rows_changed_before_they_are_read() -> None:
    shard = Shard(make_spec(10_000, 16), 0)
    snapshot = shard.snapshot()
    for _ in range(3):
        shard.scatter("add", ids(5, 9_000), ones(2, 16))
    assert 0 < snapshot.kept_bytes <= 2 * 512
    read(snapshot.blocks())
    shard.update(SGD, None, ones(10_000, 16))
    assert snapshot.kept_bytes <= 2 * 512


def test_closed_snapshot_keeps_no_rows_and_refuses_reads() -> None:
    shard = Shard(make_spec(1_000, 16), 0)
    snapshot = shard.snapshot()
    blocks = snapshot.blocks()
    next(blocks)
    snapshot.close()
    snapshot.close()
    shard.update(SGD, None, ones(1_000, 16))
    assert snapshot.kept_bytes == 0
    with pytest.raises(CancelledError):
        next(blocks)


def test_rows_are_kept_although_no_memory_was_prepared() -> None:
    rows = np.arange(128, dtype=np.uint32).reshape(64, 2)
    kept, before = KeptRows(rows, group=2, block=16), rows[:40].copy()
    kept.keep_range(0, 40, 0)
    assert kept.copied_bytes == before.nbytes
    rows[:] = 0
    out = rows[:40].copy()
    kept.read(0, 0, 2, 0, out.reshape(-1))
    np.testing.assert_array_equal(out, before)
    out = rows[20:40].copy()
    kept.read(0, 0, 2, 40, out.reshape(-1))
    np.testing.assert_array_equal(out, before[20:])


def test_memory_is_prepared_ahead_of_its_use() -> None:
    kept = KeptRows(np.zeros((16 * RUN, 2), np.uint32), group=1, block=RUN)
    for room in ((0, 4), (4, 8)):
        assert kept.room_to_make() == room
        kept.make_room(*room)
        kept.open_room(room[1])
    assert kept.room_to_make() is None
    kept.keep_range(0, RUN, 0)
    assert kept.lists(0, RUN) == [RUN], "the first run, whole"
    assert kept.room_to_make() == (8, 12)


def test_memory_of_freed_blocks_is_used_again() -> None:
    rows = np.zeros((4 * RUN, 2), np.uint32)
    kept = KeptRows(rows, group=1, block=RUN)
    kept.keep_range(0, 2 * RUN, 0)
    used = kept.lists(0, 2 * RUN)
    for each in used:
        kept.free(each, kept.last_of(each))
    kept.keep_range(2 * RUN, 4 * RUN, 2 * RUN)
    assert sorted(kept.lists(2 * RUN, 4 * RUN)) == sorted(used)


@given(
    width=st.sampled_from([1, 3, 16]),
    kinds=st.lists(st.integers(0, 5), max_size=6),
    wanted=st.sets(st.integers(0, 59), min_size=1),
)
def test_selected_rows_of_snapshot_show_its_moment(
    width: int, kinds: list[int], wanted: set[int]
) -> None:
    shard, chance = Shard(make_spec(80, width, cuts=(20,)), 1), np.random.default_rng(len(kinds))
    shard.update(ADAGRAD, None, ones(60, width))
    snapshot, expected = shard.snapshot(), columns(shard)
    for kind in kinds:
        change(shard, kind, chance)
    for block in snapshot.blocks():
        last = block.first + block.rows
        rows = np.array(sorted(row for row in wanted if block.first <= row < last), np.int64)
        if len(rows):
            for found, column in zip(block.columns_of(rows), expected, strict=True):
                np.testing.assert_array_equal(found, column[rows])
    snapshot.close()
