"""The file whose columns and types all others must have, and paths that match no file."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dataservice as ds
from dataservice.dataset.sources import reference
from dataservice.errors import NotFoundError, SchemaError, SourceError

HEADER = "id,word\n"


def write_texts(folder: pathlib.Path, **texts: str) -> list[str]:
    paths = [folder / name for name in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        path.write_text(text)
    return [str(path) for path in paths]


def test_csv_file_without_rows_does_not_determine_types(tmp_path: pathlib.Path) -> None:
    paths = write_texts(tmp_path, a=HEADER, b=HEADER + "1,x\n", c=HEADER + "2,y\n")
    table = ds.Dataset.from_csv(paths).to_table()
    assert table.schema.types == [pa.int64(), pa.string()]
    assert table["id"].to_pylist() == [1, 2]


def test_csv_files_without_any_rows_still_have_columns(tmp_path: pathlib.Path) -> None:
    table = ds.Dataset.from_csv(write_texts(tmp_path, a=HEADER, b=HEADER)).to_table()
    assert table.schema.names == ["id", "word"]
    assert table.num_rows == 0


def test_differing_columns_error_names_reference_file(
    tmp_path: pathlib.Path,
) -> None:
    paths = write_texts(tmp_path, a="id\n", b=HEADER + "1,x\n")
    with pytest.raises(SchemaError, match=r"the files differ: .*b' has .*a' has \['id'\]"):
        ds.Dataset.from_csv(paths).to_table()


def test_empty_json_lines_file_does_not_determine_types(tmp_path: pathlib.Path) -> None:
    paths = write_texts(tmp_path, a="", b='{"id": 1}\n')
    assert ds.Dataset.from_json(paths).to_table()["id"].to_pylist() == [1]
    with pytest.raises(SourceError, match=r"a' is empty.*schema="):
        ds.Dataset.from_json(paths[:1]).to_table()


def write_columns(folder: pathlib.Path, kind: str, *columns: pa.Array) -> list[str]:
    """Writes a file for each of these `tags` columns; returns the paths.

    A column without values has type null, as pandas and others write it.
    """
    paths = [str(folder / f"{number}.{kind}") for number in range(len(columns))]
    for path, column in zip(paths, columns, strict=True):
        table = pa.table({"id": range(len(column)), "tags": column})
        if kind == "parquet":
            pq.write_table(table, path)
        else:
            with pa.ipc.new_file(path, table.schema) as file:
                file.write_table(table)
    return paths


READ = {"parquet": ds.Dataset.from_parquet, "arrow": ds.Dataset.from_ipc}
NOTHING = pa.nulls(2)


@pytest.mark.parametrize("kind", READ)
@pytest.mark.parametrize(
    "tags", [pa.array(["a", None]), pa.array([[1], None]), pa.array([{"x": 1.5}, None])], ids=str
)
def test_null_type_column_takes_type_of_other_files(
    kind: str, tags: pa.Array, tmp_path: pathlib.Path
) -> None:
    paths = write_columns(tmp_path, kind, NOTHING, NOTHING, tags, NOTHING)
    nothing = [None, None]
    for order, rows in (
        ([2, 3], tags.to_pylist() + nothing),
        ([0, 1, 2], nothing * 2 + tags.to_pylist()),
    ):
        table = READ[kind]([paths[index] for index in order]).to_table()
        assert table.schema.field("tags").type == tags.type
        assert table["tags"].to_pylist() == rows


@pytest.mark.parametrize("kind", READ)
def test_null_type_lists_take_type_of_other_files(kind: str, tmp_path: pathlib.Path) -> None:
    empty, full = pa.array([[], None]), pa.array([["a"], []])
    paths = write_columns(tmp_path, kind, empty, NOTHING, full, empty)
    table = READ[kind](paths).to_table()
    assert table.schema.field("tags").type == full.type
    assert table["tags"].to_pylist() == [[], None, None, None, ["a"], [], [], None]


@pytest.mark.parametrize("kind", READ)
def test_differing_type_error_names_reference_file(kind: str, tmp_path: pathlib.Path) -> None:
    columns = (NOTHING, pa.array([1, 2]), pa.array(["a", "b"]))
    paths = write_columns(tmp_path, kind, *columns)
    with pytest.raises(
        SchemaError, match=r"of type int64 in '.*/1\.\w+', and .*/2\.\w+' has it as str"
    ):
        READ[kind](paths).to_table()
    assert READ[kind](paths, columns=["id"]).to_table().num_rows == 6


@pytest.mark.parametrize("kind", READ)
def test_type_is_searched_in_bounded_number_of_files(
    kind: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "_MAX_LOOKED_AT", 2)
    columns = (NOTHING, NOTHING, NOTHING, pa.array([1, 2]))
    paths = write_columns(tmp_path, kind, *columns)
    with pytest.raises(SchemaError, match=r"is of type null in .*/0\..*a file first in which"):
        READ[kind](paths).to_table()
    assert READ[kind](paths[1:]).to_table()["tags"].to_pylist() == [None] * 4 + [1, 2]


@pytest.mark.parametrize("kind", READ)
def test_unreadable_file_does_not_determine_types(kind: str, tmp_path: pathlib.Path) -> None:
    paths = write_columns(tmp_path, kind, NOTHING, NOTHING, pa.array([1, 2]))
    pathlib.Path(paths[1]).write_text("damaged")
    with pytest.raises(SourceError, match="1\\."):
        READ[kind](paths).schema  # noqa: B018
    skipping = READ[kind](paths)
    skipping = ds.Dataset(dataclasses.replace(skipping.node, on_error="skip"))  # type: ignore
    assert skipping.to_table()["tags"].to_pylist() == [None, None, 1, 2]


@pytest.mark.parametrize("kind", READ)
def test_column_of_null_type_in_all_files_stays_null(kind: str, tmp_path: pathlib.Path) -> None:
    data = READ[kind](write_columns(tmp_path, kind, NOTHING, NOTHING))
    assert data.map(dict).to_table()["tags"].to_pylist() == [None] * 4
    assert data.filter(ds.col("tags") == "a").to_table().num_rows == 0
    filled = data.with_column("tags", ds.col("tags").fill_null("none")).to_table()
    assert filled["tags"].to_pylist() == ["none"] * 4


def test_csv_or_json_column_without_values_takes_type_of_other_files(
    tmp_path: pathlib.Path,
) -> None:
    paths = write_texts(tmp_path, a=HEADER + "1,\n", b=HEADER + "2,5\n")
    assert ds.Dataset.from_csv(paths).to_table()["word"].to_pylist() == [None, 5]
    lines = write_texts(tmp_path, c='{"v": null, "l": []}\n', d='{"v": 1.5, "l": ["x"]}\n')
    table = ds.Dataset.from_json(lines).to_table()
    assert table.to_pylist() == [{"v": None, "l": []}, {"v": 1.5, "l": ["x"]}]


def test_rows_of_null_type_column_are_filtered_as_nulls(tmp_path: pathlib.Path) -> None:
    paths = write_columns(tmp_path, "parquet", pa.array(["a", None]), NOTHING)
    assert ds.Dataset.from_parquet(paths, filter=ds.col("tags") == "a").to_table().num_rows == 1
    assert ds.Dataset.from_parquet(paths, filter=ds.col("tags").is_null()).to_table().num_rows == 3


def test_overlong_csv_row_is_refused_naming_remedy(tmp_path: pathlib.Path) -> None:
    (path,) = write_texts(tmp_path, a=HEADER + "1," + "x" * (3 << 20) + "\n2,y\n")
    with pytest.raises(SourceError, match=r"longer than a block.*Parquet or JSON lines"):
        ds.Dataset.from_csv(path).to_table()


@pytest.mark.parametrize("path", ["absent.parquet", "absent-*.parquet"])
def test_missing_relative_path_error_names_working_folder(
    path: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotFoundError, match=f"{path[:6]}.* in '{tmp_path}'.*absolute") as caught:
        ds.Dataset.from_parquet(path).to_table()
    with pytest.raises(NotFoundError) as absolute:
        ds.Dataset.from_parquet(str(tmp_path / path)).to_table()
    assert "where this process runs" in str(caught.value)
    assert "where this process runs" not in str(absolute.value)


@pytest.mark.parametrize("read", [ds.Dataset.from_csv, ds.Dataset.list_files])
def test_file_name_that_is_not_utf_8_is_refused(
    read: Callable[[str], ds.Dataset], tmp_path: pathlib.Path
) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9.csv")).write_text("x\n1\n")
    with pytest.raises(SourceError, match=r"the name of the file .*caf.* is not UTF-8; rename it"):
        read(str(tmp_path / "*.csv")).to_table()


def test_list_files_of_empty_folder_is_not_found(tmp_path: pathlib.Path) -> None:
    with pytest.raises(NotFoundError, match="no file matches"):
        ds.Dataset.list_files(str(tmp_path)).to_table()
