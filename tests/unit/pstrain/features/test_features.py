"""Feature encoding: types, nulls, slices, errors, and ids that are the same in every process."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pstrain.errors import DataError, InvalidArgumentError
from pstrain.features.schema import Category, Features, FeatureSchema

ONE_HASHED = FeatureSchema(categorical={"c": Category(1000)}, label=None)
ONE_PLAIN = FeatureSchema(categorical={"c": Category(1000, hashed=False)}, label=None)
ONE_DENSE = FeatureSchema(dense=["x"], label=None)


def _ids(schema: FeatureSchema, column: pa.Array) -> list[int]:
    return schema.encode(pa.RecordBatch.from_arrays([column], ["c"])).ids[:, 0].tolist()


def _dense(column: pa.Array, schema: FeatureSchema = ONE_DENSE) -> list[float]:
    return schema.encode(pa.RecordBatch.from_arrays([column], ["x"])).dense[:, 0].tolist()


def test_columns_are_encoded_to_matrices_in_schema_order() -> None:
    schema = FeatureSchema(
        dense=["b", "a"], categorical={"d": Category(10, False), "c": Category(5, False)}
    )
    batch = pa.RecordBatch.from_pydict(
        {"a": [1.0, 2.0], "b": [3.0, 4.0], "c": [0, 4], "d": [9, 1], "label": [True, False]}
    )
    features = schema.encode(batch)
    assert features.dense.dtype == np.float32
    assert features.ids.dtype == np.int64
    assert features.dense.tolist() == [[3, 1], [4, 2]]
    assert features.ids.tolist() == [[9, 11], [1, 15]]
    assert features.labels is not None
    assert features.labels.tolist() == [1.0, 0.0]
    assert (schema.vocabulary_sizes, schema.table_rows, len(features)) == ((11, 6), 17, 2)


@pytest.mark.parametrize(
    "type_",
    [
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.int64(),
        pa.uint8(),
        pa.uint16(),
        pa.uint32(),
        pa.uint64(),
    ],
    ids=str,
)
@pytest.mark.parametrize("schema", [ONE_HASHED, ONE_PLAIN], ids=["hashed", "plain"])
def test_integer_gets_same_id_in_every_width(type_: pa.DataType, schema: Any) -> None:
    values = [0, 1, None, 100, 7]
    expected = _ids(schema, pa.array(values, pa.int64()))
    assert _ids(schema, pa.array(values, type_)) == expected
    assert _ids(schema, pa.array([5, *values, 5], type_).slice(1, 5)) == expected
    assert expected[2] == 1000
    if schema is ONE_PLAIN:
        assert expected == [0, 1, 1000, 100, 7]


@pytest.mark.parametrize(
    "type_",
    [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.binary(),
        pa.large_binary(),
        pa.dictionary(pa.int8(), pa.string()),
        pa.dictionary(pa.int32(), pa.string()),
    ],
    ids=str,
)
def test_string_gets_same_id_in_every_arrow_layout(type_: pa.DataType) -> None:
    values = ["", "a", None, "abc", "é" * 40]
    expected = [
        (0xEF46DB3751D8E999 >> 32) * 1000 >> 32,
        (0xD24EC4F1A98C6E5B >> 32) * 1000 >> 32,
        1000,
        (0x44BC2CF5AD770999 >> 32) * 1000 >> 32,
    ]
    assert _ids(ONE_HASHED, pa.array(values).cast(type_))[:4] == expected
    sliced = pa.array(["x", *values, "y"]).cast(type_).slice(1, 5)
    assert _ids(ONE_HASHED, sliced)[:4] == expected
    assert _ids(ONE_HASHED, sliced)[4] == _ids(ONE_HASHED, pa.array(values))[4]


def test_null_values_inside_dictionary_array_are_nulls() -> None:
    indices = pa.array([0, 1, None], pa.int8())
    column = pa.DictionaryArray.from_arrays(indices, pa.array(["a", None]))
    assert _ids(ONE_HASHED, column)[1:] == [1000, 1000]


def test_boolean_column_is_encoded_as_category() -> None:
    assert _ids(ONE_PLAIN, pa.array([True, None, False])) == [1, 1000, 0]
    assert _ids(ONE_PLAIN, pa.array([True, True, None, False]).slice(1)) == [1, 1000, 0]


@pytest.mark.parametrize("type_", [pa.int32(), pa.string(), pa.null()], ids=str)
def test_empty_or_all_null_categorical_columns_are_encoded(type_: pa.DataType) -> None:
    assert _ids(ONE_HASHED, pa.array([], type_)) == []
    assert _ids(ONE_HASHED, pa.nulls(2, type_)) == [1000, 1000]


def test_dense_column_of_null_type_is_encoded_as_zeros() -> None:
    batch = pa.RecordBatch.from_pydict({"x": pa.nulls(2)})
    assert ONE_DENSE.encode(batch).dense.tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([3, 1000]), r"'c', row 1: id 1000 is outside \[0, 1000\)"),
        (pa.array([None, -1]), r"'c', row 1: id -1 is outside"),
        (pa.array(["a"]), "not hashed"),
        (pa.array([1.5]), "make it a dense column"),
        (pa.array([[1]]), "pooling"),
    ],
)
def test_invalid_category_value_is_refused_with_column_and_reason(
    column: pa.Array, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        _ids(ONE_PLAIN, column)


@pytest.mark.parametrize(
    "type_", [pa.float16(), pa.float32(), pa.float64(), pa.int8(), pa.uint32(), pa.bool_()], ids=str
)
def test_dense_column_accepts_every_number_type(type_: pa.DataType) -> None:
    column = pa.array([9, 1, 0, 1]).cast(type_)
    assert _dense(column.slice(1)) == [1.0, 0.0, 1.0]


def test_missing_dense_values_become_column_mean() -> None:
    column = pa.array([1.0, None, float("nan"), 4.0])
    assert _dense(column) == [1.0, 0.0, 0.0, 4.0]
    schema = FeatureSchema(dense=["x"], label=None, normalization={"x": (2.0, 4.0)})
    assert _dense(column, schema) == [-0.25, 0.0, 0.0, 0.5]


@pytest.mark.parametrize("value", [float("inf"), 1e39])
def test_infinite_dense_value_is_refused_with_column_and_row(value: float) -> None:
    with pytest.raises(DataError, match=r"dense column 'x', row 1: .* not a finite float32"):
        _dense(pa.array([0.0, value]))


def test_text_in_dense_column_is_refused() -> None:
    with pytest.raises(DataError, match="dense column 'x' holds string"):
        _dense(pa.array(["a"]))


def _labels(column: pa.Array) -> list[float]:
    schema = FeatureSchema(dense=["x"], label="y")
    batch = pa.RecordBatch.from_arrays([pa.array(np.zeros(len(column))), column], ["x", "y"])
    found = schema.encode(batch).labels
    assert found is not None
    return found.tolist()


@pytest.mark.parametrize("values", [[True, False], [1, 0], [1.0, 0.0], [[1], [0]]])
def test_binary_labels_of_any_type_become_zero_and_one(values: list[Any]) -> None:
    assert _labels(pa.array(values)) == [1.0, 0.0]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([0, 1, 2]), "'y' must hold the two values 0 and 1, found 0, 1, 2"),
        (pa.array([-1, 1]), "found -1, 1"),
        (pa.array(range(10)), r"found 0, 1, 2, 3, 4, 5, \.\.\."),
        (pa.array([0.5, 1.0]), r"found 0\.5, 1\.0"),
        (pa.array([0, None]), "'y' holds 1 nulls"),
        (pa.array(["yes", "no"]), r"'y' holds string \('yes', 'no'\)"),
    ],
)
def test_invalid_labels_are_refused_with_column_and_values(column: pa.Array, message: str) -> None:
    with pytest.raises(DataError, match=message):
        _labels(column)


def test_missing_columns_are_refused_by_name() -> None:
    with pytest.raises(InvalidArgumentError, match=r"lacks c; it has z"):
        ONE_HASHED.encode(pa.RecordBatch.from_pydict({"z": [1]}))


def test_mapping_and_table_are_encoded_like_batches() -> None:
    expected = ONE_PLAIN.encode(pa.RecordBatch.from_pydict({"c": [1, 2]})).ids.tolist()
    assert ONE_PLAIN.encode({"c": np.array([1, 2])}).ids.tolist() == expected
    table = pa.table({"c": pa.chunked_array([[1], [2]])})
    assert ONE_PLAIN.encode(table).ids.tolist() == expected
    with pytest.raises(InvalidArgumentError, match="got int"):
        ONE_PLAIN.encode(3)


def test_data_frame_is_encoded_like_batch() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"c": [1, 2]}, index=[7, 8])
    assert ONE_PLAIN.encode(frame).ids.tolist() == ONE_PLAIN.encode({"c": [1, 2]}).ids.tolist()
    assert ONE_PLAIN.adapted(frame).categorical["c"].vocabulary is not None
    assert [*FeatureSchema.of(frame, label=None).categorical] == ["c"], "the index is no feature"
    for use in (FeatureSchema.of, ONE_PLAIN.encode):
        with pytest.raises(InvalidArgumentError, match=r"column c .*one type"):
            use(pandas.DataFrame({"c": ["a", 1]}))


def test_unread_entries_of_mapping_need_not_be_columns() -> None:
    assert ONE_PLAIN.encode({"c": [1], "other": [object(), 3]}).ids.tolist() == [[1]]
    assert ONE_PLAIN.encode({"c": [], "label": []}).ids.shape == (0, 1)


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"x": [1.0, 2.0], "c": [0]}, "column 'c' has 1 rows and column 'x' 2"),
        ({"x": [0.5], "c": 1}, r"column 'c' is not an array: .*for one row give \[value\]"),
        ({"x": [0.5], "c": [object()]}, "column 'c' is not an array"),
        ({}, "lacks x, c; it has no column"),
    ],
)
def test_invalid_columns_of_mapping_are_named(mapping: dict[str, Any], message: str) -> None:
    schema = FeatureSchema(dense=("x",), categorical={"c": Category(8)})
    with pytest.raises(InvalidArgumentError, match=message):
        schema.encode(mapping)


def test_dictionary_encoded_numbers_are_accepted_as_dense_column() -> None:
    values = pa.array([1.5, None, -2.0, 1.5])
    schema = FeatureSchema(dense=("x",))
    for column in (values.dictionary_encode(), pa.array([9, 9]).dictionary_encode()):
        found = schema.encode({"x": column}).dense.tolist()
        assert found == schema.encode({"x": column.dictionary_decode()}).dense.tolist()
    with pytest.raises(DataError, match="cast it to numbers"):
        schema.encode({"x": pa.array(["a"]).dictionary_encode()})


def test_feature_schema_is_derived_from_arrow_schema() -> None:
    arrow = pa.schema(
        [
            ("f", pa.float64()),
            ("i", pa.int32()),
            ("s", pa.string()),
            ("b", pa.bool_()),
            ("d", pa.dictionary(pa.int8(), pa.string())),
            ("y", pa.int64()),
        ]
    )
    schema = FeatureSchema.from_arrow(arrow, label="y", buckets=64)
    assert schema.dense == ("f",)
    assert schema.categorical == {name: Category(64) for name in "isbd"}
    assert FeatureSchema.of(schema) is schema
    assert FeatureSchema.of(pa.table({"f": [0.5], "label": [1]})).dense == ("f",)
    with pytest.raises(TypeError, match=r"got dict: .*FeatureSchema\.of\(frame, label="):
        FeatureSchema.from_arrow({})  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="label column 'label' is not among f, i"):
        FeatureSchema.from_arrow(arrow)
    with pytest.raises(InvalidArgumentError, match="'when' has type timestamp"):
        FeatureSchema.from_arrow(pa.schema([("when", pa.timestamp("s"))]), label=None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "at least one feature"),
        ({"dense": ["a", "a"]}, "named twice: a"),
        ({"dense": ["a"], "label": "a"}, "both the label and a feature"),
        ({"dense": ["a"], "normalization": {"b": (0, 1)}}, "normalization given for b"),
        ({"dense": ["a"], "normalization": {"a": (0, 0)}}, r"'a' must be .* got \(0, 0\)"),
        ({"dense": ["a"], "normalization": {"a": 5}}, "'a' must be .* got 5"),
        ({"dense": ["a"], "normalization": {"a": ("0", 1)}}, r"'a' must be .* got \('0', 1\)"),
    ],
)
def test_contradictory_schema_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        FeatureSchema(**arguments)


@pytest.mark.parametrize("buckets", [0, 2**31])
def test_bucket_count_out_of_range_is_refused(buckets: int) -> None:
    with pytest.raises(InvalidArgumentError, match="buckets must be"):
        Category(buckets)


def test_normalization_is_learned_from_batches() -> None:
    batches = [
        pa.RecordBatch.from_pydict({"x": pa.array([1.0, 2.0, None])}),
        pa.RecordBatch.from_pydict({"x": pa.array([6.0, float("nan")])}),
    ]
    mean, std = ONE_DENSE.normalized(batches).normalization["x"]
    assert (mean, std) == pytest.approx((3.0, np.std([1, 2, 6])))
    constant = [pa.RecordBatch.from_pydict({"x": [4.0, 4.0]})]
    assert ONE_DENSE.normalized(constant).normalization["x"] == (4.0, 1.0)


def test_standard_deviation_of_large_numbers_is_exact() -> None:
    times = 1.7e15 + np.arange(30_000) % 7
    batches = [pa.RecordBatch.from_pydict({"x": part}) for part in np.split(times, 3)]
    mean, std = ONE_DENSE.normalized(batches).normalization["x"]
    assert mean == pytest.approx(1.7e15 + 3, abs=0.3)
    assert std == pytest.approx(2.0, rel=1e-3)
    same = pa.table({"x": np.full(1000, 1e18 / 3)})
    assert ONE_DENSE.normalized(same).normalization["x"][1] == 1.0


@pytest.mark.parametrize("learn", ["normalized", "adapted"])
def test_schema_learns_from_tables_mappings_and_batches(learn: str) -> None:
    schema = FeatureSchema(dense=["x"], categorical={"c": Category(4)})
    columns = {"x": np.array([1.0, 3.0]), "c": np.array(["a", "b"])}
    table = pa.table(columns)
    learnt = getattr(schema, learn)
    batch = table.to_batches()[0]
    assert learnt(table) == learnt(columns) == learnt(batch) == learnt([batch]) != schema
    with pytest.raises(InvalidArgumentError, match=r"the data lacks .; it has other"):
        learnt({"other": np.ones(2)})


def test_unsigned_numbers_beyond_int64_stay_positive() -> None:
    column = pa.array([2**63 + 5, None, 7], pa.uint64())
    batch = pa.RecordBatch.from_pydict({"x": column})
    assert ONE_DENSE.encode(batch).dense[:, 0].tolist() == [float(2**63), 0.0, 7.0]
    with pytest.raises(DataError, match="id 9223372036854775813 is outside"):
        FeatureSchema(categorical={"x": Category(9, hashed=False)}).encode(batch)


def test_schema_survives_json() -> None:
    schema = FeatureSchema(
        dense=["x"],
        categorical={"c": Category(7), "d": Category(3, hashed=False)},
        normalization={"x": (1.5, 2.0)},
    )
    assert FeatureSchema.from_json(json.loads(json.dumps(schema.to_json()))) == schema
    with pytest.raises(DataError, match="not a feature schema"):
        FeatureSchema.from_json({"dense": ["x"]})


def test_schema_of_numpys_numbers_has_a_json_form() -> None:
    numbers = np.array([6, 3])
    online = Category(numbers.max(), online=True, min_count=numbers[1])
    schema = FeatureSchema(
        dense=["x"],
        categorical={"c": Category(numbers.max() + 1), "d": online},
        normalization={"x": (np.float32(1.5), np.int64(2))},
    )
    assert FeatureSchema.from_json(json.loads(json.dumps(schema.to_json()))) == schema


def test_len_of_features_is_number_of_rows() -> None:
    assert len(Features(np.zeros((3, 0), np.float32), np.zeros((3, 1), np.int64), None)) == 3


@pytest.mark.parametrize(
    ("made_of", "given"),
    [
        (pa.int32(), pa.array(["7", "8"])),
        (pa.string(), pa.array([7, 8])),
        (pa.dictionary(pa.int8(), pa.string()), pa.array([7, 8], pa.uint8())),
        (pa.bool_(), pa.array(["7", "8"]).dictionary_encode()),
        (pa.list_(pa.int64()), pa.array([["7"], ["8", "9"]])),
    ],
)
def test_strings_in_the_place_of_integers_are_refused_since_they_have_other_rows(
    made_of: pa.DataType, given: pa.Array
) -> None:
    schema = FeatureSchema.from_arrow(pa.schema([("c", made_of)]), label=None, buckets=64)
    remedy = 'cast("string")' if "string" in str(made_of) else 'cast("int64")'
    for restored in (schema, FeatureSchema.from_json(json.loads(json.dumps(schema.to_json())))):
        with pytest.raises(DataError, match=f"'c' holds .*{re.escape(remedy)}"):
            restored.encode(pa.record_batch({"c": given}), labelled=False)


@pytest.mark.parametrize(
    ("made_of", "given"),
    [
        (pa.int32(), pa.array([7, None], pa.uint64())),
        (pa.int32(), pa.array([True, False]).dictionary_encode()),
        (pa.string(), pa.array(["7", None]).dictionary_encode()),
        (pa.list_(pa.string()), pa.array([["7"], []], pa.large_list(pa.large_string()))),
    ],
)
def test_other_types_of_the_same_kind_are_encoded(made_of: pa.DataType, given: pa.Array) -> None:
    schema = FeatureSchema.from_arrow(pa.schema([("c", made_of)]), label=None, buckets=64)
    schema.encode(pa.record_batch({"c": given}), labelled=False)


def test_a_category_made_by_hand_takes_both_kinds_unless_it_says_which() -> None:
    for given in (pa.array(["7"]), pa.array([7])):
        FeatureSchema(categorical={"c": Category(64)}).encode(
            pa.record_batch({"c": given}), labelled=False
        )
    stated = FeatureSchema(categorical={"c": Category(64, holds="strings")})
    with pytest.raises(DataError, match="made for strings"):
        stated.encode(pa.record_batch({"c": pa.array([7])}), labelled=False)
    with pytest.raises(InvalidArgumentError, match="holds"):
        Category(64, holds="floats")  # type: ignore[arg-type]
