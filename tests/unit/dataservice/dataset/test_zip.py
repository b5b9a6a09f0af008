"""Zip: alignment, the shortest input, positions, and its division among workers."""

from __future__ import annotations

import pathlib
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataservice.dataset.dataset import Dataset
from dataservice.dataset.division.linearise import linearise
from dataservice.dataset.division.splits import open_window, plan_splits
from dataservice.dataset.expressions import col
from dataservice.dataset.node import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from dataservice.dataset.plan import decode_plan, encode_plan
from dataservice.dataset.stream import RunContext
from dataservice.errors import InvalidArgumentError, SchemaError, SourceError, UnsplittableError
from tests.planned_windows import plan_windows
from tests.unit.dataservice.dataset.checkpoint_checker import check_positions, numbers, run, values


def named(count: int, name: str, sizes: list[int] | None = None) -> Dataset:
    return numbers(count, sizes).rename({"x": name})


@given(st.integers(0, 25), st.integers(0, 25), st.lists(st.integers(1, 5), max_size=4))
def test_zip_joins_rows_up_to_shortest_input(first: int, second: int, sizes: list[int]) -> None:
    a = named(first, "a", [2, 2] if first > 4 else [])
    b = named(second, "b", sizes if sum(sizes) < second else [])
    dataset = a.zip(b)
    rows = min(first, second)
    assert values(run(dataset), "a") == values(run(dataset), "b") == list(range(rows))
    assert dataset.cardinality() == rows
    assert dataset.schema.names == ["a", "b"]
    check_positions(dataset)


def test_zip_takes_datasets_as_arguments_tuple_or_method() -> None:
    a, b, c = named(20, "a"), named(20, "b", [7]), named(12, "c", [])
    for dataset in (Dataset.zip(a, b, c), Dataset.zip((a, b, c)), a.zip(b, c), a.zip(b).zip(c)):
        assert [values(run(dataset), n) for n in "abc"] == [list(range(12))] * 3
        check_positions(dataset.batch(5))
    shuffled = a.shuffle(6, seed=1).zip(b.repeat())
    assert sorted(values(run(shuffled), "a")) == list(range(20))
    check_positions(shuffled)


def test_zip_of_batches_requires_equal_sizes() -> None:
    dataset = named(10, "a").batch(4).zip(named(9, "b").batch(4).take(2))
    assert [batch.num_rows for batch in run(dataset)] == [4, 4]
    check_positions(dataset)
    assert dataset.cardinality() == 2
    with pytest.raises(SchemaError, match=r"batches that belong together have \[4, 3\] rows"):
        run(named(10, "a").batch(4).zip(named(10, "b").batch(3)))
    with pytest.raises(SchemaError, match=r"have \[2, 1\] rows.*drop_remainder=True"):
        run(named(10, "a").batch(4).zip(named(9, "b").batch(4)))


@pytest.mark.parametrize(
    ("dataset", "wanted"),
    [
        (named(3, "a").zip(named(5, "b").repeat()), 3),
        (named(3, "a").repeat().zip(named(5, "b").repeat()), INFINITE_CARDINALITY),
        (named(3, "a").zip(named(5, "b").filter(col("b") > 1)), UNKNOWN_CARDINALITY),
        (named(0, "a", []).zip(named(5, "b").filter(col("b") > 1)), 0),
    ],
)
def test_cardinality_of_zip_is_that_of_shortest_input(dataset: Dataset, wanted: int) -> None:
    assert dataset.cardinality() == wanted


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: numbers(3).zip(numbers(3)).schema, SchemaError, r"the columns \['x'\]; rename"),
        (lambda: run(numbers(3).zip(numbers(3))), SchemaError, r"the columns \['x'\]; rename"),
        (lambda: numbers(3).zip(3), InvalidArgumentError, "zip takes Datasets, got 3"),
        (lambda: Dataset.zip(()), InvalidArgumentError, "several datasets"),
        (lambda: numbers(3).zip(numbers(3).batch(2)), InvalidArgumentError, "not both"),
    ],
)
def test_invalid_zip_arguments_are_refused(
    build: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        build()


def by_windows(dataset: Dataset, start_row: int = 0) -> list[dict[str, Any]]:
    """Returns the rows of all windows, each read separately from a plan that is decoded anew."""
    encoded = encode_plan(dataset.node)
    linear = linearise(decode_plan(encoded))
    reading = linearise(decode_plan(encoded))
    rows: list[dict[str, Any]] = []
    for window in plan_windows(linear, plan_splits(linear), 0):
        with open_window(
            reading, window.splits, epoch=0, window_index=window.index, context=RunContext()
        ) as stream:
            for batch in stream:
                rows += batch.to_pylist()
    return rows[start_row:]


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    for number in range(3):
        first = number * 1_000
        table = pa.table({"a": range(first, first + 1_000)})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=300)
    return tmp_path


def test_zip_of_different_sources_is_divided_by_rows(folder: pathlib.Path) -> None:
    files = Dataset.from_parquet(str(folder)).skip(5)
    both = Dataset.range(1_000).concatenate(Dataset.range(1_000, 9_000))
    dataset = files.zip(both.map(lambda c: {"b": c["id"] + 5})).with_column(
        "d", col("a") - col("b")
    )
    rows = by_windows(dataset.filter(col("a") % 2 == 0))
    assert [row["a"] for row in rows] == [a for a in range(5, 3_000) if a % 2 == 0]
    assert {row["d"] for row in rows} == {0}
    shuffled = by_windows(dataset.shuffle(100, seed=3).batch(10))
    assert sorted(row["a"] for row in shuffled) == list(range(5, 3_000))
    assert {row["d"] for row in shuffled} == {0}
    assert by_windows(dataset.take(1_500).skip(20)) == by_windows(dataset)[20:1_500]
    nested = dataset.zip(named(4_000, "n", []))
    assert [row["n"] for row in by_windows(nested)] == list(range(2_995))


def test_zip_of_changed_files_is_refused(folder: pathlib.Path) -> None:
    dataset = Dataset.from_parquet(str(folder)).zip(named(3_000, "n", []))
    linear = linearise(dataset.node)
    splits = plan_splits(linear)
    pq.write_table(pa.table({"a": range(7)}), folder / "0.parquet")
    stream = open_window(
        linearise(decode_plan(encode_plan(dataset.node))),
        splits,
        epoch=0,
        window_index=0,
        context=RunContext(),
    )
    with pytest.raises(SourceError, match=r"zipped dataset has changed since it was planned"):
        next(stream)


@pytest.mark.parametrize(
    ("branch", "reason"),
    [
        (named(9, "b").filter(col("b") > 1), "counts the elements that filter yields"),
        (named(9, "b").shuffle(3), "shuffle after zip"),
        (named(9, "b").repeat(2), "repeat after zip"),
        (Dataset.from_csv("c.csv"), "rows in csv is not known"),
    ],
)
def test_indivisible_zip_is_refused_naming_reason(branch: Dataset, reason: str) -> None:
    with pytest.raises(UnsplittableError, match=f"dataset with zip cannot.*{reason}"):
        linearise(named(9, "a").zip(branch).node)
    with pytest.raises(UnsplittableError, match=r"dataset with zip"):
        linearise(named(9, "a").batch(2).zip(named(9, "b").batch(2)).node)
