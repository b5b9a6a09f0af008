"""Columns that a mapped function passes on keep their types, whatever a batch happens to hold."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dataservice as ds

TABLE = pa.table(
    {
        "price": pa.array(
            [decimal.Decimal("1.10"), decimal.Decimal("12345.25"), None], pa.decimal128(10, 2)
        ),
        "name": pa.array([None, "x", "y"], pa.large_string()),
        "list": pa.array([None, [1], [2]], pa.list_(pa.int32())),
        "time": pa.array([None, datetime.datetime(2020, 1, 1), None], pa.timestamp("us", "UTC")),
        "nested": pa.array([None, {"a": 1}, {"a": None}]),
        "pairs": pa.array([None, [("k", 1)], []], pa.map_(pa.string(), pa.int64())),
    }
)


@pytest.mark.parametrize("format", ["numpy", "rows"])
@pytest.mark.parametrize("name", TABLE.column_names)
def test_what_is_passed_on_keeps_its_type(format: str, name: str) -> None:
    table = TABLE.select([name])
    mapped = ds.Dataset.from_table(table).batch(1).map(lambda c: {**c}, format=format)
    assert mapped.to_table().equals(table)


def test_what_is_changed_in_place_has_the_type_of_its_values() -> None:
    def lengths(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        columns["name"][:] = [len(name) for name in columns["name"]]
        return columns

    table = pa.table({"name": ["a", "bb"]})
    assert ds.Dataset.from_table(table).map(lengths).to_table()["name"].to_pylist() == [1, 2]


def test_rows_changed_in_place_have_the_type_of_their_values() -> None:
    def halved(row: dict[str, Any]) -> dict[str, Any]:
        row["id"] /= 2
        return row

    mapped = ds.Dataset.range(0, 3, 2).map(halved, format="rows")
    assert mapped.to_table()["id"].to_pylist() == [0.0, 1.0]
    assert mapped.schema.field("id").type == pa.float64()


def test_numbers_of_another_byte_order_are_turned() -> None:
    data = ds.Dataset.from_numpy({"a": np.array([[1, 2]], ">i4"), "b": np.array([3.5], ">f8")})
    assert data.to_table().to_pylist() == [{"a": [1, 2], "b": 3.5}]


def test_columns_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match=r"several columns named \['a'\]"):
        ds.Dataset.from_table(pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]))


@pytest.mark.parametrize(
    ("timeout_s", "error"), [(-1, ValueError), (0, ValueError), ("x", TypeError)]
)
def test_a_timeout_is_a_positive_number(timeout_s: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="timeout_s"):
        ds.Dataset.range(3).distribute(
            ds.ShardingPolicy.DYNAMIC, "grpc://localhost:1", timeout_s=timeout_s
        )
