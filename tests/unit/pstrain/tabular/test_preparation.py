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


def test_columns_become_what_the_model_reads() -> None:
    found = PREPARATION(batch())
    assert found.schema.names == ["price", "count", "site", "size", "answer"]
    assert found["answer"].to_pylist() == [1, 0, 1]
    assert found["price"].to_pylist() == [1.5, None, 2.5]
    np.testing.assert_allclose(found["count"].to_numpy(), np.log1p([0, 9, 99]), rtol=1e-6)
    assert found["site"].to_pylist() == ["a", None, "b"]
    assert found["size"].null_count == 1
    assert found["size"].type == pa.string()


def test_types_of_integers_do_not_change_what_they_are() -> None:
    narrow, wide = (
        PREPARATION(batch(size=pa.array([1, 2, 3], type_))) for type_ in (pa.int8(), pa.int64())
    )
    assert narrow.equals(wide)


def test_rows_without_a_label_are_prepared_without_one() -> None:
    found = PREPARATION(batch().drop_columns(["answer"]))
    assert found.schema.names == ["price", "count", "site", "size"]


def test_no_rows_give_no_rows() -> None:
    assert PREPARATION(batch().slice(0, 0)).num_rows == 0


@pytest.mark.parametrize("values", [["yes", "no", "maybe"], ["yes", None, "no"]])
def test_other_labels_are_refused(values: list[str | None]) -> None:
    with pytest.raises(DataError, match="label column 'answer'"):
        PREPARATION(batch(answer=values))


def test_labels_of_another_type_are_refused_by_name() -> None:
    said = "label column 'answer' holds int64; in training its values were 'no' and 'yes'"
    with pytest.raises(DataError, match=said):
        PREPARATION(batch(answer=[1, 0, 1]))


def test_text_that_is_no_number_is_refused_by_its_column() -> None:
    with pytest.raises(InvalidArgumentError, match="column 'price' holds string"):
        PREPARATION(batch(price=["1.5", "cheap", "2"]))


def test_it_is_kept_as_json(tmp_path: pathlib.Path) -> None:
    PREPARATION.save(tmp_path)
    assert Preparation.load(tmp_path) == PREPARATION


def test_damage_and_absence_are_told_apart(tmp_path: pathlib.Path) -> None:
    with pytest.raises(NotFoundError, match="pstrain train"):
        Preparation.load(tmp_path)
    (tmp_path / FILE).write_text('{"format": 1, "label"')
    with pytest.raises(DataError, match="damaged"):
        Preparation.load(tmp_path)


def test_lists_become_lists_of_numbers_or_text(tmp_path: pathlib.Path) -> None:
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
def test_a_category_is_the_same_whichever_way_its_file_writes_it(
    trained: str, values: pa.Array, others: pa.Array
) -> None:
    prepared = Preparation(label="y", label_values=(0, 1), categorical=("a",), types={"a": trained})
    first, second = (prepared(pa.RecordBatch.from_pydict({"a": v})) for v in (values, others))
    assert first.equals(second)


def test_a_category_that_is_no_number_any_more_is_refused_by_its_column() -> None:
    prepared = Preparation(label="y", label_values=(0, 1), categorical=("a",), types={"a": "int64"})
    for values in (["x"], [1.5]):
        with pytest.raises(InvalidArgumentError, match=r"column 'a' holds .* not become int64"):
            prepared(pa.RecordBatch.from_pydict({"a": values}))


def test_ids_beyond_int64_and_bytes_that_are_no_text_are_categories() -> None:
    prepared = Preparation(label="y", label_values=(0, 1), categorical=("a", "b"))
    ids = pa.array([2**64 - 1, 2**63, 7], pa.uint64())
    found = prepared(pa.RecordBatch.from_pydict({"a": ids, "b": [b"\xff\xfe", b"\xe9", b"z"]}))
    assert found["a"].to_pylist() == [-1, -(2**63), 7]
    assert found["b"].cast(pa.binary()).to_pylist() == [b"\xff\xfe", b"\xe9", b"z"]


def test_text_of_no_characters_is_null_as_csv_writes_it(tmp_path: pathlib.Path) -> None:
    written = pa.RecordBatch.from_pydict({"a": ["", "x", "", None]})
    prepared = Preparation(label="y", label_values=(0, 1), categorical=("a",), blank_is_null=True)
    prepared.save(tmp_path)
    assert Preparation.load(tmp_path)(written)["a"].to_pylist() == [None, "x", None, None]
    older = Preparation(label="y", label_values=(0, 1), categorical=("a",))
    assert older(written)["a"].to_pylist() == ["", "x", "", None]
