"""Splits and windows of plans in memory: complete, exact under limits, replayable."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataservice.dataset.dataset import Dataset
from dataservice.dataset.division.linearise import linearise
from dataservice.dataset.division.splits import open_window, plan_splits, transform_batch
from dataservice.dataset.expressions import col
from dataservice.dataset.stream import RunContext
from dataservice.errors import InvalidArgumentError
from dataservice.sharding import Split
from tests.planned_windows import plan_windows
from tests.unit.dataservice.dataset.checkpoint_checker import numbers, run, values

CONTEXT = RunContext()


def rows_of_windows(dataset: Dataset, epoch: int = 0) -> list[list[int]]:
    """Returns the rows of each window of an epoch."""
    linear = linearise(dataset.node)
    rows = []
    for window in plan_windows(linear, plan_splits(linear), epoch):
        arguments: Any = {"epoch": epoch, "window_index": window.index, "context": CONTEXT}
        with open_window(linear, window.splits, **arguments) as stream:
            rows.append(values(list(stream), first_column(dataset)))
    return rows


def first_column(dataset: Dataset) -> str:
    return dataset.schema.names[0]


def flat(rows: list[list[int]]) -> list[int]:
    return [value for window in rows for value in window]


@pytest.mark.parametrize("rows", [0, 1, 63, 64, 65, 1_000, 70_000])
def test_windows_together_hold_every_row_in_order(rows: int) -> None:
    assert flat(rows_of_windows(Dataset.range(rows))) == list(range(rows))
    if rows:
        plain = min(rows, -(-rows // -(-rows // 64)))
        # The last tenth is cut finer.
        assert plain <= len(rows_of_windows(Dataset.range(rows))) <= plain + 3 * (plain // 10 + 1)


def test_large_range_has_bounded_number_of_splits() -> None:
    linear = linearise(Dataset.range(10**12).node)
    first = next(linear.segments[0].source.splits())
    assert first.stop == -(-(10**12) // 65_536)
    assert len(list(Dataset.range(10**7).node.splits())) == 153  # type: ignore[attr-defined]


@given(
    st.integers(1, 120),
    st.lists(st.tuples(st.booleans(), st.integers(0, 60)), max_size=4),
    st.booleans(),
)
def test_take_and_skip_are_exact_across_windows(
    rows: int, limits: list[tuple[bool, int]], shuffled: bool
) -> None:
    dataset = Dataset.range(rows).rename({"id": "x"}).concatenate(numbers(30))
    for is_take, count in limits:
        dataset = dataset.take(count) if is_take else dataset.skip(count)
    wanted = values(run(dataset))
    if shuffled:
        dataset = dataset.shuffle(10, seed=1)
    divided = flat(rows_of_windows(dataset))
    assert Counter(divided) == Counter(wanted)
    if not shuffled:
        assert divided == wanted


def test_take_and_skip_of_one_segment_are_exact_across_windows() -> None:
    dataset = numbers(50).take(20).skip(5).concatenate(numbers(9).skip(7)).take(16)
    assert flat(rows_of_windows(dataset)) == [*range(5, 20), 7]
    assert flat(rows_of_windows(dataset)) == values(run(dataset))


def test_windows_have_same_rows_as_plan_in_every_epoch() -> None:
    dataset = (
        Dataset.range(2_000)
        .filter(col("id") % 3 == 0)
        .map(lambda c: {"x": c["id"] + 1})
        .shuffle(100, seed=2)
    )
    for epoch in (0, 1):
        rows = rows_of_windows(dataset, epoch)
        assert Counter(flat(rows)) == Counter(values(run(dataset, epoch)))
    assert rows_of_windows(dataset, 0) == rows_of_windows(dataset, 0)
    assert rows_of_windows(dataset, 0) != rows_of_windows(dataset, 1)
    fixed = Dataset.range(2_000).shuffle(100, seed=2, reshuffle_each_iteration=False)
    assert rows_of_windows(fixed, 0) == rows_of_windows(fixed, 1)


def test_window_of_permuted_splits_is_shuffled_as_whole() -> None:
    rows = rows_of_windows(Dataset.range(6_400).shuffle(400, seed=2))
    assert len(rows) == 16
    assert all(len(window) == 400 for window in rows)
    assert any(max(window) - min(window) > 2_000 for window in rows)
    assert all(window != sorted(window) for window in rows)


def test_windows_of_concatenated_sources_conform_to_first_source() -> None:
    second = Dataset.from_table(pa.table({"x": pa.array([5, 6], pa.int8())}))
    assert flat(rows_of_windows(numbers(3).concatenate(second))) == [0, 1, 2, 5, 6]


def test_window_of_splits_from_several_segments_is_refused() -> None:
    linear = linearise(numbers(3).concatenate(numbers(3)).node)
    both = plan_splits(linear)
    for splits in ([], [both[0], both[-1]], [Split(segment=7, stop=1)]):
        with pytest.raises(InvalidArgumentError, match="one segment"):
            open_window(linear, splits, epoch=0, window_index=0, context=CONTEXT)


def test_operators_after_batch_are_applied_to_each_batch() -> None:
    linear = linearise(
        numbers(9)
        .batch(4)
        .filter(col("x") > 1)
        .map(lambda c: {"n": [len(c["x"])], "s": [c["x"].sum()]})
        .node
    )
    apply = transform_batch(linear, CONTEXT)
    assert apply(pa.record_batch({"x": pa.array([1, 2, 3])}), str).to_pydict() == {
        "n": [2],
        "s": [5],
    }
    assert apply(pa.record_batch({"x": pa.array([0, 1])}), str).num_rows == 0
