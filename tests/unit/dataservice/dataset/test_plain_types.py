"""Columns of dictionaries, runs and views, at the top and in nested columns, become plain ones."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import dataservice as ds
from dataservice.dataset.plain_types import plain_array, plain_type

WORDS = pa.array(["a", "b", None, "a", "c", "b"])
ENCODED = WORDS.dictionary_encode()
LISTS = [[1], None, [2, 3], [], [None], [4]]
NESTED = [[[1], None], None, [[2, 3]], [], [[]], [[4]]]
STRUCTS = [{"x": "a"}, None, {"x": None}, {"x": "b"}, None, {"x": "c"}]
PAIRS = [[("k", "a")], None, [("l", "b"), ("m", None)], [], None, [("n", "c")]]
INTEGERS = pa.list_view(pa.int64())
COLUMNS = {
    "dictionary": ENCODED,
    "list view": pa.array(LISTS, INTEGERS),
    "large list view": pa.array(LISTS, pa.large_list_view(pa.int64())),
    "views of views": pa.array(NESTED, pa.list_view(INTEGERS)),
    "list of views": pa.array(NESTED, pa.list_(INTEGERS)),
    "large list of views": pa.array(NESTED, pa.large_list(INTEGERS)),
    "struct of a view": pa.array(STRUCTS, pa.struct([("x", pa.string_view())])),
    "map to views": pa.array(PAIRS, pa.map_(pa.string(), pa.string_view())),
    "list of dictionaries": pa.ListArray.from_arrays(pa.array([0, 1, 3, 3, 4, 5, 6]), ENCODED),
    "struct of a dictionary": pa.StructArray.from_arrays([ENCODED], ["x"]),
    "fixed lists of dictionaries": pa.FixedSizeListArray.from_arrays(ENCODED, 1),
    "fixed lists of no views": pa.array(
        [[] if item else None for item in NESTED], pa.list_(pa.string_view(), 0)
    ),
    "fixed lists of views": pa.array(
        [[item] if item else None for item in NESTED], pa.list_(pa.list_view(INTEGERS), 1)
    ),
}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize(("first", "length"), [(0, 6), (1, 4), (2, 3), (5, 1), (3, 0)])
def test_plain_array_keeps_values_of_encoded_column(name: str, first: int, length: int) -> None:
    column = COLUMNS[name]
    kind = plain_type(column.type)
    made = plain_array(column.slice(first, length), kind)
    made.validate(full=True)
    assert made.type == kind
    assert made.to_pylist() == column.to_pylist()[first : first + length]
    assert "view" not in str(kind)
    assert "dictionary" not in str(kind)


def test_plain_type_leaves_other_types_unchanged() -> None:
    kinds = [
        pa.list_(pa.field("element", pa.int8(), nullable=False)),
        pa.struct([pa.field("x", pa.int8(), nullable=False)]),
        pa.map_(pa.string(), pa.list_(pa.float32(), 2), keys_sorted=True),
        pa.large_list(pa.string()),
        pa.uuid(),
    ]
    for kind in kinds:
        assert plain_type(kind) is kind


@pytest.mark.parametrize("mode", ["sparse", "dense"])
def test_union_columns_have_known_schemas(mode: str) -> None:
    kind = pa.union([pa.field("a", pa.int64()), pa.field("b", pa.string())], mode=mode)
    column = pa.nulls(2, kind)
    rows = pa.record_batch({"id": [0, 1], "v": column, "l": pa.nulls(2, pa.list_(kind))})
    generated = ds.Dataset.from_generator(lambda: iter([rows]), rows.schema)
    mapped = generated.map(lambda batch: batch, format="arrow", schema=rows.schema)
    for dataset in (generated, mapped, ds.Dataset.from_table(pa.table(rows)).take(0)):
        assert dataset.schema == rows.schema
    assert mapped.to_table()["v"].type == kind


@pytest.mark.parametrize("name", COLUMNS)
def test_encoded_columns_pass_through_operators(name: str) -> None:
    column = COLUMNS[name]
    rows = ds.Dataset.from_table(pa.table({"id": np.arange(6), "v": column}))
    passed = rows.shuffle(4, seed=1).batch(4).unbatch().map(dict).filter(lambda c: c["id"] >= 0)
    table = passed.to_table().sort_by("id")
    assert table["v"].to_pylist() == column.to_pylist()
