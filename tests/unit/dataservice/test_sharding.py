"""Splits into windows: complete, within segments, permuted by key alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataservice.errors import InvalidArgumentError
from dataservice.sharding import (
    Split,
    epoch_of,
    order_key,
    tail_target_rows,
    total_rows,
    window_target_bytes,
    window_target_rows,
)
from dataservice.split_table import SplitTable
from dataservice.windowing import make_windows, permutation


def splits(*rows: int | None, segment: int = 0) -> list[Split]:
    return [Split(segment=segment, start=i, rows=count) for i, count in enumerate(rows)]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.one_of(st.none(), st.integers(0, 50))), max_size=30),
    st.one_of(st.none(), st.integers()),
    st.integers(0, 3),
    st.integers(1, 60),
)
def test_windows_hold_every_split_once_within_its_segment(
    shapes: list[tuple[int, int | None]], seed: int | None, epoch: int, target: int
) -> None:
    planned = [Split(segment=s, start=i, rows=rows) for i, (s, rows) in enumerate(shapes)]
    windows = make_windows(planned, epoch=epoch, shuffle_seed=seed, target_rows=target)
    held = [split for window in windows for split in window.splits]
    assert sorted(held, key=lambda s: s.start) == planned
    assert [window.index for window in windows] == list(range(len(windows)))
    for window in windows:
        assert len({split.segment for split in window.splits}) == 1
        assert window.rows == total_rows(window.splits)
        if window.rows is None:
            assert len(window.splits) == 1
        else:
            # Without its last split a window is below the target.
            assert sum(split.rows or 0 for split in window.splits[:-1]) < target


def test_windows_without_seed_keep_order_of_splits() -> None:
    windows = make_windows(splits(5, 5, 5, 5), epoch=3, shuffle_seed=None, target_rows=10)
    assert [[s.start for s in w.splits] for w in windows] == [[0, 1], [2, 3]]


def test_seeded_window_order_depends_on_seed_and_epoch_only() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        windows = make_windows(splits(*[1] * 50), epoch=epoch, shuffle_seed=seed, target_rows=1)
        return [window.splits[0].start for window in windows]

    assert order(1, 0) == order(1, 0)
    assert sorted(order(1, 0)) == list(range(50))
    assert len({tuple(order(seed, epoch)) for seed in (1, 2) for epoch in (0, 1)}) == 4


def test_the_permutation_is_fixed_for_ever() -> None:
    assert permutation(8, 0).tolist() == permutation(8, 1 << 64).tolist()
    assert permutation(8, order_key(1, 2)).tolist() == [6, 2, 4, 3, 5, 0, 1, 7]


def test_permutations_are_uniform() -> None:
    counts = [0] * 24
    orders = [tuple(permutation(4, order_key(7, key)).tolist()) for key in range(24_000)]
    ranks = {order: rank for rank, order in enumerate(sorted(set(orders)))}
    for order in orders:
        counts[ranks[order]] += 1
    assert len(ranks) == 24
    assert min(counts) > 850
    assert max(counts) < 1_150


def test_order_key_differs_for_different_parts() -> None:
    keys = {order_key(a, b) for a in range(-5, 5) for b in range(-5, 5)}
    assert len(keys) == 100
    assert order_key(1, 2) != order_key(2, 1)


def test_repeats_of_different_runs_have_different_epochs() -> None:
    finite = [epoch_of(run, repeat, 3) for run in range(4) for repeat in range(3)]
    assert finite == list(range(12))
    endless = {epoch_of(run, repeat, None) for run in range(4) for repeat in range(100)}
    assert len(endless) == 400


@pytest.mark.parametrize(
    ("total", "buffer", "wanted"),
    [
        (0, 0, 1),
        (10, 0, 1),
        (1_000, 0, 16),
        (10_000_000, 0, 65_536),
        (1_000, 50, 50),
        (1_000, 1_000_000, 63),
        (10_000_000, 100_000, 100_000),
        (None, 0, 65_536),
        (None, 100_000, 100_000),
    ],
)
def test_window_target_rows_depend_on_total_and_shuffle_buffer(
    total: int | None, buffer: int, wanted: int
) -> None:
    assert window_target_rows(total, buffer) == wanted


def ranges(*rows: int) -> list[Split]:
    firsts = [sum(rows[:index]) for index in range(len(rows))]
    return [
        Split(start=first, stop=first + count, rows=count)
        for first, count in zip(firsts, rows, strict=True)
    ]


@given(
    st.lists(st.integers(0, 50), max_size=40),
    st.one_of(st.none(), st.integers()),
    st.integers(1, 60),
    st.integers(1, 60),
)
def test_windows_with_finer_tail_hold_every_row_once(
    rows: list[int], seed: int | None, target: int, tail: int
) -> None:
    windows = make_windows(
        ranges(*rows), epoch=1, shuffle_seed=seed, target_rows=target, tail_rows=min(tail, target)
    )
    held = [row for w in windows for s in w.splits for row in range(s.start, s.stop)]
    assert sorted(held) == list(range(sum(rows)))
    assert all(split.rows == split.stop - split.start for w in windows for split in w.splits)


def test_last_tenth_of_rows_is_cut_finer() -> None:
    windows = make_windows(
        ranges(*[100] * 10), epoch=0, shuffle_seed=None, target_rows=100, tail_rows=25
    )
    assert [w.rows for w in windows] == [100] * 9 + [25] * 4


def test_row_groups_are_not_cut_but_share_smaller_windows() -> None:
    groups = [Split(path="a", row_groups=(i,), stop=10, rows=10) for i in range(100)]
    windows = make_windows(groups, epoch=0, shuffle_seed=None, target_rows=40, tail_rows=10)
    assert [w.rows for w in windows[-10:]] == [10] * 10
    assert {w.rows for w in windows[:22]} == {40}


@pytest.mark.parametrize(("target", "buffer", "wanted"), [(100, 0, 25), (5, 0, 2), (100, 70, 70)])
def test_tail_windows_are_never_smaller_than_shuffle_buffer(
    target: int, buffer: int, wanted: int
) -> None:
    assert tail_target_rows(target, buffer) == wanted


def files(count: int, size_bytes: int) -> list[Split]:
    return [Split(path=f"{i}.csv", size_bytes=size_bytes) for i in range(count)]


@pytest.mark.parametrize(
    ("count", "size_bytes", "most"),
    [(10, 100, 1), (64, 100, 1), (640, 100, 10), (100_000, 100, 64), (10_000, 64 << 20, 1)],
)
def test_small_files_share_windows(count: int, size_bytes: int, most: int) -> None:
    planned = files(count, size_bytes)
    windows = make_windows(
        planned,
        epoch=0,
        shuffle_seed=None,
        target_rows=65_536,
        target_bytes=window_target_bytes(SplitTable.of(planned).total_unknown_bytes()),
    )
    assert [split for w in windows for split in w.splits] == planned
    assert max(len(w.splits) for w in windows) == most


def test_source_of_unknown_size_has_its_own_window() -> None:
    planned = [Split(), *files(3, 1)]
    windows = make_windows(
        planned,
        epoch=0,
        shuffle_seed=None,
        target_rows=9,
        target_bytes=window_target_bytes(SplitTable.of(planned).total_unknown_bytes()),
    )
    assert len(windows) == 4


def test_older_plan_without_byte_target_keeps_its_windows() -> None:
    planned = [*files(4, 1), *ranges(5, 5, 5, 0)]
    windows = make_windows(planned, epoch=0, shuffle_seed=None, target_rows=10)
    assert [len(w.splits) for w in windows] == [1, 1, 1, 1, 2, 2]


def test_window_target_of_zero_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="got 0"):
        make_windows([], epoch=0, shuffle_seed=None, target_rows=0)
