"""Rows from a user's generator: forms, positions, errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dataservice.dataset.dataset import Dataset
from dataservice.dataset.division.linearise import linearise
from dataservice.dataset.division.splits import open_window, plan_splits
from dataservice.dataset.node import UNKNOWN_CARDINALITY
from dataservice.dataset.plan import decode_plan, encode_plan
from dataservice.dataset.stream import RunContext
from dataservice.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    SchemaError,
    SourceError,
    UnsplittableError,
    UserFunctionError,
)
from tests.unit.dataservice.dataset.checkpoint_checker import check_positions, run, values

SCHEMA = pa.schema([("x", pa.int64()), ("v", pa.list_(pa.float32(), 2))])


def by_rows() -> Iterator[dict[str, Any]]:
    for x in range(2_500):
        yield {"v": [x, 0.5], "x": x}


def by_arrays() -> Iterator[dict[str, Any]]:
    for x in range(0, 30, 3):
        yield {"x": np.arange(x, x + 3), "v": np.ones((3, 2))}


def by_batches() -> Iterator[Any]:
    for columns in by_arrays():
        batch = pa.record_batch({"x": columns["x"], "v": [[1, 2]] * 3})
        yield batch if columns["x"][0] % 2 else pa.Table.from_batches([batch])


@pytest.mark.parametrize(("fn", "rows"), [(by_rows, 2_500), (by_arrays, 30), (by_batches, 30)])
def test_generator_format_is_inferred_from_first_item(fn: Any, rows: int) -> None:
    dataset = Dataset.from_generator(fn, SCHEMA)
    assert dataset.schema == SCHEMA
    assert run(dataset)[0].schema == SCHEMA
    assert values(run(dataset)) == list(range(rows))
    assert dataset.cardinality() == UNKNOWN_CARDINALITY
    check_positions(dataset)
    check_positions(dataset.batch(7), limit=20)


@pytest.mark.parametrize(
    ("kind", "values_of_rows", "read"),
    [
        (pa.large_list(pa.int64()), [[1, 2], [3]], [[1, 2], [3]]),
        (pa.map_(pa.string(), pa.int64()), [[("a", 1)], {"b": 2}], [[("a", 1)], [("b", 2)]]),
        (pa.list_(pa.list_(pa.float32(), 2), 1), [np.ones((1, 2))] * 2, [[[1.0, 1.0]]] * 2),
        (
            pa.list_(pa.list_(pa.int64())),
            [np.ones((1, 2), int), [[5], []], None],
            [[[1, 1]], [[5], []], None],
        ),
        (
            pa.fixed_shape_tensor(pa.float32(), (1, 2)),
            [np.ones((1, 2)), np.zeros((1, 2))],
            [[1.0, 1.0], [0.0, 0.0]],
        ),
    ],
)
def test_rows_may_hold_nested_values(kind: pa.DataType, values_of_rows: Any, read: Any) -> None:
    schema = pa.schema([("v", kind), ("x", pa.int64())])
    rows = [{"v": value, "x": x} for x, value in enumerate(values_of_rows)]
    table = Dataset.from_generator(lambda: rows, schema).to_table()
    assert table.schema == schema
    assert table["v"].to_pylist() == read


@pytest.mark.parametrize("shape", [(3, 1, 2), (3, 2)])
def test_array_of_tensors_may_be_flat(shape: tuple[int, ...]) -> None:
    schema = pa.schema([("v", pa.fixed_shape_tensor(pa.float32(), (1, 2)))])
    table = Dataset.from_generator(lambda: [{"v": np.ones(shape)}], schema).to_table()
    assert table["v"].to_pylist() == [[1.0, 1.0]] * 3


def test_generator_plan_has_one_split_after_encoding() -> None:
    linear = linearise(decode_plan(encode_plan(Dataset.from_generator(by_rows, SCHEMA).node)))
    splits = plan_splits(linear)
    assert [split.rows for split in splits] == [None]
    with open_window(linear, splits, epoch=0, window_index=0, context=RunContext()) as stream:
        assert values(list(stream)) == list(range(2_500))
    with pytest.raises(UnsplittableError, match=r"rows in generator is not known"):
        linearise(Dataset.from_generator(by_rows, SCHEMA).take(3).node)


def test_endless_generator_is_read_as_far_as_taken() -> None:
    def endless() -> Iterator[dict[str, int]]:
        x = 0
        while True:
            yield {"x": x}
            x += 1

    dataset = Dataset.from_generator(endless, pa.schema([("x", pa.int32())]))
    assert values(run(dataset.take(5))) == [0, 1, 2, 3, 4]
    assert run(Dataset.from_generator(list, SCHEMA)) == []


def test_stated_generator_format_is_enforced() -> None:
    schema = pa.schema([("v", pa.list_(pa.int64()))])
    rows = [{"v": np.arange(2)}, {"v": [7]}]
    assert list(Dataset.from_generator(lambda: rows, schema, format="rows").rows()) == [
        {"v": [0, 1]},
        {"v": [7]},
    ]
    with pytest.raises(SchemaError, match=r"format 'arrow' yielded dict"):
        run(Dataset.from_generator(lambda: rows, schema, format="arrow"))


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([{"x": 1}], r"missing: \['v'\]"),
        ([{"x": 1, "v": [1, 2], "z": 1}], r"not expected: \['z'\]"),
        ([{"x": "one", "v": [1, 2]}], r"column 'x' does not fit its type int64.*'one'"),
        ([{"x": 1 << 63, "v": [1, 2]}], "does not fit"),
        ([3], "must yield a dict.*yielded 3"),
        ([{"x": np.arange(2), "v": np.ones((3, 2))}], "unequal lengths"),
        ([pa.record_batch({"x": [1]}), 3], r"missing: \['v'\]"),
    ],
)
def test_invalid_generator_item_is_refused(items: list[Any], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        run(Dataset.from_generator(lambda: items, SCHEMA))


def test_generator_error_names_the_row() -> None:
    def fails() -> Iterator[dict[str, Any]]:
        for x in range(10):
            yield {"x": np.arange(x, x + 1), "v": np.ones((1, 2))}
        raise RuntimeError("no more")

    with pytest.raises(UserFunctionError, match=r"no more") as caught:
        run(Dataset.from_generator(fails, SCHEMA))
    assert "rows 10..10 of the generator" in caught.value.source
    assert "raise RuntimeError" in caught.value.user_traceback


def test_generator_error_names_the_row_within_rows_that_are_read_together() -> None:
    def fails() -> Iterator[dict[str, Any]]:
        for _ in range(2_000):
            yield {"x": 1, "v": [1.0, 2.0]}
        raise RuntimeError("no more")

    with pytest.raises(UserFunctionError, match=r"no more") as caught:
        run(Dataset.from_generator(fails, SCHEMA))
    assert "rows 2000..2000 of the generator" in caught.value.source


def test_generator_returned_a_second_time_is_refused() -> None:
    once = by_rows()
    data = Dataset.from_generator(lambda: once, SCHEMA)
    assert next(iter(data)).num_rows
    with pytest.raises(
        SourceError,
        match=r"returned the same generator a second time.*a new iterator.*deterministic",
    ):
        run(data)
    mapped = Dataset.from_generator(by_rows, SCHEMA).map(lambda c: c)
    assert [len(values(run(mapped))) for _ in range(2)] == [2_500, 2_500]


def test_nondeterministic_generator_may_be_returned_twice() -> None:
    once = by_rows()
    data = Dataset.from_generator(lambda: once, SCHEMA, deterministic=False)
    assert next(iter(data)).num_rows
    assert values(run(data))


@pytest.mark.parametrize(
    ("batches", "error", "message"),
    [
        (1, FailedPreconditionError, "row 4 of a chunk that now has 0 rows"),
        (5, SourceError, r"yields 0 rows now, and 16 were read before"),
    ],
)
def test_position_behind_end_of_generator_is_refused(
    batches: int, error: type[Exception], message: str
) -> None:
    rows = iter([{"x": x, "v": [0, 0]} for x in range(30)])
    iterator = iter(Dataset.from_generator(lambda: rows, SCHEMA).batch(4))
    for _ in range(batches):
        next(iterator)
    again = iter(Dataset.from_generator(lambda: iter([]), SCHEMA).batch(4))
    again.load_state_dict(iterator.state_dict())
    with pytest.raises(error, match=message):
        next(again)


def test_null_values_of_first_row_do_not_determine_types() -> None:
    def spans(row: dict[str, Any]) -> dict[str, Any]:
        return {"x": row["x"] or None, "upto": list(range(row["x"]))}

    small = pa.schema([("x", pa.int64())])
    dataset = Dataset.from_generator(lambda: ({"x": x} for x in range(20)), small)
    dataset = dataset.map(spans, format="rows")
    assert dataset.to_table().schema == dataset.schema
    assert dataset.schema.types == [pa.int64(), pa.list_(pa.int64())]


def test_invalid_generator_arguments_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"needs schema=.*pyarrow\.schema\(\{.*got None"):
        Dataset.from_generator(by_rows, None)  # type: ignore[arg-type]
    with pytest.raises(
        InvalidArgumentError, match=r"takes a function that returns.*, or its.*got 3"
    ):
        Dataset.from_generator(3, SCHEMA)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match=r"format must be one of.*got 'pandas'"):
        Dataset.from_generator(by_rows, SCHEMA, format="pandas")
