"""A user's rows as features, and the file that keeps how they are made."""

from __future__ import annotations

import pathlib

import numpy as np
import pyarrow as pa
import pytest

from pstrain.errors import DataError, InvalidArgumentError, NotFoundError
from pstrain.tabular.preparation import FILE, Preparation

PREPARATION = Preparation(
    label="answer",
    label_values=("no", "yes"),
    dense=("price", "count"),
    log1p=("count",),
    categorical=("site", "size"),
    types={"price": "double"},
)


def batch(**columns: object) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "answer": ["yes", "no", "yes"],
            "price": [1.5, None, 2.5],
            "count": [0, 9, 99],
            "site": pa.array(["a", None, "b"]).dictionary_encode(),
            "size": [1.0, 2.0, None],
            "other": [1, 2, 3],
            **columns,
        }
    )


def test_prepared_columns_have_model_types_and_order() -> None:
    found = PREPARATION(batch())
    assert found.schema.names == ["price", "count", "site", "size", "answer"]
    assert found["answer"].to_pylist() == [1, 0, 1]
    assert found["price"].to_pylist() == [1.5, None, 2.5]
    np.testing.assert_allclose(found["count"].to_numpy(), np.log1p([0, 9, 99]), rtol=1e-6)
    assert found["site"].to_pylist() == ["a", None, "b"]
    assert found["size"].null_count == 1
    assert found["size"].type == pa.string()


def test_logarithm_of_negative_values_mirrors_that_of_positive_ones() -> None:
    values = [1.0, -1.0, 99.0, -99.0, 0.0, np.inf, -np.inf, None]
    rows = pa.RecordBatch.from_pydict({"count": pa.array(values)})
    found = Preparation(label="l", label_values=(0, 1), dense=("count",), log1p=("count",))(rows)
    one, many = np.log1p(1), np.log1p(99)
    expected = [one, -one, many, -many, 0, np.inf, -np.inf, np.nan]
    np.testing.assert_allclose(found["count"].to_numpy(zero_copy_only=False), expected, rtol=1e-6)
    assert found["count"].null_count == 1


def test_prepared_integer_category_does_not_depend_on_width() -> None:
    narrow, wide = (
        PREPARATION(batch(size=pa.array([1, 2, 3], type_))) for type_ in (pa.int8(), pa.int64())
    )
    assert narrow.equals(wide)


def test_rows_without_label_column_are_prepared_without_label() -> None:
    found = PREPARATION(batch().drop_columns(["answer"]))
    assert found.schema.names == ["price", "count", "site", "size"]


def test_empty_batch_is_prepared_to_empty_batch() -> None:
    assert PREPARATION(batch().slice(0, 0)).num_rows == 0


@pytest.mark.parametrize("values", [["yes", "no", "maybe"], ["yes", None, "no"]])
def test_unknown_label_values_are_refused(values: list[str | None]) -> None:
    with pytest.raises(DataError, match="label column 'answer'"):
        PREPARATION(batch(answer=values))


def test_labels_of_other_type_are_refused_with_training_values() -> None:
    said = "label column 'answer' holds int64; in training its values were 'no' and 'yes'"
    with pytest.raises(DataError, match=said):
        PREPARATION(batch(answer=[1, 0, 1]))


def test_text_in_dense_column_is_refused_by_column_name() -> None:
    with pytest.raises(InvalidArgumentError, match="column 'price' holds string"):
        PREPARATION(batch(price=["1.5", "cheap", "2"]))


def test_preparation_survives_save_and_load(tmp_path: pathlib.Path) -> None:
    PREPARATION.save(tmp_path)
    assert Preparation.load(tmp_path) == PREPARATION


def test_missing_and_damaged_preparation_files_give_different_errors(
    tmp_path: pathlib.Path,
) -> None:
    with pytest.raises(NotFoundError, match="pstrain train"):
        Preparation.load(tmp_path)
    (tmp_path / FILE).write_text('{"format": 1, "label"')
    with pytest.raises(DataError, match="damaged"):
        Preparation.load(tmp_path)


def test_list_columns_are_prepared_as_lists_of_numbers_or_text(tmp_path: pathlib.Path) -> None:
    prepared = Preparation(label="y", label_values=(0, 1), lists=("a", "b", "c"))
    columns = {
        "a": pa.array([[True], None, []], pa.large_list(pa.bool_())),
        "b": pa.array([["x", "y"], [], [None]], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
        "c": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int16(), 2)),
    }
    found = prepared(pa.RecordBatch.from_pydict(columns))
    assert found.to_pydict() == {
        "a": [[1], None, []],
        "b": [["x", "y"], [], [None]],
        "c": [[1, 2], [3, 4], [5, 6]],
    }
    prepared.save(tmp_path)
    assert Preparation.load(tmp_path) == prepared
    with pytest.raises(InvalidArgumentError, match="'a' holds int64, the model was trained on"):
        prepared(pa.RecordBatch.from_pydict({**columns, "a": pa.array([1, 2, 3])}))


@pytest.mark.parametrize(
    ("trained", "values", "others"),
    [
        ("int64", pa.array([3, None, 5]), pa.array([3.0, None, 5.0])),
        ("int8", pa.array([3, None, 500]), pa.array(["3", None, "500"])),
        ("bool", pa.array([True, None, False]), pa.array(["true", None, "false"])),
        ("double", pa.array([3.0, None, 5.0]), pa.array([3, None, 5])),
    ],
)
def test_category_is_prepared_equally_from_other_column_type(
    trained: str, values: pa.Array, others: pa.Array
) -> None:
    prepared = Preparation(label="y", label_values=(0, 1), categorical=("a",), types={"a": trained})
    first, second = (prepared(pa.RecordBatch.from_pydict({"a": v})) for v in (values, others))
    assert first.equals(second)


def test_category_that_cannot_become_trained_type_is_refused_by_column() -> None:
    prepared = Preparation(label="y", label_values=(0, 1), categorical=("a",), types={"a": "int64"})
    for values in (["x"], [1.5]):
        with pytest.raises(InvalidArgumentError, match=r"column 'a' holds .* not become int64"):
            prepared(pa.RecordBatch.from_pydict({"a": values}))


def test_uint64_ids_and_non_utf8_bytes_are_accepted_as_categories() -> None:
    prepared = Preparation(label="y", label_values=(0, 1), categorical=("a", "b"))
    ids = pa.array([2**64 - 1, 2**63, 7], pa.uint64())
    found = prepared(pa.RecordBatch.from_pydict({"a": ids, "b": [b"\xff\xfe", b"\xe9", b"z"]}))
    assert found["a"].to_pylist() == [-1, -(2**63), 7]
    assert found["b"].cast(pa.binary()).to_pylist() == [b"\xff\xfe", b"\xe9", b"z"]


def test_blank_text_becomes_null_when_blank_is_null(tmp_path: pathlib.Path) -> None:
    written = pa.RecordBatch.from_pydict({"a": ["", "x", "", None]})
    prepared = Preparation(label="y", label_values=(0, 1), categorical=("a",), blank_is_null=True)
    prepared.save(tmp_path)
    assert Preparation.load(tmp_path)(written)["a"].to_pylist() == [None, "x", None, None]
    older = Preparation(label="y", label_values=(0, 1), categorical=("a",))
    assert older(written)["a"].to_pylist() == ["", "x", "", None]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["x", "é"], ["x", "é"]),
        (["x", None], ["x", None]),
        ([None, ""], [None, None]),
        (["", "x"], [None, "x"]),
        ([], []),
    ],
)
def test_blank_text_is_found_in_any_part_of_a_column(
    values: list[str | None], expected: list[str | None]
) -> None:
    prepared = Preparation(label="y", label_values=(0, 1), categorical=("a",), blank_is_null=True)
    whole = pa.array(["", "before", *values, "after", ""], pa.string())
    for column in (pa.array(values, pa.string()), whole.slice(2, len(values))):
        batch = pa.RecordBatch.from_pydict({"a": column})
        assert prepared.features(batch).column("a").to_pylist() == expected


def test_labels_of_numbers_become_float32_from_any_type_of_number(tmp_path: pathlib.Path) -> None:
    prepared = Preparation(label="y", label_values=None, dense=("x",))
    prepared.save(tmp_path)
    assert Preparation.load(tmp_path) == prepared
    assert prepared.predicts_numbers
    assert not PREPARATION.predicts_numbers
    for labels in (pa.array([1, -2, 300]), pa.array([1, -2, 300]).cast(pa.decimal128(21, 2))):
        found = prepared(pa.RecordBatch.from_pydict({"x": [0.5] * 3, "y": labels}))
        assert found["y"].equals(pa.array([1, -2, 300], pa.float32()))
    with pytest.raises(DataError, match="'y' holds 1 nulls"):
        prepared(pa.RecordBatch.from_pydict({"x": [0.5], "y": pa.array([None], pa.float64())}))
