"""Operators on rows: map, flat_map, filter, select, rename, with_column."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataservice.dataset.dataset import Dataset
from dataservice.dataset.expressions import col, lit
from dataservice.dataset.node import UNKNOWN_CARDINALITY
from dataservice.dataset.plan import decode_plan, encode_plan
from dataservice.errors import (
    InvalidArgumentError,
    InvalidTypeError,
    SchemaError,
    UserFunctionError,
)
from tests.unit.dataservice.dataset.checkpoint_checker import check_positions, numbers, run, values


def double(columns: dict[str, Any]) -> dict[str, Any]:
    return {"x": columns["x"] * 2}


def test_map_with_numpy_format_applies_function_to_arrays() -> None:
    dataset = numbers(20).map(double)
    assert values(run(dataset)) == list(range(0, 40, 2))
    assert dataset.schema == pa.schema([("x", pa.int64())])
    assert dataset.cardinality() == 20
    check_positions(dataset)


def test_map_with_arrow_format_applies_function_to_record_batches() -> None:
    def keep(batch: pa.RecordBatch) -> Any:
        return pa.Table.from_batches([batch]).append_column("y", [pa.array(batch["x"])])

    dataset = numbers(20).map(keep, format="arrow")
    assert values(run(dataset), "y") == list(range(20))
    check_positions(dataset)
    encoded = numbers(3).map(
        lambda b: pa.record_batch({"d": b["x"].cast("string").dictionary_encode()}), format="arrow"
    )
    assert encoded.schema == pa.schema([("d", pa.string())])
    assert values(run(encoded), "d") == ["0", "1", "2"]


def test_map_with_expressions_makes_these_columns() -> None:
    dataset = numbers(20).map({"y": col("x") % 3, "x": col("x"), "one": lit(1)})
    assert dataset.schema == pa.schema([("y", pa.int64()), ("x", pa.int64()), ("one", pa.int64())])
    assert values(run(dataset), "y") == [x % 3 for x in range(20)]
    assert dataset.cardinality() == 20
    check_positions(dataset)
    check_positions(numbers(20).batch(3).map({"x": -col("x")}))
    decoded = decode_plan(encode_plan(dataset.node))
    assert encode_plan(decoded) == encode_plan(dataset.node)
    assert run(Dataset(decoded))[0].to_pylist()[1] == {"y": 1, "x": 1, "one": 1}


def test_map_with_expressions_has_the_stated_types() -> None:
    schema = pa.schema([("one", pa.int8()), ("y", pa.float32())])
    dataset = numbers(3).map({"y": col("x"), "one": lit(1)}, schema=schema)
    assert dataset.schema == schema
    assert dataset.to_table().to_pylist()[2] == {"one": 1, "y": 2.0}
    with pytest.raises(SchemaError, match=r"the expressions given to map.*missing"):
        numbers(3).map({"y": col("x")}, schema=schema).to_table()


def test_column_that_map_only_names_stays_padded() -> None:
    ragged = Dataset.from_table(pa.table({"t": [[1], [1, 2, 3]]})).padded_batch(2)
    (batch,) = ragged.map({"u": col("t")}).numpy()
    assert batch["u"].tolist() == [[1, 0, 0], [1, 2, 3]]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (({},), "map takes a dict of expressions"),
        (({"x": 1},), r"ds\.lit\(1\).*got 1 for 'x'"),
        (({1: col("x")},), "by column"),
        (({"x": col("x")}, "rows"), r"leave out format=.*'rows'"),
    ],
)
def test_map_with_a_wrong_dict_names_the_remedy(arguments: Any, told: str) -> None:
    with pytest.raises((InvalidTypeError, InvalidArgumentError), match=told):
        numbers(3).map(*arguments)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda d: d.map(col("x")), r"with_column\(name, expression\), or map\(\{name: expression"),
        (lambda d: d.flat_map(col("x")), r"one value for each row: use map or filter"),
        (
            lambda d: d.interleave(col("x")),
            r"returns a Dataset, not the .*write one such as lambda",
        ),
    ],
)
def test_expression_where_none_has_a_meaning_names_the_remedy(call: Any, told: str) -> None:
    with pytest.raises(InvalidTypeError, match=told):
        call(numbers(3))


def test_map_with_rows_format_applies_function_to_each_row() -> None:
    dataset = numbers(20).map(lambda row: {"s": str(row["x"])}, format="rows")
    assert values(run(dataset), "s") == [str(x) for x in range(20)]
    check_positions(dataset)


def test_identical_small_integers_do_not_fix_type_of_mapped_column() -> None:
    """0 * 1000 is the same object as the given 0, yet later products may not fit into 16 bits."""
    numbers_then_large = pa.table({"x": pa.array([0] * 70_000 + [200], pa.int16())})
    product = Dataset.from_table(numbers_then_large).map(
        lambda row: {"x": row["x"] * 1000}, format="rows"
    )
    assert product.schema == pa.schema([("x", pa.int64())])
    assert values(run(product))[-1] == 200_000
    same = Dataset.from_table(pa.table({"x": pa.array([2**63], pa.uint64())}))
    assert same.map(lambda row: row, format="rows").schema == pa.schema([("x", pa.uint64())])


def test_map_trusts_and_enforces_stated_schema() -> None:
    def fail(_columns: Any) -> Any:
        raise AssertionError("asking for the schema ran the function")

    schema = pa.schema([("x", pa.float32())])
    assert numbers(3).map(fail, schema=schema).schema == schema
    dataset = numbers(3).map(double, schema=schema)
    assert run(dataset)[0].schema == schema
    with pytest.raises(SchemaError, match=r"returned have the columns \['x'\].*\['z'\]"):
        run(numbers(3).map(double, schema=pa.schema([("z", pa.int64())])))


def test_map_result_whose_schema_changes_is_refused() -> None:
    def drift(columns: dict[str, Any]) -> dict[str, Any]:
        return {"x": columns["x"] + (0.5 if columns["x"][0] > 3 else 0)}

    with pytest.raises(SchemaError, match=r"column 'x' is of type double, expected int64.*schema="):
        run(numbers(20).map(drift))


@pytest.mark.parametrize(
    ("function", "format_name", "message"),
    [
        (lambda c: c["x"], "numpy", "must return a dict of arrays.*ndarray; .*with_column"),
        (lambda _c: None, "numpy", "it returned NoneType; end it with return"),
        (lambda _c: {}, "numpy", "without entries"),
        (lambda c: {"x": c["x"], "y": c["x"][:1]}, "numpy", "'x' has 20, 'y' has 1"),
        (lambda c: {"x": c["x"][:1]}, "numpy", "returned 1 rows for 20; map keeps"),
        (lambda _b: 3, "arrow", "RecordBatch; it returned int"),
        (lambda r: r["x"], "rows", "a dict with the same keys"),
        (lambda r: {"a": 1} if r["x"] else {"b": 1}, "rows", "same keys"),
        (lambda r: {"a": 1} if r["x"] else {"a": "b"}, "rows", "different types"),
    ],
)
def test_invalid_result_of_mapped_function_is_refused(
    function: Any, format_name: str, message: str
) -> None:
    with pytest.raises(SchemaError, match=message):
        run(numbers(20, []).map(function, format=format_name))


def test_function_of_rows_may_return_n_d_arrays() -> None:
    def image(row: dict[str, Any]) -> dict[str, Any]:
        return {"x": np.full((1, row["x"] + 1), row["x"], np.float32)}

    images = numbers(2).map(image, format="rows")
    assert images.schema == pa.schema([("x", pa.list_(pa.list_(pa.float32())))])
    assert images.to_table()["x"].to_pylist() == [[[0.0]], [[1.0, 1.0]]]


def test_flat_map_may_change_number_of_rows() -> None:
    dataset = numbers(20).flat_map(lambda c: {"x": np.repeat(c["x"], c["x"] % 3)})
    assert values(run(dataset)) == [x for x in range(20) for _ in range(x % 3)]
    assert dataset.cardinality() == UNKNOWN_CARDINALITY
    check_positions(dataset)


@pytest.mark.parametrize("format", ["numpy", "arrow", "rows"])
def test_flat_map_returning_datasets_is_refused_naming_interleave(format: str) -> None:
    with pytest.raises(SchemaError, match=r"a dataset write interleave\(fn, cycle_length=1"):
        run(numbers(3).flat_map(lambda _: numbers(2), format=format))


def test_flat_map_with_rows_format_expands_each_row() -> None:
    def copies(row: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"s": str(row["x"])}] * (row["x"] % 3)

    dataset = numbers(20).flat_map(copies, format="rows", schema=pa.schema([("s", pa.string())]))
    assert values(run(dataset), "s") == [str(x) for x in range(20) for _ in range(x % 3)]
    check_positions(dataset)
    single = numbers(3).flat_map(lambda row: {"y": row["x"]}, format="rows")
    assert values(run(single), "y") == [0, 1, 2]
    with pytest.raises(SchemaError, match=r"flat_map.*a dict or a list of dicts.*returned 7"):
        run(numbers(3).flat_map(lambda _row: 7, format="rows"))


def test_user_error_names_the_operator() -> None:
    with pytest.raises(UserFunctionError, match="given to flat_map raised KeyError"):
        run(numbers(3).flat_map(lambda columns: columns["absent"]))


def test_map_over_batches_may_change_number_of_rows() -> None:
    dataset = numbers(10).batch(4).map(lambda c: {"sum": [c["x"].sum()]})
    assert values(run(dataset), "sum") == [6, 22, 17]
    assert dataset.cardinality() == 3
    check_positions(dataset)


def test_filter_by_expression_or_function_keeps_matching_rows() -> None:
    by_expression = numbers(30).filter(col("x") % 5 == 2)
    by_function = numbers(30).filter(lambda c: c["x"] % 5 == 2)
    for dataset in (by_expression, by_function):
        assert values(run(dataset)) == [2, 7, 12, 17, 22, 27]
        assert dataset.cardinality() == UNKNOWN_CARDINALITY
        assert dataset.schema == pa.schema([("x", pa.int64())])
        check_positions(dataset)


def test_filter_drops_rows_with_null_condition() -> None:
    table = pa.table({"x": pa.array([1, None, 3])})
    assert values(run(Dataset.from_table(table).filter(col("x") > 1))) == [3]


def test_filter_that_keeps_all_rows_does_not_copy_them() -> None:
    source = numbers(3)
    (whole,), (kept,) = run(source), run(source.filter(col("x") < 9))
    assert kept.column(0).buffers()[1].address == whole.column(0).buffers()[1].address


@pytest.mark.parametrize(
    "condition",
    [
        lambda c: c["keep"],
        lambda c: pa.array([None if x == 1 else x > 1 for x in c["x"]]),
        lambda c: np.ma.masked_array(c["x"] > 0, c["x"] == 1),
    ],
)
def test_filter_function_may_return_mask_with_nulls(condition: Callable[..., Any]) -> None:
    table = pa.table({"x": [0, 1, 2], "keep": [False, None, True]})
    assert values(run(Dataset.from_table(table).filter(condition))) == [2]


def test_nullable_mask_of_wrong_type_or_length_is_refused() -> None:
    table = pa.table({"x": [0, 1, 2], "count": [1, None, 3], "keep": [False, None, True]})
    for condition in (lambda c: c["count"], lambda _: pa.array([True, None])):
        with pytest.raises(SchemaError, match="boolean array of 3 rows"):
            run(Dataset.from_table(table).filter(condition))
    with pytest.raises(SchemaError, match=r"col\('keep'\).fill_null\(False\)"):
        run(Dataset.from_table(table).filter(lambda c: ~c["keep"]))


def test_filter_that_drops_all_rows_yields_no_batch() -> None:
    dataset = numbers(30).filter(col("x") < 0)
    assert run(dataset) == []
    assert dataset.map(double).schema == pa.schema([("x", pa.int64())])


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (col("x") + 1, r"takes a condition, but \(col\('x'\) \+ lit\(1\)\) is of type int64"),
        (lambda c: c["x"], "boolean array of 3 rows; it returned int64"),
        (lambda _c: None, "boolean array of 3 rows; it returned None"),
        (lambda c: c["x"][:1] > 0, r"returned bool of shape \(1,\)"),
        (lambda _c: True, "it returned True"),
        (col("nope") > 1, "no column 'nope'"),
    ],
)
def test_invalid_filter_condition_is_refused(condition: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        run(numbers(3, []).filter(condition))
    with pytest.raises(SchemaError):
        _ = numbers(3, []).filter(condition).schema


def test_filter_over_batches_drops_rows_within_batches() -> None:
    dataset = numbers(9).batch(3).filter(col("x") % 2 == 0)
    assert [batch.column(0).to_pylist() for batch in run(dataset)] == [[0, 2], [4], [6, 8]]


def test_select_and_rename_set_names_and_order_of_columns() -> None:
    dataset = numbers(5).with_column("y", col("x") + 1).rename({"x": "a"}).select("y", "a")
    assert run(dataset)[-1].schema.names == ["y", "a"]
    assert dataset.schema.names == ["y", "a"]
    assert values(run(dataset), "y") == [1, 2, 3, 4, 5]
    assert dataset.select(["a"]).schema.names == ["a"]
    check_positions(dataset)


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda d: d.select("z").schema, SchemaError, r"no column 'z'; the columns are \['x'\]"),
        (lambda d: d.select([]), InvalidArgumentError, "column names"),
        (lambda d: d.select("x", "x"), InvalidArgumentError, "twice"),
        (lambda d: d.select(3), InvalidArgumentError, "column names, got"),
        (lambda d: d.rename({"z": "a"}).schema, SchemaError, "no column 'z'"),
        (lambda d: d.rename("x"), InvalidArgumentError, "dict of old to new"),
        (
            lambda d: d.with_column("y", col("x")).rename({"x": "y"}).schema,
            SchemaError,
            "two columns one name",
        ),
        (lambda d: d.with_column("", col("x")), InvalidArgumentError, "column name"),
        (lambda d: d.with_column("y", 3), InvalidArgumentError, "function"),
        (lambda d: d.map(col("x")), InvalidArgumentError, "use with_column"),
        (lambda d: d.map(3), InvalidArgumentError, "map takes a function, or its 'module:f"),
        (lambda d: d.map(double, format="pandas"), InvalidArgumentError, "'pandas'"),
        (lambda d: d.map(double, schema="x"), InvalidArgumentError, "pyarrow.Schema"),
        (lambda d: d.filter(None), InvalidArgumentError, "filter takes a function"),
    ],
)
def test_invalid_row_operator_arguments_are_refused(build: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        build(numbers(5))


def test_with_column_appends_new_and_replaces_existing_column() -> None:
    base = numbers(6).with_column("y", lambda c: c["x"] * 0.5)
    replaced = base.with_column("x", col("x") + 10)
    assert replaced.schema.names == ["x", "y"]
    assert values(run(replaced)) == [10, 11, 12, 13, 14, 15]
    assert values(run(replaced), "y") == [0, 0.5, 1, 1.5, 2, 2.5]
    check_positions(replaced)
    vectors = base.with_column("v", lambda c: np.stack([c["x"], c["x"]], axis=1))
    assert vectors.schema.field("v").type == pa.list_(pa.int64(), 2)
    with pytest.raises(SchemaError, match=r"with_column\('z'\) returned 1 values for 6 rows"):
        run(numbers(6, []).with_column("z", lambda _c: np.ones(1)))


def test_user_error_names_the_rows() -> None:
    def fail(columns: dict[str, Any]) -> Any:
        if columns["x"][-1] > 7:
            raise RuntimeError("too large")
        return columns

    def fail_mask(columns: dict[str, Any]) -> Any:
        return fail(columns)["x"] >= 0

    for dataset in (
        numbers(20).map(fail),
        numbers(20).filter(fail_mask),
        numbers(20).with_column("y", fail_mask),
        numbers(20).batch(2).map(fail),
    ):
        with pytest.raises(UserFunctionError, match=r"(?s)too large.*table rows 8\.\.8") as caught:
            run(dataset)
        assert caught.value.source.startswith("table rows 8..8")


def test_empty_dataset_yields_no_batches() -> None:
    empty = Dataset.range(0).map(lambda c: {"y": c["id"]}).filter(col("y") > 0).batch(3)
    assert run(empty) == []
    assert empty.cardinality() == UNKNOWN_CARDINALITY
    assert empty.schema == pa.schema([("y", pa.int64())])


def test_function_failing_on_sample_names_file_and_rows(
    tmp_path: pathlib.Path,
) -> None:
    path = tmp_path / "first.parquet"
    pq.write_table(pa.table({"x": [1, 2, 3]}), path)

    def fails(_columns: Any) -> Any:
        raise ValueError("no")

    with pytest.raises(UserFunctionError, match=r"rows 0\.\.2, a sample") as caught:
        _ = Dataset.from_parquet(path).map(fails).schema
    assert str(path) in caught.value.source
    with pytest.raises(UserFunctionError, match=r"range rows 0\.\.4, a sample"):
        _ = Dataset.range(5).map(fails).schema
