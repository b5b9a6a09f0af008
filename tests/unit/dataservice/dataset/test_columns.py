"""Conversion between Arrow and NumPy: shared memory, copies, nulls, and refused types."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import dataservice as ds
from dataservice.dataset.arrow_arrays import from_numpy
from dataservice.dataset.columns import (
    check_names,
    concat_batches,
    conform,
    join_batches,
    require_columns,
)
from dataservice.dataset.nested_arrays import children_of, put_together
from dataservice.dataset.numpy_views import NumpyViews, to_numpy
from dataservice.dataset.plain_types import plain_batch, plain_schema
from dataservice.errors import SchemaError

MAPS = pa.map_(pa.string(), pa.int64())
LATIN = pa.array([b"ok", b"caf\xe9"]).view(pa.string())


def address(array: pa.Array) -> int:
    return array.buffers()[1].address


def test_masked_values_of_numpy_array_become_nulls() -> None:
    flat = np.ma.array([1, 2, 3], mask=[False, True, False])
    wide = np.ma.array([[1.0, 2.0], [3.0, 4.0]], mask=[[False, True], [False, False]])
    assert from_numpy({"x": flat}).column(0).to_pylist() == [1, None, 3]
    assert from_numpy({"x": wide}).column(0).to_pylist() == [[1.0, None], [3.0, 4.0]]
    kept = ds.Dataset.from_numpy({"x": np.arange(3)}).map(lambda c: {"x": c["x"] * flat})
    assert kept.to_table()["x"].to_pylist() == [0, None, 6]


@pytest.mark.parametrize("kind", ["int8", "int64", "uint32", "float32", "float64", "timestamp[us]"])
def test_numbers_are_converted_without_copy_both_ways(kind: str) -> None:
    column = pa.array([1, 2, 3, 4], pa.int64()).cast(kind)
    batch = pa.RecordBatch.from_arrays([column], names=["x"]).slice(1, 2)
    values = to_numpy(batch)["x"]
    assert values.__array_interface__["data"][0] == address(column) + values.itemsize
    assert not values.flags.writeable
    back = from_numpy({"x": values}).column(0)
    assert address(back) == values.__array_interface__["data"][0]
    assert back.equals(column.slice(1, 2))


def test_strings_booleans_and_nested_columns_convert_to_numpy() -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "s": pa.array(["a", None, "c"]),
            "b": pa.array([True, False, True]),
            "v": pa.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], pa.list_(pa.float32(), 2)),
            "d": pa.array(["x", "y", "x"]).dictionary_encode(),
            "f": pa.array([1.0, None, 3.0]),
            "l": pa.array([[1], [1, 2], []]),
        }
    ).slice(1)
    values = to_numpy(batch)
    assert values["s"].tolist() == [None, "c"]
    assert values["b"].dtype == np.bool_
    assert values["v"].tolist() == [[3.0, 4.0], [5.0, 6.0]]
    assert values["v"].dtype == np.float32
    assert values["d"].tolist() == ["y", "x"]
    assert np.isnan(values["f"][0])
    assert values["f"][1] == 3.0
    assert [list(item) for item in values["l"]] == [[1, 2], []]


@pytest.mark.parametrize("nulls", [[], [None]])
@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (pa.date32(), datetime.date(2026, 11, 22), np.datetime64("2026-11-22")),
        (pa.date64(), datetime.date(2026, 11, 22), np.datetime64("2026-11-22")),
        (pa.time32("s"), datetime.time(1, 2, 3), datetime.time(1, 2, 3)),
        (pa.time64("us"), datetime.time(1, 2, 3, 4), datetime.time(1, 2, 3, 4)),
        (pa.duration("s"), datetime.timedelta(seconds=5), np.timedelta64(5, "s")),
        (pa.decimal128(5, 2), decimal.Decimal("1.25"), decimal.Decimal("1.25")),
        (pa.string_view(), "a", "a"),
        (pa.binary_view(), b"a", b"a"),
    ],
)
def test_dates_times_and_string_views_convert_with_and_without_nulls(
    kind: pa.DataType, value: object, expected: object, nulls: list[None]
) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([value, *nulls], kind)], names=["x"])
    values = to_numpy(batch)["x"]
    assert values[0] == expected
    assert len(values) == 1 + len(nulls)


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        (pa.int32(), r"fill_null\(0\)"),
        (pa.bool_(), r"fill_null\(False\)"),
        (pa.list_(pa.int8(), 2), r"filter\(~col\('x'\).is_null\(\)\)"),
    ],
)
def test_nulls_that_numpy_cannot_hold_are_refused_naming_remedy(
    kind: pa.DataType, remedy: str
) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([None], kind)], names=["x"])
    with pytest.raises(SchemaError, match=rf"column 'x'.*1 nulls.*{remedy}"):
        to_numpy(batch)


@pytest.mark.parametrize(
    "column",
    [
        LATIN,
        pa.ListArray.from_arrays([0, 1, 2], LATIN),
        pa.StructArray.from_arrays([LATIN], ["s"]),
    ],
)
def test_text_column_that_is_not_utf_8_is_refused_naming_column(column: pa.Array) -> None:
    dataset = ds.Dataset.from_table(pa.table({"city": column, "x": [1, 2]}))
    for read in (dataset.numpy, dataset.rows, dataset.map(dict, format="rows").rows):
        with pytest.raises(SchemaError, match=r"'city' of type .* UTF-8.*select\(\)"):
            list(read())
    assert next(dataset.map(dict).select(["x"]).rows()) == {"x": 1}


@pytest.mark.parametrize("large", [2**53 + 1, -(2**53) - 1])
@pytest.mark.parametrize(
    ("kind", "wrap"),
    [
        (pa.list_(pa.int64()), lambda value: [value, None]),
        (pa.large_list(pa.int64()), lambda value: [value, None]),
        (pa.list_(pa.list_(pa.int64())), lambda value: [[None], None, [value]]),
        (pa.struct([("i", pa.list_(pa.int64()))]), lambda value: {"i": [value, None]}),
        (pa.list_(pa.struct([("i", pa.int64())])), lambda value: [{"i": value}, {"i": None}]),
        (MAPS, lambda value: [("a", value), ("b", None)]),
    ],
)
def test_large_integers_in_nested_values_with_nulls_are_refused_not_rounded(
    kind: pa.DataType, wrap: Callable[[int], object], large: int
) -> None:
    table = pa.table({"x": pa.array([None, wrap(large)], kind), "n": [1, 2]})
    data = ds.Dataset.from_table(table)
    with pytest.raises(SchemaError, match="values of column 'x' hold nulls and integers above 2"):
        list(data.numpy())
    assert data.map(lambda c: {**c, "n": c["n"] * 1}).to_table().equals(table)
    exact = pa.table({"x": pa.array([None, wrap(2**53)], kind)})
    assert len(next(iter(ds.Dataset.from_table(exact).numpy()))["x"]) == 2
    if wrap(1) == [1, None]:
        without = pa.table({"x": pa.array([None, [large]], kind)})
        assert next(iter(ds.Dataset.from_table(without).numpy()))["x"][1].tolist() == [large]


def test_map_entries_outside_slice_are_ignored() -> None:
    maps = pa.array([[("a", 2**60)], None, [("b", None), ("c", 1)], [("d", 2)]], MAPS)
    table = pa.table({"x": maps}).slice(1, 2)
    found = next(iter(ds.Dataset.from_table(table).numpy()))["x"]
    assert found.tolist() == [None, [("b", None), ("c", 1.0)]]
    for part in (maps, maps.slice(1, 2), maps.slice(4), pa.array([], MAPS)):
        assert put_together(part, children_of(part), part.type).equals(part)
        assert len(children_of(part)[1]) == sum(len(each) for each in part.to_pylist() if each)


def test_remedies_named_for_nulls_work() -> None:
    flags = ds.Dataset.from_table(pa.table({"x": [True, None]}))
    assert flags.with_column("x", ds.col("x").fill_null(False)).to_table()["x"].to_pylist() == [
        True,
        False,
    ]
    pairs = pa.table({"x": pa.array([[1, 2], None], pa.list_(pa.int8(), 2))})
    left = ds.Dataset.from_table(pairs).filter(~ds.col("x").is_null())
    assert [batch["x"].tolist() for batch in left.batch(4).numpy()] == [[[1, 2]]]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["b", None, "a"], pa.string_view()),
        pa.array([b"b", None, b"a"], pa.binary_view()),
        pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array([1, 2])),
        pa.array(["b", None, "a"]).dictionary_encode(),
    ],
)
def test_encoded_columns_pass_filter_shuffle_and_batch(column: pa.Array) -> None:
    data = ds.Dataset.from_table(pa.table({"k": [0, 1, 2], "x": column}))
    expected = column.to_pylist()
    assert data.to_table()["x"].to_pylist() == expected
    assert data.filter(ds.col("k") > 0).to_table()["x"].to_pylist() == expected[1:]
    shuffled = data.shuffle(3, seed=1).batch(2).to_table().to_pylist()
    assert [row["x"] for row in sorted(shuffled, key=lambda row: row["k"])] == expected


def test_multidimensional_arrays_become_nested_fixed_size_lists() -> None:
    cube = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    batch = from_numpy({"x": cube, "t": cube[:, ::2, :]})
    assert batch.schema.field("x").type == pa.list_(pa.list_(pa.int16(), 4), 3)
    assert (to_numpy(batch)["x"] == cube).all()
    assert (to_numpy(batch)["t"] == cube[:, ::2, :]).all()


def test_lists_chunked_and_dictionary_arrays_become_columns() -> None:
    batch = from_numpy({"a": [1, 2], "s": np.array(["x", "yy"]), "c": pa.chunked_array([[1], [2]])})
    assert batch.to_pydict() == {"a": [1, 2], "s": ["x", "yy"], "c": [1, 2]}
    encoded = pa.array(["x", "y"]).dictionary_encode()
    assert from_numpy({"d": encoded}).schema.field("d").type == pa.string()


@pytest.mark.parametrize(
    "values",
    [
        [b"a\0", b"\0\1", b""],
        ["a\0", "\0b", ""],
        np.array([b"a\0b", b"\0\1", b"c"]),
        np.array(["a\0b", "\0\1", "c"]),
        np.array(["a\0b", "c", "d"])[::2],
        np.array([[b"a\0b", b"c"], [b"\0\1", b""]]),
        [["a\0", "b"], ["c", "d"]],
    ],
)
def test_zero_characters_in_text_and_bytes_are_kept(values: Any) -> None:
    assert from_numpy({"x": values}).column(0).to_pylist() == [
        row.tolist() if isinstance(row, np.ndarray) else row for row in values
    ]
    mapped = ds.Dataset.range(len(values)).map(lambda _: {"x": values})
    assert mapped.to_table()["x"].to_pylist() == from_numpy({"x": values})["x"].to_pylist()


def test_nulls_inside_fixed_size_lists_are_refused_with_working_remedy() -> None:
    wide = pa.array([[1, None], [2, 3]], pa.list_(pa.int16(), 2))
    data = ds.Dataset.from_table(pa.table({"v": wide}))
    with pytest.raises(SchemaError, match=r"lists of column 'v' .* 1 nulls.*float64"):
        next(data.numpy())

    def widened(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.set_column(0, "v", batch["v"].cast(pa.list_(pa.float64(), 2)))

    values = next(data.map(widened, format="arrow").numpy())["v"]
    assert str(values.tolist()) == "[[1.0, nan], [2.0, 3.0]]"
    assert data.map(lambda columns: columns).to_table()["v"].to_pylist() == wide.to_pylist()


def test_masked_bytes_with_zero_characters_are_kept() -> None:
    masked = np.ma.array([b"a\0b", b"c"], mask=[False, True])
    assert from_numpy({"x": masked}).column(0).to_pylist() == [b"a\0b", None]


@pytest.mark.parametrize(
    ("values", "kind", "first"),
    [
        (np.array(["2024-05"], "M8[M]"), pa.date32(), datetime.date(2024, 5, 1)),
        (np.array(["2024-05-02T03"], "M8[h]"), pa.timestamp("s"), datetime.datetime(2024, 5, 2, 3)),
        (np.array([2], "m8[D]"), pa.duration("s"), datetime.timedelta(days=2)),
        (np.array([3], "m8[15m]"), pa.duration("s"), datetime.timedelta(minutes=45)),
        (np.array(["2024-05-02"], ">M8[D]"), pa.date32(), datetime.date(2024, 5, 2)),
    ],
)
def test_time_units_that_arrow_lacks_are_converted(
    values: Any, kind: pa.DataType, first: Any
) -> None:
    column = from_numpy({"x": values}).column(0)
    assert (column.type, column[0].as_py()) == (kind, first)


@pytest.mark.parametrize(
    ("values", "kind", "wanted"),
    [
        (["a", None], "str", pa.array(["a", None])),
        ([1, None], "Int16", pa.array([1, None], pa.int16())),
        ([True, None], "boolean", pa.array([True, None])),
        (["a", "b", "a"], "category", pa.array(["a", "b", "a"])),
        ([1.5, float("nan")], "float32", pa.array([1.5, float("nan")], pa.float32())),
    ],
)
def test_pandas_nulls_become_arrow_nulls(values: list[Any], kind: str, wanted: pa.Array) -> None:
    pandas = pytest.importorskip("pandas")
    series = pandas.Series(values, dtype=kind)
    for given in (series, series.array):
        column = from_numpy({"x": given}).column(0)
        assert column.type == wanted.type
        assert str(column.to_pylist()) == str(wanted.to_pylist())


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": np.array([1j])}, r"column 'a' of type complex128 .* array\.real"),
        ({"a": np.zeros(1, [("x", "i4")])}, r"column 'a' of type \[.*'x'.* columns of their own"),
        ({"a": [1, 2], "b": [1]}, r"the columns have unequal lengths: 'a' has 2, 'b' has 1"),
        ({"a": 3}, r"column 'a' is the single value 3"),
        ({"a": np.array([object()])}, r"column 'a' cannot become"),
        ({"a": np.zeros((2, 0))}, r"column 'a' has shape \(2, 0\)"),
        ({"a": [np.ones((1, 2)), np.ones((2, 2))]}, r"column 'a' cannot become"),
        ({3: [1]}, r"the name of a column is a string, got 3"),
    ],
)
def test_values_that_form_no_column_are_refused_naming_column(
    columns: dict[str, object], message: str
) -> None:
    with pytest.raises(SchemaError, match=message):
        from_numpy(columns)


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        ([np.arange(2), np.arange(0), np.arange(1)], pa.list_(pa.int64())),
        ([[1, 2], [], None], pa.list_(pa.int64())),
        ([np.arange(0)], pa.list_(pa.int64())),
        ([[[1], [2, 3]], [[4], []]], pa.list_(pa.list_(pa.int64()))),
        (([1, 2], [3, 4]), pa.list_(pa.int64(), 2)),
    ],
)
def test_lists_of_any_length_become_list_columns(rows: Sequence[Any], kind: pa.DataType) -> None:
    column = from_numpy({"a": rows}).column(0)
    assert column.type == kind
    assert column.to_pylist() == [None if row is None else list(row) for row in rows]


def test_conform_orders_and_casts_safely() -> None:
    schema = pa.schema([("b", pa.float64()), ("a", pa.int32())])
    batch = from_numpy({"a": np.array([1, 2]), "b": np.array([1, 2], np.float32)}, schema)
    assert batch.schema.equals(schema)
    with pytest.raises(SchemaError, match=r"the rows.*missing: \['b'\].*not expected: \['c'\]"):
        conform(from_numpy({"a": [1], "c": [1]}), schema, what="the rows")
    with pytest.raises(SchemaError, match=r"column 'a' is of type double, expected int32"):
        conform(from_numpy({"a": [1.5], "b": [1.0]}), schema, what="the rows")


@pytest.mark.parametrize("shape", [(4,), (2, 2)])
def test_arrays_become_tensors_stated_by_schema(shape: tuple[int, ...]) -> None:
    schema = pa.schema({"t": pa.fixed_shape_tensor(pa.float32(), shape)})
    made = np.arange(12.0).reshape(3, *shape)
    column = from_numpy({"t": made}, schema).slice(1).column(0)
    assert np.array_equal(column.to_numpy_ndarray(), made[1:])
    with pytest.raises(SchemaError, match="'t' is of type fixed_size_list"):
        from_numpy({"t": np.ones((3, 3, 2))}, schema)


def test_plain_batch_drops_metadata_and_dictionaries() -> None:
    field = pa.field(
        "d", pa.dictionary(pa.int8(), pa.string()), nullable=False, metadata={"k": "v"}
    )
    schema = pa.schema([field], metadata={"pandas": "{}"})
    plain = plain_schema(schema)
    assert plain.equals(pa.schema([("d", pa.string())]), check_metadata=True)
    column = pa.array(["x"]).dictionary_encode().cast(field.type)
    batch = plain_batch(pa.RecordBatch.from_arrays([column], schema=schema), plain)
    assert batch.to_pydict() == {"d": ["x"]}
    batch.validate(full=True)


def test_concatenation_of_single_batch_is_not_copied() -> None:
    piece = from_numpy({"a": [1, 2]})
    assert concat_batches([piece]) is piece
    assert concat_batches([piece, piece.slice(1)]).to_pydict() == {"a": [1, 2, 2]}


def test_joined_batches_are_in_memory_twice_a_column_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    allocated: list[int] = []

    def measured(arrays: list[pa.Array], concat: Any = pa.concat_arrays) -> pa.Array:
        column = concat(arrays)
        allocated.append(pa.total_allocated_bytes())
        return column

    monkeypatch.setattr(pa, "concat_arrays", measured)
    names, ids = [f"c{index}" for index in range(8)], pa.array(range(65_536), pa.int64())
    before = pa.total_allocated_bytes()
    pieces = [pa.record_batch([pc.add(ids, first) for _ in names], names) for first in (0, 65_536)]
    joined = join_batches(pieces)
    assert pieces == []
    assert max(allocated) - before < 1.2 * joined.nbytes
    assert joined.schema.names == names
    assert all(column[-1].as_py() == 131_071 for column in joined.columns)


def test_single_batch_is_joined_without_copy() -> None:
    piece = pa.record_batch({"a": [1, 2]})
    assert join_batches([piece]) is piece


def test_numpy_views_follow_schema_of_each_batch():
    views = NumpyViews()
    first = pa.RecordBatch.from_pydict({"a": pa.array([1, 2], pa.int64())})
    second = pa.RecordBatch.from_pydict({"a": pa.array([0.5, None]), "b": pa.array(["x", "y"])})
    assert views.of(first)["a"].tolist() == [1, 2]
    found = views.of(second)
    assert np.isnan(found["a"][1])
    assert found["b"].tolist() == ["x", "y"]
    assert views.of(first)["a"].dtype == np.int64


@pytest.mark.parametrize("kind", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"])
def test_number_arrays_of_every_type_share_memory_there_and_back(kind: str):
    values = np.arange(10).astype(kind)
    batch = from_numpy({"a": values})
    assert batch.column(0).type == pa.from_numpy_dtype(values.dtype)
    assert batch.column(0).buffers()[1].address == values.ctypes.data
    batch.validate(full=True)
    back = NumpyViews().of(batch.slice(3, 4))["a"]
    np.testing.assert_array_equal(back, values[3:7])
    assert back.dtype == values.dtype
    assert np.shares_memory(back, values)
    assert not back.flags.writeable


@pytest.mark.parametrize(
    "values",
    [
        np.arange(10)[::2],
        np.arange(4).astype(">i8"),
        np.zeros(0, np.int64),
        np.frombuffer(b"\0" * 33, np.uint8)[1:].view("<i8"),
    ],
    ids=["strided", "big-endian", "empty", "unaligned"],
)
def test_arrays_that_arrow_cannot_view_are_converted_exactly(values: np.ndarray):
    batch = from_numpy({"a": values})
    batch.validate(full=True)
    assert batch.column(0).to_pylist() == values.tolist()


def test_column_lookup_needs_few_comparisons_of_names() -> None:
    compared = []

    class Name(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            compared.append(other)
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    given = [Name(f"column {number}") for number in range(500)]
    wanted = [Name(name) for name in reversed(given)]
    require_columns(wanted, given, what="a select")
    check_names(given, wanted, what="some rows")
    assert len(compared) < 10 * len(given)
