"""Columns that NumPy cannot hold pass through functions that leave them alone, and no others."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pyarrow as pa
import pytest

import dataservice as ds
from dataservice.dataset.arrow_arrays import to_arrow
from dataservice.dataset.numpy_views import to_function
from dataservice.dataset.unchanged_columns import restore_unchanged
from dataservice.errors import SchemaError

TYPES = {
    "count": pa.int32(),
    "flag": pa.bool_(),
    "pair": pa.list_(pa.int8(), 2),
    "code": pa.dictionary(pa.int8(), pa.int64()),
}
VALUES: dict[str, list[Any]] = {
    "count": [1, None, 3, 4],
    "flag": [None, True, True, False],
    "pair": [[1, 2], None, [5, 6], [7, 8]],
    "code": [5, None, 5, 6],
    "x": [1.0, 2.0, 3.0, 4.0],
}


def rows() -> ds.Dataset:
    """Returns two batches; all nulls are in the first."""
    columns = {name: pa.array(values, TYPES.get(name)) for name, values in VALUES.items()}
    return ds.Dataset.from_table(pa.table(columns)).batch(2)


def test_untouched_columns_keep_their_nulls_and_types() -> None:
    table = rows().map(lambda c: {**c, "y": c["x"] * 2}).to_table()
    assert table["y"].to_pylist() == [2.0, 4.0, 6.0, 8.0]
    for name, values in VALUES.items():
        assert table[name].to_pylist() == values
    assert table.schema.field("count").type == pa.int32()
    assert table.schema.field("flag").type == pa.bool_()


@numba.njit  # type: ignore[untyped-decorator]
def doubled(x: Any) -> Any:
    return x * 2


def test_untouched_columns_pass_renamed_and_beside_any_function() -> None:
    renamed = rows().map(lambda c: {"n": c["count"], "x": c["x"]}).to_table()
    assert renamed["n"].to_pylist() == VALUES["count"]
    assert rows().filter(lambda c: c["x"] > 1).to_table()["count"].to_pylist() == [None, 3, 4]
    for function in (doubled, lambda c: c["x"] * 2):
        made = rows().with_column("y", function).to_table()
        assert made["flag"].to_pylist() == VALUES["flag"]
    again = rows().with_column("n", lambda c: c["count"]).to_table()
    assert again["n"].to_pylist() == VALUES["count"]


TOUCHES: list[Callable[[Any], Any]] = [
    lambda v: v + 1,
    lambda v: 1 - v,
    lambda v: v == 2,
    lambda v: -v,
    lambda v: v[0],
    lambda v: v.astype(np.int64),
    lambda v: v.shape,
    lambda v: len(v),
    lambda v: list(v),
    lambda v: 1 in v,
    lambda v: bool(v),
    lambda v: np.sqrt(v),
    lambda v: np.where(v, 1, 0),
    lambda v: np.concatenate([v, v]),
    lambda v: np.asarray(v),
    lambda v: np.array([1, 2]) * v,
]


@pytest.mark.parametrize("touch", TOUCHES)
def test_use_of_column_with_nulls_is_refused_naming_column_and_remedy(
    touch: Callable[[Any], Any],
) -> None:
    (batch,) = pa.table({"count": pa.array([1, None])}).to_batches()
    given = to_function(batch)
    with pytest.raises(SchemaError, match=r"column 'count' .*1 nulls.*fill_null\(0\)"):
        touch(given["count"])


def test_function_that_uses_column_with_nulls_raises_schema_error() -> None:
    message = r"column 'count' .*1 nulls.*fill_null.*only return it as it is"
    with pytest.raises(SchemaError, match=message):
        rows().map(lambda c: {**c, "count": c["count"] + 1}).to_table()
    with pytest.raises(SchemaError, match=message):
        rows().filter(lambda c: c["count"] > 1).to_table()
    with pytest.raises(SchemaError, match=message):
        rows().select(["count"]).map(doubled_count).to_table()


@numba.njit  # type: ignore[untyped-decorator]
def doubled_count(count: Any) -> Any:
    return count * 2


def test_numpy_iterator_refuses_column_with_nulls_at_once() -> None:
    with pytest.raises(SchemaError, match="column 'count'"):
        next(iter(rows().numpy()))


@pytest.mark.parametrize(
    "use", [int, float, round, "{}".format], ids=["int", "float", "round", "format"]
)
def test_conversion_of_column_with_nulls_is_refused_naming_it(use: Callable[[Any], Any]) -> None:
    with pytest.raises(SchemaError, match="'count' of type int32 has 1 nulls"):
        rows().map(lambda c: {"n": use(c["count"])}).to_table()


def test_untouched_column_may_be_copied() -> None:
    (batch, *_) = rows()
    column = to_function(batch)["count"]
    again: Any = copy.copy(column)
    assert again.array.equals(batch.column("count"))


def test_float_nulls_passed_on_are_restored_and_nans_stay() -> None:
    column = pa.array([1.0, None, float("nan"), None, 5.0])

    def change(columns: dict[str, Any]) -> dict[str, Any]:
        assert np.isnan(columns["x"]).tolist() == [False, True, True, True, False]
        columns["y"][3] = 7.0
        columns["y"][4] = np.nan
        return {"same": columns["x"], "y": columns["y"], "new": columns["x"] * 1}

    for kind in (pa.float16(), pa.float32(), pa.float64()):
        given = column.cast(kind)
        made = ds.Dataset.from_table(pa.table({"x": given, "y": given})).map(change).to_table()
        assert made["same"].is_null().to_pylist() == [False, True, False, True, False]
        assert made["same"].type == kind
        assert made["y"].is_null().to_pylist() == [False, True, False, False, False]
        assert made["y"][3].as_py() == 7.0
        assert made["new"].null_count == 0


class Celsius(pa.ExtensionType):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(pa.int64(), "tests.celsius")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""


TENSORS = np.arange(12).reshape(3, 2, 2)


@pytest.mark.parametrize(
    "column",
    [
        pa.ExtensionArray.from_storage(Celsius(), pa.array([1, 2, 3])),
        pa.ExtensionArray.from_storage(Celsius(), pa.array([1, None, 3])),
        pa.array([b"0" * 16, None, b"1" * 16], pa.uuid()),
        pa.FixedShapeTensorArray.from_numpy_ndarray(TENSORS),
        pa.UnionArray.from_sparse(
            pa.array([0, 1, 0], pa.int8()), [pa.array([1, 2, 3]), pa.array(["a", "b", "c"])]
        ),
    ],
    ids=["extension", "with nulls", "uuid", "tensor", "union"],
)
def test_columns_of_types_unknown_to_numpy_are_passed_on(column: pa.Array) -> None:
    rows = ds.Dataset.from_table(pa.table({"id": [1, 2, 3], "v": column}))
    for passed in (rows.map(dict), rows.flat_map(dict), rows.filter(lambda c: c["id"] > 0)):
        assert passed.to_table()["v"].combine_chunks().equals(column)
    assert rows.take(0).map(dict).to_table().schema.field("v").type == column.type


def test_tensor_column_has_its_dimensions_in_functions() -> None:
    column = pa.FixedShapeTensorArray.from_numpy_ndarray(TENSORS)
    rows = ds.Dataset.from_table(pa.table({"v": column}))
    (batch,) = rows.batch(3).numpy()
    assert batch["v"].tolist() == TENSORS.tolist()
    assert rows.map(lambda c: {"sum": c["v"].sum(axis=(1, 2))}).to_table()["sum"][2].as_py() == 38


def test_use_of_column_without_numpy_form_is_refused() -> None:
    union = pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])
    rows = ds.Dataset.from_table(pa.table({"v": union}))
    with pytest.raises(SchemaError, match=r"column 'v' of type sparse_union.*leave it out"):
        rows.map(lambda c: {"v": c["v"] + 1}).to_table()


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.large_list(pa.float64())])
def test_nulls_in_float_lists_passed_on_are_restored(kind: pa.DataType) -> None:
    rows = [[1.0, None, float("nan")], None, [], [None, 2.0]]
    table = pa.table({"l": pa.array([[0.0], *rows], kind), "n": pa.array(range(5))}).slice(1)

    def passing(c: Any) -> Any:
        return {"same": c["l"], "new": c["l"].copy(), "n": c["n"]}

    def changing(c: Any) -> Any:
        c["l"][3] = np.array([5.0, float("nan")], c["l"][3].dtype)
        return {"l": c["l"]}

    (made,) = ds.Dataset.from_table(table).map(passing)
    assert made.column("same").type == kind
    assert str(made.column("same").to_pylist()) == str(rows)
    assert made.column("new").flatten().null_count == 0
    (changed,) = ds.Dataset.from_table(table).map(changing)
    assert str(changed.column("l").to_pylist()[3]) == "[5.0, nan]"
    assert str(changed.column("l").to_pylist()[0]) == str(rows[0])


NESTED = [
    (pa.list_(pa.float32(), 2), [[1.0, None], [float("nan"), None]]),
    (pa.list_(pa.list_(pa.float32(), 2), 2), [[[1, None], [2, 3]], [[None, 1], [5, None]]]),
    (pa.list_(pa.list_(pa.float64())), [[[1.0, None], None, []], None, [[None, float("nan")]]]),
    (pa.list_(pa.list_(pa.float32(), 2)), [[[1.0, None], None, [2, 3]], None, [[None, 1]]]),
    (pa.list_(pa.list_(pa.float32()), 2), [[[1.0, None], []], [None, [None, float("nan")]]]),
    (pa.struct({"v": pa.list_(pa.float32())}), [{"v": [None, 1.0]}, None, {"v": [1.0]}]),
    (pa.fixed_shape_tensor(pa.float32(), (2,)), [[1.0, None], [float("nan"), None]]),
]


@pytest.mark.parametrize(("kind", "rows"), NESTED, ids=str)
def test_float_nulls_at_any_depth_are_restored(kind: pa.DataType, rows: list[Any]) -> None:
    storage = getattr(kind, "storage_type", kind)
    column = pa.array([rows[0], *rows, rows[-1]], storage).slice(1, len(rows))
    if storage is not kind:
        column = pa.ExtensionArray.from_storage(kind, column)
    data = ds.Dataset.from_table(pa.table({"v": column, "n": pa.array(range(len(rows)))}))
    for passing in (data.map(dict), data.with_column("v", lambda c: c["v"])):
        made = passing.to_table()["v"].combine_chunks()
        assert made.type == kind
        assert str(made.to_pylist()) == str(column.to_pylist())


def test_nan_written_into_multidimensional_array_is_a_value() -> None:
    table = pa.table({"v": pa.array([[1.0, None], [None, 4.0]], pa.list_(pa.float64(), 2))})

    def change(columns: dict[str, Any]) -> dict[str, Any]:
        columns["v"][0, 0] = np.nan
        columns["v"][1, 0] = 3.0
        return columns

    made = ds.Dataset.from_table(table).map(change).to_table()["v"].to_pylist()
    assert str(made) == "[[nan, None], [3.0, 4.0]]"


@pytest.mark.parametrize("value", [[1.0], [[1.0, 2.0]], "text"])
def test_function_may_write_other_values_into_nested_lists(value: Any) -> None:
    table = pa.table({"v": pa.array([[[1.0, None]], [[2.0]]])})

    def change(columns: dict[str, Any]) -> dict[str, Any]:
        columns["v"][0] = columns["v"][1] = value
        return columns

    made = ds.Dataset.from_table(table).map(change).to_table()
    assert made["v"].to_pylist() == [value, value]


def test_numbers_passed_on_by_function_are_not_rebuilt() -> None:
    batch = pa.record_batch({"a": [1, 2, 3], "f": [0.5, None, 2.5]}).slice(1)
    given = to_function(batch)
    given["f"][1] = 7.0
    passed, _ = restore_unchanged(
        batch, given, {"other": given["a"], "new": given["a"] + 1, **given}
    )
    assert passed["other"].equals(batch["a"])
    assert to_arrow(passed["other"], "other") is passed["other"]
    assert isinstance(passed["new"], np.ndarray)
    # An array into which the function can write may have changed.
    assert to_arrow(passed["f"], "f").to_pylist() == [None, 7.0]
