"""Columns that a mapped function passes on keep their types, whatever a batch happens to hold."""

from __future__ import annotations

import datetime
import decimal
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dataservice as ds

PAIRS = pa.map_(pa.string(), pa.int64())
UTC = pa.timestamp("us", "UTC")
TABLE = pa.table(
    {
        "price": pa.array(
            [decimal.Decimal("1.10"), decimal.Decimal("12345.25"), None], pa.decimal128(10, 2)
        ),
        "name": pa.array([None, "x", "y"], pa.large_string()),
        "list": pa.array([None, [1], [2]], pa.list_(pa.int32())),
        "holes": pa.array([[1, None], None, []], pa.list_(pa.int32())),
        "inner holes": pa.array([[[1, None], None], None, []], pa.list_(pa.list_(pa.int64()))),
        "time": pa.array([None, datetime.datetime(2020, 1, 1), None], pa.timestamp("us", "UTC")),
        "nested": pa.array([None, {"a": 1}, {"a": None}]),
        "pairs": pa.array([None, [("k", 1)], []], PAIRS),
        "listed pairs": pa.array([[None, []], None, [[("k", None)]]], pa.list_(PAIRS)),
        "fixed": pa.array([[{"a": 1}, None]] * 3, pa.list_(pa.struct({"a": pa.int64()}), 2)),
        "fixed pairs": pa.array([[[("k", 1)], None]] * 3, pa.list_(PAIRS, 2)),
        "fixed lists": pa.array([[[1, None], None]] * 3, pa.list_(pa.large_list(pa.int32()), 2)),
        "fixed floats": pa.array([[[1.5, None], None]] * 3, pa.list_(pa.list_(pa.float32()), 2)),
        "fixed times": pa.array([[datetime.datetime(2020, 1, 1)] * 2] * 3, pa.list_(UTC, 2)),
        "fixed none": pa.array([[]] * 3, pa.list_(pa.int32(), 0)),
        "fixed twice": pa.array(
            [[[None, {"a": 1}]]] * 3, pa.list_(pa.list_(pa.struct({"a": pa.int8()}), 2), 1)
        ),
    }
)


@pytest.mark.parametrize("format", ["numpy", "rows"])
@pytest.mark.parametrize("name", TABLE.column_names)
def test_column_passed_on_keeps_its_type(format: str, name: str) -> None:
    table = TABLE.select([name])
    mapped = ds.Dataset.from_table(table).batch(1).map(lambda c: {**c}, format=format)
    assert mapped.to_table().equals(table)


@pytest.mark.parametrize("name", TABLE.column_names)
def test_column_passed_on_under_other_name_keeps_its_type(name: str) -> None:
    table = TABLE.select([name])
    mapped = ds.Dataset.from_table(table).batch(1).map(lambda c: {"other": c[name]})
    assert mapped.to_table().equals(table.rename_columns(["other"]))


def test_rows_repeated_by_flat_map_keep_their_types() -> None:
    table = TABLE.append_column("none", pa.array([None] * 3, pa.int32()))
    repeated = ds.Dataset.from_table(table).batch(1).flat_map(lambda r: [r, r], format="rows")
    assert repeated.schema == table.schema
    assert repeated.to_table().to_pylist() == [row for row in table.to_pylist() for _ in range(2)]


def test_nan_in_list_of_floats_stays_nan() -> None:
    table = pa.table({"x": [[1.0, float("nan")], [float("nan")]]})
    mapped = ds.Dataset.from_table(table).map(lambda c: c).to_table()["x"].combine_chunks()
    assert mapped.flatten().null_count == 0


def test_column_changed_in_place_has_type_of_its_new_values() -> None:
    def lengths(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        columns["name"][:] = [len(name) for name in columns["name"]]
        return columns

    table = pa.table({"name": ["a", "bb"]})
    assert ds.Dataset.from_table(table).map(lengths).to_table()["name"].to_pylist() == [1, 2]


def test_row_changed_in_place_has_type_of_its_new_values() -> None:
    def halved(row: dict[str, Any]) -> dict[str, Any]:
        row["id"] /= 2
        return row

    mapped = ds.Dataset.range(0, 3, 2).map(halved, format="rows")
    assert mapped.to_table()["id"].to_pylist() == [0.0, 1.0]
    assert mapped.schema.field("id").type == pa.float64()


def test_big_endian_numbers_are_converted() -> None:
    data = ds.Dataset.from_numpy({"a": np.array([[1, 2]], ">i4"), "b": np.array([3.5], ">f8")})
    assert data.to_table().to_pylist() == [{"a": [1, 2], "b": 3.5}]


def test_table_with_duplicate_column_names_is_refused() -> None:
    with pytest.raises(ValueError, match=r"several columns named \['a'\]"):
        ds.Dataset.from_table(pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]))


TWICE = pa.schema([("a", pa.int64()), ("a", pa.int64())])


@pytest.mark.parametrize(
    "make",
    [
        lambda: ds.Dataset.from_generator(lambda: [{"a": 1}], TWICE),
        lambda: ds.Dataset.from_json("a.json", schema=TWICE),
        lambda: ds.Dataset.from_csv("a.csv", schema=TWICE),
        lambda: ds.Dataset.from_tfrecord("a.tfrecord", features=TWICE),
        lambda: ds.Dataset.range(2).map(lambda columns: columns, schema=TWICE),
        lambda: (
            ds.Dataset.range(2)
            .map(
                lambda batch: pa.RecordBatch.from_arrays([batch[0], batch[0]], schema=TWICE),
                format="arrow",
            )
            .to_table()
        ),
    ],
)
def test_schema_or_result_with_duplicate_column_names_is_refused(
    make: Callable[[], ds.Dataset],
) -> None:
    with pytest.raises(ValueError, match=r"several columns named \['a'\]"):
        make()


def test_file_with_duplicate_column_names_is_refused_naming_it(tmp_path: pathlib.Path) -> None:
    arrays = [pa.array([1]), pa.array([2]), pa.array([3])]
    twice = pa.table(arrays, names=["a", "a", "b"])
    pq.write_table(twice, tmp_path / "twice.parquet")
    with pa.ipc.new_file(tmp_path / "twice.arrow", twice.schema) as sink:
        sink.write_table(twice)
    (tmp_path / "twice.csv").write_text("a,a,b\n1,2,3\n")
    sources: dict[str, Callable[..., ds.Dataset]] = {
        "parquet": ds.Dataset.from_parquet,
        "arrow": ds.Dataset.from_ipc,
        "csv": ds.Dataset.from_csv,
    }
    for suffix, source in sources.items():
        path = str(tmp_path / f"twice.{suffix}")
        with pytest.raises(ValueError, match=rf"twice.{suffix}' has several columns named \['a'\]"):
            source(path).to_table()
        if suffix != "csv":
            assert source(path, columns=["b"]).to_table().to_pylist() == [{"b": 3}]
    pq.write_table(pa.table({"a": [1], "b": [2]}), tmp_path / "once.parquet")
    both = [str(tmp_path / "once.parquet"), str(tmp_path / "twice.parquet")]
    with pytest.raises(ValueError, match=r"twice.parquet' has several of that name"):
        ds.Dataset.from_parquet(both).to_table()


@pytest.mark.parametrize(
    ("timeout_s", "error"), [(-1, ValueError), (0, ValueError), ("x", TypeError)]
)
def test_distribute_timeout_other_than_positive_number_is_refused(
    timeout_s: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match="timeout_s"):
        ds.Dataset.range(3).distribute(
            ds.ShardingPolicy.DYNAMIC, "grpc://localhost:1", timeout_s=timeout_s
        )
