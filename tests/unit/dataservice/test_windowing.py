"""Windows of packed splits: the same as when splits are cut one by one, for any splits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataservice import windowing
from dataservice.sharding import (
    FILE_COST_BYTES,
    GOLDEN_GAMMA,
    MASK64,
    TAIL_PARTS,
    TAIL_SHARE,
    Split,
    Window,
    order_key,
    splitmix64,
    total_rows,
)
from dataservice.split_table import SplitTable
from dataservice.windowing import Windows, make_windows, permutation

T = TypeVar("T")
PLAIN = st.builds(
    Split,
    segment=st.integers(0, 2),
    path=st.none() | st.sampled_from(["a.csv", "b.csv", "\udcff.csv", "\u00fc"]),
    row_groups=st.none() | st.lists(st.integers(0, 9), max_size=3).map(tuple),
    start=st.integers(0, 99),
    stop=st.integers(0, 1 << 40),
    rows=st.none() | st.integers(0, 99),
    size_bytes=st.integers(0, 1 << 40),
    version=st.sampled_from(["", "17", "etag-\u00e9"]),
)
RANGES = st.builds(
    lambda segment, start, rows: Split(segment=segment, start=start, stop=start + rows, rows=rows),
    st.integers(0, 2),
    st.integers(0, 99),
    st.integers(0, 200),
)
FILES = st.builds(
    lambda path, size_bytes: Split(path=path, size_bytes=size_bytes),
    st.sampled_from(["a.csv", "b.csv"]),
    st.integers(0, FILE_COST_BYTES),
)


def permuted(items: Iterable[T], key: int) -> list[T]:
    """Returns `items` in the order that `permutation` has to give."""
    result = list(items)
    for step, last in enumerate(range(len(result) - 1, 0, -1)):
        other = (splitmix64((key + step * GOLDEN_GAMMA) & MASK64) * (last + 1)) >> 64
        result[last], result[other] = result[other], result[last]
    return result


def cut_plainly(
    splits: Sequence[Split],
    *,
    epoch: int,
    shuffle_seed: int | None,
    target_rows: int,
    tail_rows: int,
    target_bytes: int,
) -> list[Window]:
    """Returns what `make_windows` has to return."""
    segments: dict[int, list[Split]] = {}
    for split in splits:
        segments.setdefault(split.segment, []).append(split)
    cutter = _PlainCutter(splits, target_rows, tail_rows, target_bytes)
    for segment in sorted(segments):
        ordered = segments[segment]
        if shuffle_seed is not None:
            ordered = permuted(ordered, order_key(shuffle_seed, epoch, segment))
        cutter.cut(ordered)
    return [
        Window(index=index, splits=tuple(group), rows=total_rows(group))
        for index, group in enumerate(cutter.groups)
    ]


class _PlainCutter:
    """Cuts the same windows, one split after the other."""

    def __init__(
        self, splits: Sequence[Split], target_rows: int, tail_rows: int, target_bytes: int
    ) -> None:
        self.groups: list[list[Split]] = []
        self._target_rows = target_rows
        self._tail_rows = tail_rows
        self._target_bytes = target_bytes
        self._rows_left = sum(split.rows or 0 for split in splits)
        self._tail_begins = self._rows_left // TAIL_SHARE if tail_rows else -1

    def cut(self, splits: Sequence[Split]) -> None:
        """Adds the groups of one segment."""
        weight, in_bytes = 0, None
        for split in splits:
            for piece in self._pieces(split):
                target = self._target_of(piece)
                if weight >= target or in_bytes is not (piece.rows is None):
                    self.groups.append([])
                    weight, in_bytes = 0, piece.rows is None
                self.groups[-1].append(piece)
                weight += self._weight(piece)
                self._rows_left -= piece.rows or 0

    def _target_of(self, split: Split) -> int:
        if split.rows is None:
            # A split without a path is a source of its own, such as a generator.
            return 0 if split.path is None else self._target_bytes
        return self._tail_rows if self._is_tail() else self._target_rows

    def _weight(self, split: Split) -> int:
        return split.size_bytes + FILE_COST_BYTES if split.rows is None else split.rows

    def _is_tail(self) -> bool:
        return self._rows_left <= self._tail_begins

    def _pieces(self, split: Split) -> Iterable[Split]:
        """Returns the split, or its parts if it is an index range too large for the tail."""
        is_range = split.path is None and split.rows == split.stop - split.start
        if not is_range or not self._is_tail():
            return (split,)
        step = self._tail_rows
        firsts = range(split.start, split.stop, step) or (split.start,)
        return [
            split._replace(start=first, stop=stop, rows=stop - first)
            for first in firsts
            for stop in (min(first + step, split.stop),)
        ]


@given(
    st.lists(PLAIN | RANGES, max_size=30) | st.lists(RANGES, max_size=60) | st.lists(FILES),
    st.none() | st.integers(),
    st.integers(1, 300),
    st.booleans(),
    st.sampled_from([0, 1, FILE_COST_BYTES, 3 * FILE_COST_BYTES + 7]),
)
def test_windows_equal_those_of_plain_division(
    splits: list[Split], seed: int | None, target_rows: int, has_tail: bool, target_bytes: int
) -> None:
    arguments: dict[str, Any] = {
        "epoch": 3,
        "shuffle_seed": seed,
        "target_rows": target_rows,
        "tail_rows": -(-target_rows // TAIL_PARTS) if has_tail else 0,
        "target_bytes": target_bytes,
    }
    expected = cut_plainly(splits, **arguments)
    assert list(make_windows(splits, **arguments)) == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windowing, "_FEW", -1)
        assert list(make_windows(splits, **arguments)) == expected


@given(st.integers(0, 200), st.integers())
def test_array_permutation_equals_sequence_permutation(count: int, key: int) -> None:
    assert permutation(count, key).tolist() == permuted(range(count), key)


def test_large_array_permutation_equals_sequence_permutation() -> None:
    assert permutation(70_000, 5).tolist() == permuted(range(70_000), 5)


@given(st.lists(PLAIN, max_size=30))
def test_split_table_holds_its_splits_and_survives_encoding(splits: list[Split]) -> None:
    table = SplitTable.of(iter(splits))
    again = SplitTable.decoded(table.encoded())
    assert (list(table), list(again), len(table)) == (splits, splits, len(splits))
    assert table == splits
    assert table == again
    assert table[1:-1] == tuple(splits[1:-1])
    assert [table[place] for place in range(-len(splits), len(splits))] == [*splits, *splits]


@given(st.lists(st.lists(PLAIN, max_size=9), max_size=4))
def test_joined_split_tables_hold_all_splits(parts: list[list[Split]]) -> None:
    tables = [SplitTable.of(part).in_segment(index) for index, part in enumerate(parts)]
    joined = SplitTable.joined(tables)
    expected = [s._replace(segment=index) for index, part in enumerate(parts) for s in part]
    assert list(joined) == expected
    assert SplitTable.decoded(joined.encoded()) == expected
    assert joined.total_rows() == total_rows(expected)
    unknown = sum(read_bytes(s) + FILE_COST_BYTES for s in expected if s.rows is None)
    assert joined.total_unknown_bytes() == unknown


def read_bytes(split: Split) -> int:
    """Returns the bytes of a split of unknown rows: those of its lines, or of the whole file."""
    are_lines = split.row_groups is None and split.stop > 0
    return split.stop - split.start if are_lines else split.size_bytes


@pytest.mark.parametrize("groups", [[(0,), (0,)], [None, (0,), (0,)], [(1, 1), None, ()]])
def test_repeated_row_groups_survive_split_table_encoding(
    groups: list[tuple[int, ...] | None],
) -> None:
    splits = [Split(path="a.parquet", row_groups=some) for some in groups]
    assert list(SplitTable.decoded(SplitTable.of(splits).encoded())) == splits


def test_split_tables_with_other_splits_are_unequal() -> None:
    table = SplitTable.of([Split(path="a"), Split(path="b")])
    assert table != SplitTable.of([Split(path="a"), Split(path="c")])
    assert table != SplitTable.of([Split(path="a")])
    assert table != 7


def test_malformed_split_table_bytes_are_refused() -> None:
    encoded = SplitTable.of([Split(path="a"), Split(path="b")]).encoded()
    with pytest.raises(ValueError, match="bytes instead of"):
        SplitTable.decoded(encoded + b"x")


def test_split_table_of_many_files_takes_few_bytes() -> None:
    count = 100_000
    table = SplitTable.of_files((f"day/{n:07}.csv", 10, f"{n}") for n in range(count))
    assert len(table.encoded()) < 40 * count
    assert table[count - 1] == Split(path="day/0099999.csv", size_bytes=10, version="99999")
    windows = make_windows(
        table, epoch=0, shuffle_seed=7, target_rows=1, target_bytes=64 * FILE_COST_BYTES
    )
    assert len(windows) == -(-count // 64)
    assert sorted(windows.order.tolist()) == list(range(count))
    assert windows[len(windows) - 1].index == len(windows) - 1


def test_tail_of_huge_range_has_bounded_number_of_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = 2**63 - 1
    step = -(-rows // 1000)
    splits = [
        Split(start=first, stop=min(first + step, rows), rows=min(step, rows - first))
        for first in range(0, rows, step)
    ]

    def cut() -> Windows:
        return make_windows(splits, epoch=0, shuffle_seed=3, target_rows=1 << 17, tail_rows=1 << 14)

    assert 60_000 < len(cut()) < 70_000
    # Few enough windows to look at each.
    monkeypatch.setattr(windowing, "_MAX_TAIL_PIECES", 1_000)
    windows = cut()
    assert 1_000 < len(windows) < 2_000
    assert sum(window.rows or 0 for window in windows) == rows
