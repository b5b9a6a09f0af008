"""Interleave and grouping in a divided plan: per window, every row once, replayed from any row."""

from __future__ import annotations

import itertools
import os
import pathlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataservice.dataset.dataset import Dataset
from dataservice.dataset.division.linearise import linearise
from dataservice.dataset.division.splits import plan_splits
from dataservice.dataset.expressions import col
from dataservice.dataset.node import freeze_schemas
from dataservice.dataset.plan import encode_plan
from dataservice.dispatcher.planning import plan_snapshot
from dataservice.errors import SourceError
from dataservice.sharding import WINDOW_BYTES, Split, divided, window_target_elements
from dataservice.split_table import SplitTable
from dataservice.worker.leases import Lease
from dataservice.worker.task import Pipeline
from tests.planned_windows import plan_windows
from tests.unit.dataservice.dataset.checkpoint_checker import numbers, run, values
from tests.unit.dataservice.dataset.test_interleave import by_definition


class DividedDataset:
    """A dataset as a dispatcher and a worker see it."""

    def __init__(self, dataset: Dataset) -> None:
        plan = encode_plan(freeze_schemas(dataset.node))
        self.pipeline = Pipeline(plan, "AUTO", allow_functions=True)
        linear = linearise(dataset.node)
        self.windows = plan_windows(linear, plan_splits(linear), 0)

    def batches(self, window: int, start_row: int = 0) -> list[tuple[pa.RecordBatch, int]]:
        lease = Lease(window, 0, start_row, 0, window, self.windows[window].splits)
        return list(self.pipeline.run_window(lease, lambda: False))

    def elements(self, window: int) -> Iterator[pa.RecordBatch]:
        """Returns a window's elements as a reader gets them; checks that spans are in order."""
        rebatcher = self.pipeline.rebatcher(run=8)
        at = 0
        for batch, first_row in self.batches(window):
            for element in rebatcher.add(batch, window, 0, first_row):
                (span,) = element.spans
                assert (span.first_row, span.rows) == (at, element.batch.num_rows)
                assert not rebatcher.holds_anything
                at = span.end_row
                yield element.batch
        (end,) = (*rebatcher.end_window(window, 0, at), *rebatcher.flush())
        assert (end.batch, end.spans[0].final, end.spans[0].rows) == (None, True, 0)

    def rows(self, window: int, column: str) -> list[Any]:
        return values([batch for batch, _ in self.batches(window)], column)

    def all_batches(self) -> list[pa.RecordBatch]:
        return [batch for window in self.windows for batch, _ in self.batches(window.index)]

    def check_replays(self, column: str) -> None:
        """Asserts that a window read from any row on gives the rest of the whole window."""
        for window in self.windows[:2]:
            whole = self.rows(window.index, column)
            for row in {*range(0, len(whole), 1 + len(whole) // 5), len(whole)}:
                rest = self.batches(window.index, row)
                assert values([batch for batch, _ in rest], column) == whole[row:]
                assert not rest or rest[0][1] == row


def part(row: dict[str, Any]) -> Dataset:
    return Dataset.range(100 * row["x"], 100 * row["x"] + row["x"] % 7).rename({"id": "y"})


@settings(max_examples=10)
@given(st.integers(1, 90), st.integers(1, 5), st.integers(1, 3), st.booleans())
def test_window_interleaves_its_elements_as_defined(
    count: int, cycle: int, block: int, shuffled: bool
) -> None:
    source = numbers(count, [])
    source = source.shuffle(1_000, seed=3) if shuffled else source
    dataset = source.interleave(part, cycle, block)
    service = DividedDataset(dataset)
    assert Counter(values(service.all_batches(), "y")) == Counter(values(run(dataset), "y"))
    for window in service.windows if not shuffled else ():
        elements = [x for split in window.splits for x in range(split.start, split.stop)]
        rows = service.rows(window.index, "y")
        expected = by_definition([x % 7 for x in elements], cycle, block)
        assert rows == [100 * elements[row // 100] + row % 100 for row in expected]
    service.check_replays("y")


def test_interleaved_shuffle_differs_between_windows_and_is_replayed() -> None:
    shuffled = Dataset.range(64).interleave(lambda _r: Dataset.range(20).shuffle(20), 2)
    service = DividedDataset(shuffled)
    assert len({tuple(service.rows(n, "id")) for n in range(8)}) == 8
    service.check_replays("id")


def test_interleaved_files_are_divided_and_refused_once_changed(tmp_path: pathlib.Path) -> None:
    for index in range(32):
        table = pa.table({"y": range(100 * index, 100 * index + 9)})
        pq.write_table(table, tmp_path / f"{index:02}.parquet")
    names = Dataset.list_files(str(tmp_path / "*.parquet"), shuffle=True, seed=1)
    dataset = names.interleave(lambda row: Dataset.from_parquet(row), 2)
    service = DividedDataset(dataset)
    assert len(service.windows) == 16
    assert sorted(values(service.all_batches(), "y")) == sorted(values(run(dataset), "y"))
    service.check_replays("y")
    orders = [service.rows(n, "y") for n in range(16)]
    assert all(abs(a - b) > 9 for order in orders for a, b in itertools.pairwise(order))
    changed = service.windows[3].splits[1].path
    os.utime(str(changed), ns=(1, 1))
    with pytest.raises(SourceError, match=r"has changed since it was planned"):
        service.batches(3)


@pytest.mark.parametrize(
    ("count", "size_bytes", "cycle", "windows", "target"),
    [
        (0, 0, 4, 64, 1),
        (8, 1 << 30, 4, 64, 1),  # as many windows as there are files
        (1_000, 1 << 30, 4, 64, 4),
        (1_000, 1 << 30, 100, 64, 63),
        (1_000, 1_000, 4, 64, 16),
        (1_000, 1_000, 4, 4, WINDOW_BYTES // (1_000 + (128 << 10))),
        (1_000, 0, 4, 64, 4),
        (1_000_000, 0, 4, 64, 245),
    ],
)
def test_number_of_elements_per_window_depends_on_size_and_cycle(
    count: int, size_bytes: int, cycle: int, windows: int, target: int
) -> None:
    splits = [Split(path="p", stop=1, rows=1, size_bytes=size_bytes)] * count
    table = SplitTable.of(splits)
    size_bytes = table.total_bytes() if table.has_sizes() else None
    assert window_target_elements(table.total_rows(), size_bytes, cycle, windows) == target


def test_splits_are_divided_into_splits_of_elements() -> None:
    assert window_target_elements(None, None, 4, 64) is None
    whole = [Split(start=3, stop=9, rows=6)]
    assert [(s.start, s.stop, s.rows) for s in divided(whole, 4)] == [
        (x, x + 1, 1) for x in range(3, 9)
    ]
    group = [Split(path="p", row_groups=(0,), start=3, stop=9, rows=6), Split(path="q")]
    assert [(s.start, s.stop) for s in divided(group, 4)] == [(3, 7), (7, 9), (0, 0)]
    many = divided([Split(stop=200_000, rows=200_000)], 49)
    assert (len(many), many[0].rows) == (50_000, 4)


def sequences(count: int) -> Dataset:
    table = pa.table({"x": range(count), "n": [[1] * (i * 7 % 9 + 1) for i in range(count)]})
    return Dataset.from_table(table)


@settings(max_examples=10)
@given(st.integers(0, 300), st.booleans())
def test_buckets_fill_within_window(count: int, shuffled: bool) -> None:
    dataset = sequences(count).shuffle(50, seed=1) if shuffled else sequences(count)
    service = DividedDataset(dataset.bucket_by_sequence_length("n", [4, 7], [4, 3, 2]))
    assert sorted(values(service.all_batches())) == list(range(count))
    for window in service.windows:
        short: Counter[int] = Counter()
        for element in service.elements(window.index):
            bucket = {(x * 7 % 9 + 1) // 4 if x * 7 % 9 + 1 < 7 else 2 for x in values([element])}
            (found,) = bucket
            assert element.num_rows <= [4, 3, 2][found]
            assert len({len(n) for n in element.column("n").to_pylist()}) == 1
            short[found] += element.num_rows < [4, 3, 2][found]
        assert all(times <= 1 for times in short.values())
    service.check_replays("x")


def test_windows_are_large_enough_for_groups() -> None:
    def sizes(dataset: Dataset) -> set[int | None]:
        return {window.rows for window in DividedDataset(dataset).windows}

    few = numbers(1_000, []).bucket_by_sequence_length("x", [4], [8, 8])
    assert sizes(few) == {256, 232}, "16 batches for each bucket"
    four = sizes(numbers(100, []).group_by_window("x", window_size=50))
    assert four == {26, 22}, "4 windows at least, of whole splits"
    assert len(sizes(numbers(100, []))) > 1
    grouped = linearise(few.group_by_window(lambda c: c["x"][:1], window_size=3).node)
    assert grouped.group_rows == 3 * 256


def test_operators_after_grouping_are_applied_within_windows() -> None:
    dataset = (
        numbers(200, [])
        .group_by_window(lambda c: c["x"] % 3, lambda _key, window: window.batch(4), window_size=8)
        .map(lambda c: {"x": c["x"] * 10})
        .shuffle(3, seed=2)
        .filter(lambda c: c["x"] % 20 == 0)
    )
    service = DividedDataset(dataset)
    elements = [e for window in service.windows for e in service.elements(window.index)]
    assert sorted(values(elements)) == list(range(0, 2_000, 20))
    assert all(len({x // 10 % 3 for x in values([element])}) == 1 for element in elements)
    rows = DividedDataset(dataset.unbatch().batch(7))
    assert rows.pipeline.batch_size == 7
    assert sorted(values(rows.all_batches())) == sorted(values(elements))


def test_snapshot_of_grouped_dataset_is_not_divided() -> None:
    grouped = numbers(9, []).group_by_window("x", window_size=2)
    assert plan_snapshot(encode_plan(freeze_schemas(grouped.node))) is None
    interleaved = numbers(9, []).interleave(part)
    assert plan_snapshot(encode_plan(freeze_schemas(interleaved.node))) is not None


def test_snapshot_of_operators_behind_batch_is_divided_unless_they_see_batches() -> None:
    batches = Dataset.range(9).batch(2)
    divided = batches.with_column("y", col("id") * 2).select(["y"])
    assert plan_snapshot(encode_plan(freeze_schemas(divided.node))) is not None
    for seen in (batches.map(dict), batches.filter(col("id") > 3), batches.repeat(2)):
        assert plan_snapshot(encode_plan(freeze_schemas(seen.node))) is None
