"""Operators on the sequence of elements: batch, take, skip, enumerate, repeat, concatenate."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataservice.dataset.dataset import Dataset
from dataservice.dataset.division.linearise import linearise
from dataservice.dataset.division.splits import open_window, plan_splits
from dataservice.dataset.expressions import col
from dataservice.dataset.node import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, freeze_schemas
from dataservice.dataset.stream import RunContext
from dataservice.errors import FailedPreconditionError, InvalidArgumentError, SchemaError
from tests.planned_windows import plan_windows
from tests.unit.dataservice.dataset.checkpoint_checker import (
    check_positions,
    numbers,
    open_stream,
    run,
    values,
)


def rows_by_batch(dataset: Dataset) -> list[list[int]]:
    return [batch.column("x").to_pylist() for batch in run(dataset)]


@given(
    st.integers(0, 40),
    st.integers(1, 12),
    st.booleans(),
    st.lists(st.integers(1, 9), max_size=4),
)
def test_batch_cuts_rows_into_given_size(
    rows: int, size: int, drop: bool, sizes: list[int]
) -> None:
    chunk_sizes = sizes if sum(sizes) < rows else []
    dataset = numbers(rows, chunk_sizes).batch(size, drop_remainder=drop)
    kept = rows // size * size if drop else rows
    assert rows_by_batch(dataset) == [
        list(range(i, min(i + size, kept))) for i in range(0, kept, size)
    ]
    assert dataset.cardinality() == len(rows_by_batch(dataset))
    check_positions(dataset)


def test_batch_within_one_chunk_is_not_copied() -> None:
    dataset = numbers(64, [])
    source = run(dataset)[0].column(0).buffers()[1].address
    assert {batch.column(0).buffers()[1].address for batch in run(dataset.batch(16))} == {source}


@pytest.mark.parametrize("bad", [0, -1, True, 2.0, "3", None])
def test_batch_size_other_than_positive_integer_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="batch size must be a positive integer, got"):
        numbers(3).batch(bad)


def test_invalid_element_operator_arguments_are_refused_when_called() -> None:
    for call, message in [
        (lambda d: d.take(-2), r"take count \(-1: all\) must be a non-negative integer, got -2"),
        (lambda d: d.skip(-2), r"skip count \(-1: all\) must be a non-negative integer, got -2"),
        (
            lambda d: d.skip(True),
            r"skip count \(-1: all\) must be a non-negative integer, got True",
        ),
        (lambda d: d.repeat(-2), "repeat count must be a non-negative integer, got -2"),
        (
            lambda d: d.prefetch(-2),
            r"prefetch buffer_size \(-1: AUTOTUNE\) must be a non-negative integer, got -2",
        ),
        (
            lambda d: d.prefetch(True),
            r"prefetch buffer_size \(-1: AUTOTUNE\) must be a non-negative integer, got True",
        ),
        (lambda d: d.enumerate(""), "column name"),
        (lambda d: d.enumerate(5), r"write enumerate\(start=5\)"),
        (lambda d: d.enumerate(start=0.5), r"start must be an integer, got 0\.5"),
        (lambda d: d.batch(3, drop_remainder=1), "drop_remainder must be True or False, got 1"),
        (lambda d: d.concatenate([1]), "takes a Dataset"),
        (lambda d: d.concatenate(d.batch(2)), "second one alone is batched"),
    ]:
        with pytest.raises(InvalidArgumentError, match=message):
            call(numbers(3))
    assert numbers(3).batch(np.int64(2)).cardinality() == 2


def test_take_or_skip_of_minus_one_means_all_elements() -> None:
    for dataset in (numbers(7, [2, 3]), numbers(7).batch(3)):
        assert values(run(dataset.take(-1))) == values(run(dataset)) == list(range(7))
        assert dataset.take(np.int64(-1)).cardinality() == dataset.cardinality()
        assert run(dataset.skip(-1)) == []
        assert dataset.skip(-1).cardinality() == 0
    assert numbers(7).repeat().take(-1).cardinality() == INFINITE_CARDINALITY
    assert run(numbers(7).repeat().skip(-1)) == []


@given(st.integers(0, 20), st.integers(0, 25), st.integers(0, 25))
def test_take_and_skip_count_rows(rows: int, skip: int, take: int) -> None:
    dataset = numbers(rows, [2, 3] if rows > 5 else []).skip(skip).take(take)
    assert values(run(dataset)) == list(range(rows))[skip:][:take]
    assert dataset.cardinality() == len(list(range(rows))[skip:][:take])
    check_positions(dataset)


def test_take_and_skip_count_batches_after_batch() -> None:
    dataset = numbers(20).batch(3).skip(1).take(4)
    assert rows_by_batch(dataset) == [[3, 4, 5], [6, 7, 8], [9, 10, 11], [12, 13, 14]]
    assert dataset.cardinality() == 4
    check_positions(dataset)


def test_take_reads_no_rows_beyond_its_count() -> None:
    def fail_late(columns: dict[str, Any]) -> Any:
        assert columns["x"][0] < 8
        return columns

    assert values(run(numbers(20).map(fail_late).take(5))) == [0, 1, 2, 3, 4]


def test_enumerate_numbers_rows_or_batches() -> None:
    dataset = numbers(20).filter(col("x") % 2 == 1).enumerate("n")
    assert values(run(dataset), "n") == list(range(10))
    assert dataset.schema.names == ["x", "n"]
    check_positions(dataset)
    check_positions(numbers(20).enumerate("n", start=-3))
    assert values(run(numbers(4).enumerate("n", start=7)), "n") == [7, 8, 9, 10]
    batched = numbers(5).batch(2).enumerate("n", start=-1)
    assert values(run(batched), "n") == [-1, -1, 0, 0, 1]
    check_positions(batched)
    with pytest.raises(SchemaError, match="column 'x' already"):
        _ = numbers(5).enumerate("x").schema


def test_repeat_yields_given_number_of_passes() -> None:
    assert values(run(numbers(3).repeat(3))) == [0, 1, 2] * 3
    assert run(numbers(3).repeat(0)) == []
    assert values(run(numbers(3).repeat().take(7))) == [0, 1, 2, 0, 1, 2, 0]
    assert rows_by_batch(numbers(3).batch(2).repeat(2)) == [[0, 1], [2], [0, 1], [2]]
    assert rows_by_batch(numbers(3).repeat(2).batch(4)) == [[0, 1, 2, 0], [1, 2]]
    for dataset in (
        numbers(20).repeat(3),
        numbers(20).shuffle(6, seed=1).repeat(3).batch(7),
        numbers(5).repeat(2).repeat(2),
    ):
        check_positions(dataset)
    check_positions(numbers(7).repeat().batch(3), limit=12)


def test_repeat_of_empty_dataset_ends() -> None:
    assert run(Dataset.range(0).repeat()) == []
    assert run(numbers(5).filter(col("x") > 9).repeat()) == []


def test_repeat_reshuffles_each_pass_differently_from_other_epochs() -> None:
    dataset = numbers(50).shuffle(50, seed=1).repeat(2)
    passes = []
    for epoch in (0, 1):
        rows = values(run(dataset, epoch))
        passes += [tuple(rows[:50]), tuple(rows[50:])]
    assert len(set(passes)) == 4
    assert all(sorted(rows) == list(range(50)) for rows in passes)


@pytest.mark.parametrize(
    ("dataset", "wanted"),
    [
        (Dataset.range(10).repeat(), INFINITE_CARDINALITY),
        (Dataset.range(10).repeat(-1), INFINITE_CARDINALITY),
        (Dataset.range(0).repeat(), 0),
        (Dataset.range(10).repeat(3), 30),
        (Dataset.range(10).repeat(sys.maxsize), INFINITE_CARDINALITY),
        (Dataset.range(10).repeat().take(4), 4),
        (Dataset.range(10).repeat().skip(4).batch(3), INFINITE_CARDINALITY),
        (Dataset.range(10).filter(col("id") > 1).repeat(2), UNKNOWN_CARDINALITY),
        (Dataset.range(10).concatenate(Dataset.range(5)), 15),
        (Dataset.range(10).concatenate(Dataset.range(5).repeat()), INFINITE_CARDINALITY),
        (Dataset.range(10).concatenate(Dataset.range(5).filter(col("id") > 0)), -2),
        (Dataset.range(10).shuffle(3).prefetch(1).enumerate(), 10),
        (Dataset.range(0, 10, 3), 4),
        (Dataset.range(5, 0, -2), 3),
    ],
)
def test_cardinality_follows_operators(dataset: Dataset, wanted: int) -> None:
    assert dataset.cardinality() == wanted
    if wanted >= 0:
        assert sum(batch.num_rows for batch in run(dataset)) == wanted


def test_concatenate_takes_schema_of_first_dataset() -> None:
    second = Dataset.from_table(
        pa.table({"y": pa.array([1.0], pa.float32()), "x": pa.array([7], pa.int8())})
    )
    first = numbers(5).with_column("y", col("x") * 0.5)
    dataset = first.concatenate(second)
    assert values(run(dataset)) == [0, 1, 2, 3, 4, 7]
    assert run(dataset)[-1].schema == run(dataset)[0].schema == dataset.schema
    check_positions(dataset)
    check_positions(numbers(20).concatenate(numbers(9)).batch(4))
    with pytest.raises(SchemaError, match=r"given to concatenate.*missing"):
        run(first.concatenate(numbers(3)))
    with pytest.raises(SchemaError, match="given to concatenate"):
        _ = first.concatenate(numbers(3)).schema


@pytest.mark.parametrize("nulls", [0, 2])
def test_concatenate_takes_type_missing_in_first_from_later_dataset(nulls: int) -> None:
    rows = {"x": range(2), "y": [[1], [2]]}
    lacking = pa.table({"x": pa.nulls(nulls), "y": pa.nulls(nulls, pa.list_(pa.null()))})
    tables = [lacking, lacking.slice(0, 0), pa.table({name: list(v) for name, v in rows.items()})]
    first, second, third = map(Dataset.from_table, tables)
    dataset = first.concatenate(second).concatenate(third)
    assert dataset.schema == tables[2].schema
    assert {batch.schema for batch in run(dataset)} == {dataset.schema}
    assert values(run(dataset)) == [None] * nulls + [0, 1]
    check_positions(dataset)
    assert {batch.schema for batch in in_windows(dataset)} == {dataset.schema}


def test_windows_of_null_type_file_column_have_type_of_later_dataset(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "lacking.parquet")
    pq.write_table(pa.table({"x": pa.nulls(2), "y": [1, 2]}), path)
    later = Dataset.from_table(pa.table({"x": [5], "y": [3]}))
    dataset = Dataset.from_parquet(path).concatenate(later)
    rows = pa.Table.from_batches(in_windows(dataset))
    assert rows.to_pydict() == {"x": [None, None, 5], "y": [1, 2, 3]}


def in_windows(dataset: Dataset) -> list[pa.RecordBatch]:
    """Returns the rows window by window, as data workers make them."""
    linear = linearise(freeze_schemas(dataset.node))
    opened: list[pa.RecordBatch] = []
    for window in plan_windows(linear, plan_splits(linear), 0):
        opened += open_window(
            linear, window.splits, epoch=0, window_index=window.index, context=RunContext()
        )
    return opened


def test_concatenate_reads_first_dataset_once() -> None:
    runs: list[int] = []

    def generate() -> Iterator[dict[str, Any]]:
        runs.append(1)
        yield from ({"x": x} for x in range(3))

    schema = pa.schema([("x", pa.int64())])
    first = Dataset.from_generator(generate, schema).map(lambda c: {"x": c["x"] * 2.0})
    assert values(run(first.concatenate(numbers(2)))) == [0.0, 2.0, 4.0, 0.0, 1.0]
    assert len(runs) == 1
    assert values(run(first.filter(col("x") < 0).concatenate(numbers(2)))) == [0.0, 1.0]


def test_position_in_vanished_rows_is_refused() -> None:
    with open_stream(numbers(20, []).batch(8)) as stream:
        next(stream)
        state = stream.state()
    with open_stream(numbers(5, []).batch(8)) as stream:
        stream.restore(state)
        with pytest.raises(FailedPreconditionError, match="changed since it was saved"):
            next(stream)
