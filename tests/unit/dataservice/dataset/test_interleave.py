"""Interleave: its order against the definition, positions, nested seeds, errors."""

from __future__ import annotations

import pathlib
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataservice.dataset.dataset import Dataset
from dataservice.dataset.expressions import col
from dataservice.dataset.node import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from dataservice.dataset.operators import interleave
from dataservice.dataset.plan import decode_plan, encode_plan
from dataservice.dataset.sources import ParquetSource
from dataservice.errors import InvalidArgumentError, SchemaError, UserFunctionError
from dataservice.vocabulary import AUTOTUNE
from tests.unit.dataservice.dataset.checkpoint_checker import (
    check_positions,
    chunked,
    numbers,
    run,
    values,
)


def by_definition(lengths: list[int], cycle: int, block: int) -> list[int]:
    """Computes tf.data's deterministic interleave of ranges, element by element."""
    waiting = iter([iter(range(100 * i, 100 * i + n)) for i, n in enumerate(lengths)])
    slots: list[Any] = [None] * cycle
    rows: list[int] = []
    at = taken = 0
    ended = False
    while not ended or any(slot is not None for slot in slots):
        if slots[at] is None:
            slots[at] = None if ended else next(waiting, None)
            ended = ended or slots[at] is None
            if slots[at] is None:
                at, taken = (at + 1) % cycle, 0
            continue
        value = next(slots[at], None)
        if value is None:
            slots[at] = None
            at, taken = (at + 1) % cycle, 0
            continue
        rows.append(value)
        taken += 1
        if taken == block:
            at, taken = (at + 1) % cycle, 0
    return rows


def part(row: dict[str, Any]) -> Dataset:
    first = 100 * row["x"]
    table = pa.table({"y": pa.array(range(first, first + row["n"]), pa.int64())})
    return Dataset.from_table(chunked(table, [3] if row["n"] > 3 else []))


def source(lengths: list[int]) -> Dataset:
    table = pa.table({"x": pa.array(range(len(lengths)), pa.int64()), "n": pa.array(lengths)})
    return Dataset.from_table(table.cast(pa.schema([("x", pa.int64()), ("n", pa.int64())])))


@given(st.lists(st.integers(0, 12), max_size=7), st.integers(1, 4), st.integers(1, 4))
def test_interleave_order_matches_definition(lengths: list[int], cycle: int, block: int) -> None:
    dataset = source(lengths).interleave(part, cycle, block)
    assert values(run(dataset), "y") == by_definition(lengths, cycle, block)
    check_positions(dataset)


def test_rows_of_many_rounds_are_joined_into_few_batches() -> None:
    dataset = numbers(4).interleave(lambda row: Dataset.range(row["x"], 40_000, 4), 4)
    assert values(run(dataset), "id") == list(range(40_000))
    assert len(run(dataset)) < 10
    check_positions(dataset)


def test_rounds_are_joined_although_slots_stay_empty() -> None:
    lengths = [0, 20_000, 30_000]
    longer = source(lengths).interleave(lambda row: Dataset.range(row["n"]), 8)
    batches = run(longer)
    both = [n for n in range(20_000) for _ in range(2)]
    assert values(batches, "id") == both + list(range(20_000, 30_000))
    assert len(batches) < 20
    check_positions(source([0, 2, 9]).interleave(lambda row: Dataset.range(row["n"]), 8))


def test_huge_cycle_length_opens_every_dataset() -> None:
    lengths = [2, 0, 3]
    dataset = source(lengths).interleave(part, 2**70)
    assert values(run(dataset), "y") == by_definition(lengths, 4, 1)
    check_positions(dataset)


def test_interleave_of_batches_survives_plan_encoding() -> None:
    dataset = (
        numbers(6, [])
        .batch(2)
        .interleave(lambda c: Dataset.from_numpy({"y": c["x"] * 10}), cycle_length=2)
    )
    assert values(run(dataset), "y") == [0, 20, 10, 30, 40, 50]
    check_positions(decode_plan(encode_plan(dataset.batch(4).node)))
    assert dataset.schema == pa.schema([("y", pa.int64())])


def test_nested_shuffles_without_seed_resume_exactly() -> None:
    def shuffled(row: dict[str, Any]) -> Dataset:
        return Dataset.range(row["x"] * 100, row["x"] * 100 + 30).shuffle(30)

    dataset = numbers(5).interleave(shuffled, 2, 3)
    check_positions(dataset.batch(7))
    assert values(run(dataset, 0), "id") != values(run(dataset, 1), "id")
    assert sorted(values(run(dataset), "id")) == [x * 100 + y for x in range(5) for y in range(30)]


def test_first_dataset_determines_schema_of_interleave() -> None:
    def typed(row: dict[str, Any]) -> Dataset:
        kind = pa.int64() if row["x"] == 0 else pa.int8()
        return Dataset.from_table(pa.table({"y": pa.array([row["x"]], kind)}))

    assert {b.schema.field("y").type for b in run(numbers(3).interleave(typed))} == {pa.int64()}
    other = numbers(2).interleave(lambda r: Dataset.from_table(pa.table({"ab"[r["x"]]: [1]})))
    with pytest.raises(SchemaError, match=r"given to interleave returned.*missing"):
        run(other)
    empty = numbers(0, [])
    schema = pa.schema([("y", pa.int8())])
    assert empty.interleave(typed, schema=schema).schema == schema
    assert run(empty.interleave(typed)) == []
    with pytest.raises(InvalidArgumentError, match=r"state it with schema="):
        _ = empty.interleave(typed).schema


def test_interleave_takes_types_from_first_dataset_with_rows(tmp_path: pathlib.Path) -> None:
    for day, rows in enumerate(["", "", ",x\n", "1,y\n"]):
        (tmp_path / f"{day}.csv").write_text("a,b\n" + rows)

    def clicks(row: dict[str, Any]) -> Dataset:
        return Dataset.from_csv(row["path"])

    def texts(row: dict[str, Any]) -> Dataset:
        return clicks(row).map(lambda c: {"t": np.array([f"{b}!" for b in c["b"]])})

    files = Dataset.list_files(str(tmp_path / "*.csv"))
    for read, expected in (
        (clicks, {"a": [None, 1], "b": ["x", "y"]}),
        (texts, {"t": ["x!", "y!"]}),
    ):
        table = files.interleave(read).to_table()
        assert table.to_pydict() == expected
        assert files.interleave(read).schema == table.schema


def test_interleave_makes_no_further_dataset_once_types_are_known() -> None:
    made: list[int] = []

    def dropped(row: dict[str, Any]) -> Dataset:
        made.append(row["x"])
        return numbers(40).map(lambda c: {"y": c["x"]}).filter(col("y") < 0)

    assert numbers(30).interleave(dropped).schema == pa.schema([("y", pa.int64())])
    assert made == [0]


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda d: d.interleave(part, 0), InvalidArgumentError, "cycle_length must be.*got 0"),
        (lambda d: d.interleave(part, 2, -1), InvalidArgumentError, "block_length must be"),
        (lambda d: d.interleave(3), InvalidArgumentError, "interleave takes a function"),
        (lambda d: d.interleave(col("x")), InvalidArgumentError, "returns a Dataset, not the"),
        (lambda d: run(d.interleave(lambda _r: 7)), TypeError, "it returned 7"),
        (
            lambda d: run(d.interleave(lambda _r: numbers(3).batch(2))),
            InvalidArgumentError,
            "batch after interleave",
        ),
        (lambda d: run(d.interleave(lambda r: r["z"])), UserFunctionError, "KeyError"),
        (lambda d: d.interleave(part, num_parallel_calls=0), InvalidArgumentError, "got 0"),
        (lambda d: d.batch(2, deterministic="no"), InvalidArgumentError, "False, got 'no'"),
        (
            lambda d: run(d.interleave(lambda r: Dataset.from_parquet(r))),
            UserFunctionError,
            r'got the row .*row\["path"\]',
        ),
        (
            lambda d: run(d.flat_map(lambda c: Dataset.from_parquet(c))),
            UserFunctionError,
            r"got the columns .*write interleave\(fn, cycle_length=1\), .* one row at a time",
        ),
    ],
)
def test_invalid_interleave_arguments_are_refused(
    build: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        build(numbers(4))


def test_interleave_takes_autotune_as_tf_data_does() -> None:
    lengths = [3, 2, 5, 1, 4]
    given_ = source(lengths).interleave(part, AUTOTUNE, num_parallel_calls=AUTOTUNE)
    assert values(run(given_), "y") == by_definition(lengths, 4, 1)


def test_only_selected_columns_of_nested_files_are_read(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "a.parquet")
    pq.write_table(pa.table({"a": [1, 2], "b": [3, 4]}), path)
    nested = numbers(2, []).interleave(lambda _r: Dataset.from_parquet(path).select("a"))
    with mock.patch.object(
        ParquetSource, "read", autospec=True, side_effect=ParquetSource.read
    ) as read:
        assert values(run(nested), "a") == [1, 1, 2, 2]
    assert {call.args[0].columns for call in read.call_args_list} == {("a",)}


def test_cardinality_of_interleave_is_known_only_if_zero_or_infinite() -> None:
    assert numbers(4).interleave(part).cardinality() == UNKNOWN_CARDINALITY
    assert numbers(0, []).interleave(part).cardinality() == 0
    assert numbers(4).repeat().interleave(part).cardinality() == INFINITE_CARDINALITY


def test_slots_are_not_looked_at_one_by_one_within_a_round() -> None:
    looks = 0
    open_slots = interleave._InterleaveStream._open_slots

    def counting(self: Any) -> Any:
        nonlocal looks
        looks += 1
        return open_slots(self)

    many = Dataset.range(200).interleave(
        lambda row: Dataset.range(int(row["id"]), int(row["id"]) + 2), cycle_length=200
    )
    with mock.patch.object(interleave._InterleaveStream, "_open_slots", counting):
        assert sorted(values(run(many), "id")) == sorted([*range(200), *range(1, 201)])
    assert looks < 20
