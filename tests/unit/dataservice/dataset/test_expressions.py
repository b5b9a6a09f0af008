"""Column expressions: values, nulls, types, text, JSON, errors."""

from __future__ import annotations

import copy
import datetime
import decimal
import json
import math
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataservice.dataset.expressions import Expression, col, lit
from dataservice.dataset.pushdown import statistics_conditions
from dataservice.errors import InvalidArgumentError, SchemaError

BATCH = pa.RecordBatch.from_pydict(
    {
        "i": pa.array([-7, 0, 3, None], pa.int64()),
        "j": pa.array([2, 2, 2, 2], pa.int32()),
        "f": pa.array([0.5, float("nan"), -2.0, None], pa.float32()),
        "s": pa.array(["a", "b", None, "d"]),
        "b": pa.array([True, False, None, True]),
    }
)


def evaluated(expression: Expression) -> list[Any]:
    return expression.evaluate(BATCH).to_pylist()


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        (col("i") + 1, [-6, 1, 4, None]),
        (1 + col("i"), [-6, 1, 4, None]),
        (col("i") - col("j"), [-9, -2, 1, None]),
        (10 - col("i"), [17, 10, 7, None]),
        (col("i") * 2, [-14, 0, 6, None]),
        (col("i") / 2, [-3.5, 0.0, 1.5, None]),
        (col("i") // 2, [-4, 0, 1, None]),
        (col("i") % 2, [1, 0, 1, None]),
        (col("i") ** 2, [49, 0, 9, None]),
        (col("j") ** 0.5, [2**0.5] * 4),
        (2 ** col("j"), [4] * 4),
        (7 % col("j"), [1, 1, 1, 1]),
        (-col("i"), [7, 0, -3, None]),
        (col("i") == 0, [False, True, False, None]),
        (col("i") != 0, [True, False, True, None]),
        (col("i") < 0, [True, False, False, None]),
        (col("i") <= 0, [True, True, False, None]),
        (col("i") > 0, [False, False, True, None]),
        (col("i") >= 0, [False, True, True, None]),
        (col("b") & (col("i") < 0), [True, False, False, None]),
        (col("b") | lit(True), [True, True, True, True]),
        (~col("b"), [False, True, None, False]),
        (col("i").is_in([3, 0]), [False, True, True, False]),
        (col("s").isin(["d", "z"]), [False, False, False, True]),
        (col("j").is_in([]), [False] * 4),
        (col("i").is_null(), [False, False, False, True]),
        (col("i").is_valid(), [True, True, True, False]),
        (col("i").cast("float64"), [-7.0, 0.0, 3.0, None]),
        (col("i").cast(pa.float32()), [-7.0, 0.0, 3.0, None]),
        (abs(col("i")), [7, 0, 3, None]),
        (col("i").abs(), [7, 0, 3, None]),
        (col("i").fill_null(9), [-7, 0, 3, 9]),
        (col("s").fill_null("?"), ["a", "b", "?", "d"]),
        (col("i").clip(-1, 2), [-1, 0, 2, None]),
        (col("i").clip(lo=0), [0, 0, 3, None]),
        (col("i").clip(hi=0), [-7, 0, 0, None]),
        (lit(5), [5, 5, 5, 5]),
        (lit(7) % 4, [3, 3, 3, 3]),
    ],
)
def test_expression_evaluates_to_expected_values(expression: Expression, wanted: list[Any]) -> None:
    assert evaluated(expression) == wanted
    again = Expression.from_json(json.loads(json.dumps(expression.to_json())))
    assert evaluated(again) == wanted
    assert repr(again) == repr(expression)


def test_constant_does_not_widen_column_type() -> None:
    assert (col("f") * 2.0).evaluate(BATCH).type == pa.float32()
    assert (col("f") + 1).evaluate(BATCH).type == pa.float32()
    assert (col("f") ** 2).evaluate(BATCH).type == pa.float32()
    assert (col("j") ** 2).evaluate(BATCH).type == pa.int32()
    assert (col("j") + 1).evaluate(BATCH).type == pa.int32()
    assert (col("j") * 2.5).evaluate(BATCH).to_pylist() == [5.0] * 4
    assert (col("j") + 2**40).evaluate(BATCH).to_pylist() == [2**40 + 2] * 4
    assert col("f").clip(0, 1).evaluate(BATCH).type == pa.float32()


def test_integer_beyond_float_precision_is_compared_with_float_column() -> None:
    values = pa.array([1.0, 1e8, None, float("nan")], pa.float32())
    batch = pa.record_batch({"f": values, "h": values.cast(pa.float16(), safe=False)})
    assert (col("f") < 16_777_217).evaluate(batch).to_pylist() == [True, False, None, False]
    assert (col("f") == 100_000_000).evaluate(batch).to_pylist() == [False, True, None, False]
    assert (lit(16_777_217) > col("h")).evaluate(batch).to_pylist() == [True, False, None, False]


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        (col("h") == 0.5, [True, None, False]),
        (col("h") < 1, [True, None, True]),
        (col("h") >= col("h"), [True, None, True]),
        (col("h").is_in([-2.0, 0.1]), [False, False, True]),
        (col("h").clip(0, 1), [0.5, None, 0.0]),
        (abs(col("h")) * 2.0 + col("h"), [1.5, None, 2.0]),
        (1 / col("h"), [2.0, None, -0.5]),
    ],
)
def test_half_float_expressions_stay_half_float(expression: Expression, wanted: list[Any]) -> None:
    halves = pa.record_batch({"h": pa.array([0.5, None, -2.0], pa.float16())})
    found = expression.evaluate(halves)
    assert found.to_pylist() == wanted
    assert found.type in (pa.bool_(), pa.float16())
    wide = pa.record_batch({"h": halves["h"], "f": pa.array([0.1] * 3, pa.float32())})
    assert (col("h") + col("f")).evaluate(wide).type == pa.float32()


def test_is_in_means_equality_with_listed_value() -> None:
    def of(values: pa.Array, *listed: Any) -> list[Any]:
        batch = pa.RecordBatch.from_pydict({"x": values})
        return col("x").is_in(listed).evaluate(batch).to_pylist()

    assert of(pa.array([1, 2, None]), 1.5, 2.0, math.nan, math.inf) == [False, True, False]
    assert of(pa.array([1, 255], pa.uint8()), -1, 256, 1 << 63, 255) == [False, True]
    assert of(pa.array([0.1, 0.5], pa.float32()), 0.1, 0.5) == [False, True]
    assert of(pa.array([0.0, -0.0, 1.0]), 0) == [True, True, False]
    nans = pa.array([math.nan, 1.0], from_pandas=False)
    assert of(nans, math.nan) == [True, False]
    day = pa.array([datetime.date(2024, 1, 2)])
    for mixed in (("a", 1), (1, 1 << 63), (1.5, math.nan)):
        with pytest.raises(SchemaError):
            of(day, *mixed)


def test_decimal_and_time_constants_are_compared_exactly() -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "price": pa.array([decimal.Decimal("1.50"), decimal.Decimal("9.99"), None]),
            "at": pa.array([datetime.time(9), datetime.time(10), None], pa.time32("s")),
            "begin": pa.array([0, 3_600, None], pa.timestamp("s", "UTC")),
            "end": pa.array([7_200_000, 3_660_000, None], pa.timestamp("ms", "UTC")).cast(
                "timestamp[ms]"
            ),
        }
    )
    hour = datetime.timedelta(hours=1)
    end = col("end").cast(pa.timestamp("ms", "UTC"))
    for condition in (
        col("price") == decimal.Decimal("1.500"),
        ~(col("price") > decimal.Decimal("1.5")),
        col("price").is_in([decimal.Decimal("1.5")]),
        col("at") < datetime.time(9, 30),
        col("at").is_in([datetime.time(9)]),
        col("begin") + hour <= datetime.datetime(1970, 1, 1, 1, tzinfo=datetime.UTC),
    ):
        again = Expression.from_json(json.loads(json.dumps(condition.to_json())))
        assert again.evaluate(batch).to_pylist()[:2] == [True, False]
    assert (end - col("begin") > hour).evaluate(batch).to_pylist() == [True, False, None]
    filled = col("price").fill_null(decimal.Decimal("0.25")).evaluate(batch)
    assert filled.to_pylist()[2] == decimal.Decimal("0.25")
    for value in (decimal.Decimal("NaN"), datetime.time(9, tzinfo=datetime.UTC)):
        with pytest.raises(InvalidArgumentError, match="Arrow has"):
            lit(value)


@pytest.mark.parametrize(
    "kind",
    [
        pa.timestamp("us", "Europe/Berlin"),
        pa.decimal128(12, 2),
        pa.decimal256(40, 3),
        pa.binary(2),
        pa.timestamp("ns"),
        pa.duration("ms"),
    ],
)
def test_cast_takes_types_with_parameters(kind: pa.DataType) -> None:
    assert col("i").cast(kind).parameters == col("i").cast(str(kind)).parameters
    again = Expression.from_json(json.loads(json.dumps(lit(None).cast(kind).to_json())))
    assert again.evaluate(BATCH).type == kind
    for wrong in ("decimal128(99, 2)", "fixed_size_binary[x]", "list<item: int8>"):
        with pytest.raises(InvalidArgumentError, match="is not a type name"):
            col("i").cast(wrong)


def test_clip_keeps_nan_and_null() -> None:
    clipped = col("f").clip(-1, 0.25).evaluate(BATCH).to_pylist()
    assert clipped[0] == 0.25
    assert math.isnan(clipped[1])
    assert clipped[2:] == [-1.0, None]
    assert (lit(None).clip(0, 1)).evaluate(BATCH).to_pylist() == [None] * 4
    assert col("i").clip(3, 1).evaluate(BATCH).to_pylist() == [1, 1, 1, None]


@pytest.mark.parametrize("value", [0.5, math.nan, math.inf, -1, 256])
def test_fill_null_refuses_value_outside_column_type(value: float) -> None:
    batch = pa.RecordBatch.from_pydict({"u": pa.array([1, None], pa.uint8())})
    with pytest.raises(SchemaError, match=rf"fill_null\({value}\) is not a value of uint8.*cast"):
        col("u").fill_null(value).evaluate(batch)
    assert col("u").fill_null(2.0).evaluate(batch).to_pylist() == [1, 2]
    wider = col("u").cast("float64").fill_null(value).evaluate(batch)
    assert str(wider[1].as_py()) == str(float(value))


def test_log1p_gives_nan_below_minus_one_and_keeps_null() -> None:
    logs = col("f").log1p().evaluate(BATCH)
    assert logs.type == pa.float32()
    first, nan, below, null = logs.to_pylist()
    assert first == pytest.approx(math.log1p(0.5))
    assert math.isnan(nan)
    assert math.isnan(below)
    assert null is None
    assert col("j").log1p().evaluate(BATCH).to_pylist() == [pytest.approx(math.log(3))] * 4


def test_hash_expression_equals_documented_hash() -> None:
    assert col("s").hash(100).evaluate(BATCH).type == pa.int64()
    assert lit(0).hash(10**9).evaluate(BATCH)[0].as_py() == 0xE220A8397B1DCDAF % 10**9


def test_expression_lists_its_columns_and_conjuncts() -> None:
    condition = (col("i") > 0) & (col("f") < col("j")) & col("b")
    assert condition.columns() == {"i", "f", "j", "b"}
    assert [repr(part) for part in condition.conjuncts()] == [
        "(col('i') > lit(0))",
        "(col('f') < col('j'))",
        "col('b')",
    ]


def test_constants_of_every_type_survive_json() -> None:
    for value in (
        datetime.datetime(2024, 1, 2, 3),
        datetime.date(2024, 1, 2),
        datetime.time(9, 30, 0, 7),
        datetime.timedelta(days=-3, microseconds=5),
        decimal.Decimal("-1.50"),
        b"\x00\xff",
        None,
    ):
        again = Expression.from_json(json.loads(json.dumps(lit(value).to_json())))
        assert again.parameters == (value,)


def test_expression_has_no_truth_value() -> None:
    with pytest.raises(TypeError, match="write & for and"):
        bool(col("i") == 1)
    with pytest.raises(TypeError):
        (col("i") > 0) and (col("j") > 0)


def test_missing_column_error_names_existing_columns() -> None:
    with pytest.raises(SchemaError, match=r"no column 'nope'.*'i', 'j'"):
        evaluated(col("nope") > 0)


def test_type_error_names_the_expression() -> None:
    with pytest.raises(SchemaError, match=r"col\('s'\) \+ lit\(1\)"):
        evaluated(col("s") + 1)
    with pytest.raises(SchemaError, match="string"):
        evaluated(col("s") % 2)
    with pytest.raises(InvalidArgumentError, match="division by zero"):
        evaluated(col("j") // 0)
    with pytest.raises(SchemaError, match=r"\(col\('i'\) \*\* lit\(-1\)\): integers to negative"):
        evaluated(col("i") ** -1)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: col("i") == None, r"^col\('i'\) .* with None: write .is_null\(\)"),  # noqa: E711
        (lambda: col("i") != None, r"cannot be compared with None"),  # noqa: E711
        (lambda: col("i") >= None, r"cannot be compared with None"),
        (lambda: col("s").is_in("ab"), r"several values.*, got 'ab'"),
        (lambda: col("i").isin(5), r"several values, as in is_in\(\[1, 2\]\), got 5"),
        (lambda: col(3), "name of a column"),
        (lambda: lit([1]), "numbers, strings"),
        (lambda: col("i").hash(0), "positive number of buckets, got 0"),
        (lambda: col("i").hash(True), "positive number of buckets, got True"),
        (lambda: col("i").cast("int65"), "'int65' is not a type name"),
        (lambda: col("i").cast(float), "is not a type name"),
        (lambda: col("i").is_in([None]), "None"),
        (lambda: col("i").clip("a"), "numbers"),
    ],
)
def test_invalid_expression_arguments_are_refused(build: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        build()


@pytest.mark.parametrize(
    "encoded",
    [
        None,
        [],
        {},
        {"op": "exec", "args": [{"op": "col", "with": ["i"]}]},
        {"op": "__class__", "args": [{"op": "col", "with": ["i"]}]},
        {"op": "evaluate", "args": [{"op": "col", "with": ["i"]}], "with": [1]},
        {"op": "add", "args": [{"op": "col", "with": ["i"]}]},
        {"op": "col", "with": [7]},
        {"op": "col"},
        {"op": "lit", "with": [{"pickle": "x"}]},
        {"op": "hash", "args": [{"op": "col", "with": ["i"]}], "with": [-1]},
        {"op": "add", "args": 7},
        {"op": {}, "args": []},
    ],
)
def test_malformed_expression_json_is_refused(encoded: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        Expression.from_json(encoded)


def test_deeply_nested_expression_json_is_refused() -> None:
    expression = col("i")
    for _ in range(300):
        expression = expression + 1
    with pytest.raises(InvalidArgumentError, match="deeply"):
        Expression.from_json(expression.to_json())


_leaves = st.one_of(st.just(col("i")), st.just(col("j")), st.integers(-5, 5).map(lit))
_trees = st.recursive(
    _leaves,
    lambda inner: st.tuples(st.sampled_from("+-*"), inner, inner).map(
        lambda t: {"+": t[1] + t[2], "-": t[1] - t[2], "*": t[1] * t[2]}[t[0]]
    ),
    max_leaves=8,
)


@given(_trees)
def test_random_expression_survives_json(expression: Expression) -> None:
    again = Expression.from_json(json.loads(json.dumps(expression.to_json())))
    assert again.evaluate(BATCH).equals(expression.evaluate(BATCH))


def test_pandas_nat_constant_is_refused_naming_replacement() -> None:
    pandas = pytest.importorskip("pandas")
    with pytest.raises(InvalidArgumentError, match=r"holds no NaT; use None, or is_null\(\)"):
        assert col("t") != pandas.NaT


def test_numpy_and_arrow_scalars_are_constants_of_their_values() -> None:
    assert evaluated(col("i") > np.int64(-1)) == [False, True, True, None]
    assert evaluated(col("i") < pa.scalar(1)) == [True, True, False, None]
    assert evaluated(col("f") == np.float32(0.5)) == [True, False, False, None]
    assert evaluated(col("s") == pa.scalar("b")) == [False, True, None, False]
    assert evaluated(col("b") == np.bool_(False)) == [False, True, None, False]
    assert evaluated(col("i").is_in(np.array([3, 0]))) == [False, True, True, False]
    assert evaluated(col("i").is_in(pa.array([3, 0]))) == [False, True, True, False]
    assert evaluated(col("i").fill_null(np.int8(4))) == [-7, 0, 3, 4]
    assert evaluated(col("i").clip(np.int64(-1), np.float64(2))) == [-1, 0, 2, None]
    assert evaluated(col("i").hash(np.int64(1))) == [0, 0, 0, None]
    encoded = json.loads(json.dumps((col("i") > np.uint64(1 << 63)).to_json()))
    assert repr(Expression.from_json(encoded)) == f"(col('i') > lit({1 << 63}))"


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        (np.datetime64("2020-01-02", "ns"), r"a datetime64; .*\.astype\('datetime64\[us\]'\)"),
        (np.timedelta64(5, "ns"), r"a timedelta64; .* value\.astype\('timedelta64\[us\]'\)\.item"),
        (np.longdouble("1.5"), r"a longdouble; .* value\.item\(\)"),
        (np.array([1, 2]), r"a ndarray; .* value\.item\(\)"),
        (pa.scalar(1, pa.timestamp("ns")), r"a TimestampScalar; .* value\.as_py\(\)"),
    ],
)
def test_constant_that_python_might_not_hold_is_refused(value: Any, remedy: str) -> None:
    with pytest.raises(InvalidArgumentError, match=remedy):
        lit(value)


def test_operation_that_expressions_lack_names_those_they_have() -> None:
    with pytest.raises(
        AttributeError, match=r"has no 'log'; .* cast, clip.* with_column\(name, fn"
    ):
        _ = col("i").log  # type: ignore[attr-defined]
    for same in (copy.deepcopy(col("i") + 1), pickle.loads(pickle.dumps(col("i") + 1))):
        assert evaluated(same) == [-6, 1, 4, None]


def test_unsigned_64_bit_constants_are_compared_exactly() -> None:
    batch = pa.RecordBatch.from_pydict({"h": pa.array([1, 1 << 63, (1 << 64) - 1], pa.uint64())})
    assert (col("h") >= 1 << 63).evaluate(batch).to_pylist() == [False, True, True]
    (pushed,) = statistics_conditions(col("h") > 1 << 63, batch.schema)
    assert pa.table(batch).filter(pushed).num_rows == 1
    assert (col("h") == 1).evaluate(batch).to_pylist() == [True, False, False]
    assert (lit(1) < col("h")).evaluate(batch).to_pylist() == [False, True, True]
    assert lit(-(1 << 63)).evaluate(batch).type == pa.int64()
    with pytest.raises(SchemaError, match="9223372036854775808 not in range"):
        (col("i") < 1 << 63).evaluate(pa.RecordBatch.from_pydict({"i": [1]}))
    for value in (1 << 64, -(1 << 63) - 1):
        with pytest.raises(InvalidArgumentError, match=rf"64 bits.*got {value}"):
            lit(value)


def test_value_that_no_expression_holds_is_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"numbers, strings.*got \[1\]"):
        _ = col("x") == [1]
