"""Schemas of row functions over no rows: the functions are tried on one made-up row."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import dataservice as ds
from dataservice.dataset.columns import made_up_row
from dataservice.errors import SchemaError, UserFunctionError

NO_ROWS = ds.Dataset.from_table(pa.table({"x": pa.array([], pa.int64()), "s": pa.array([], "str")}))


def halved(row: dict[str, Any]) -> dict[str, Any]:
    return {"half": row["x"] / 2, "inverse": 1 / row["x"], "number": int(row["s"])}


FOLLOWING: dict[str, Callable[[ds.Dataset], ds.Dataset]] = {
    "nothing": lambda data: data,
    "select": lambda data: data.select(["half"]),
    "expression": lambda data: data.with_column("twice", ds.col("half") * 2),
    "function": lambda data: data.map(lambda c: {"twice": c["half"] * 2}),
    "rows": lambda data: data.map(lambda row: {"twice": row["half"] * 2}, format="rows"),
    "skipping": lambda data: data.map(dict, format="rows", on_error="skip"),
    "concatenate": lambda data: data.concatenate(data),
}


@pytest.mark.parametrize("following", FOLLOWING)
def test_row_function_over_no_rows_has_inferred_schema(following: str) -> None:
    some = ds.Dataset.from_numpy({"x": [5, 6], "s": ["7", "8"]})
    expected = FOLLOWING[following](some.map(halved, format="rows")).schema
    data = FOLLOWING[following](NO_ROWS.map(halved, format="rows"))
    assert data.schema == expected
    assert data.to_table() == expected.empty_table()


def test_flat_map_row_function_over_no_rows_has_inferred_schema() -> None:
    data = NO_ROWS.flat_map(lambda row: [{"y": row["x"]}] * 2, format="rows").select(["y"])
    assert data.to_table() == pa.table({"y": pa.array([], pa.int64())})


def test_function_failing_on_made_up_row_is_refused_naming_remedy() -> None:
    def known(row: dict[str, Any]) -> dict[str, Any]:
        return {"word": {5: "five"}[row["x"]]}

    data = NO_ROWS.map(known, format="rows").select(["word"])
    with pytest.raises(UserFunctionError, match=r"(?s)made-up values.*there is no row.*schema="):
        data.schema  # noqa: B018
    assert list(data) == []
    stated = NO_ROWS.map(known, format="rows", schema=pa.schema({"word": pa.string()}))
    assert stated.select(["word"]).to_table().num_rows == 0


def test_function_over_no_rows_that_returns_no_dict_is_refused() -> None:
    with pytest.raises(SchemaError, match="must return a dict"):
        NO_ROWS.map(lambda row: row["x"], format="rows").to_table()


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.uint8(), 1),
        (pa.float16(), 1.0),
        (pa.bool_(), True),
        (pa.large_string(), "1"),
        (pa.binary(), b"1"),
        (pa.binary(2), b"11"),
        (pa.decimal128(5, 2), decimal.Decimal("1.00")),
        (pa.date32(), datetime.date(1970, 1, 2)),
        (pa.timestamp("s"), datetime.datetime(1970, 1, 1, 0, 0, 1)),
        (pa.duration("s"), datetime.timedelta(seconds=1)),
        (pa.list_(pa.int32()), [1]),
        (pa.list_(pa.string(), 2), ["1", "1"]),
        (pa.struct({"a": pa.list_(pa.bool_())}), {"a": [True]}),
        (pa.map_(pa.string(), pa.int8()), [("1", 1)]),
        (pa.null(), None),
        (pa.sparse_union([pa.field("a", pa.int8())]), None),
    ],
    ids=str,
)
def test_made_up_row_holds_value_of_every_type(kind: pa.DataType, value: Any) -> None:
    row = made_up_row(pa.schema({"c": kind}))
    assert row.num_rows == 1
    assert row.column("c").to_pylist() == [value]


def test_made_up_row_holds_storage_value_of_extension_type() -> None:
    row = made_up_row(pa.schema({"t": pa.fixed_shape_tensor(pa.int8(), (2,)), "u": pa.uuid()}))
    assert row.column("t").storage.to_pylist() == [[1, 1]]
    assert row.column("u").storage.to_pylist() == [b"1" * 16]
