"""What the first file tells of all others, and where files are looked for."""

from __future__ import annotations

import pathlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dataservice as ds
from dataservice.errors import NotFoundError, SchemaError, SourceError

HEADER = "id,word\n"


def written(folder: pathlib.Path, **texts: str) -> list[str]:
    paths = [folder / name for name in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        path.write_text(text)
    return [str(path) for path in paths]


def test_a_csv_file_without_rows_tells_no_types(tmp_path: pathlib.Path) -> None:
    paths = written(tmp_path, a=HEADER, b=HEADER + "1,x\n", c=HEADER + "2,y\n")
    table = ds.Dataset.from_csv(paths).to_table()
    assert table.schema.types == [pa.int64(), pa.string()]
    assert table["id"].to_pylist() == [1, 2]


def test_csv_files_without_any_row_have_columns_all_the_same(tmp_path: pathlib.Path) -> None:
    table = ds.Dataset.from_csv(written(tmp_path, a=HEADER, b=HEADER)).to_table()
    assert table.schema.names == ["id", "word"]
    assert table.num_rows == 0


def test_the_columns_are_compared_with_those_of_the_file_that_told_them(
    tmp_path: pathlib.Path,
) -> None:
    paths = written(tmp_path, a="id\n", b=HEADER + "1,x\n")
    with pytest.raises(SchemaError, match=r"the files differ: .*b' has .*a' has \['id'\]"):
        ds.Dataset.from_csv(paths).to_table()


def test_an_empty_file_of_json_lines_tells_no_types(tmp_path: pathlib.Path) -> None:
    paths = written(tmp_path, a="", b='{"id": 1}\n')
    assert ds.Dataset.from_json(paths).to_table()["id"].to_pylist() == [1]
    with pytest.raises(SourceError, match=r"a' is empty.*schema="):
        ds.Dataset.from_json(paths[:1]).to_table()


def with_and_without_values(folder: pathlib.Path, kind: str, tags: pa.Array) -> list[str]:
    """Two files, the second as pandas and others write a column in which no row has a value."""
    paths = [str(folder / f"{name}.{kind}") for name in ("typed", "untyped")]
    nothing = pa.nulls(len(tags))
    for path, column in zip(paths, (tags, nothing), strict=True):
        table = pa.table({"id": range(len(tags)), "tags": column})
        if kind == "parquet":
            pq.write_table(table, path)
        else:
            with pa.ipc.new_file(path, table.schema) as file:
                file.write_table(table)
    return paths


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize(
    "tags", [pa.array(["a", None]), pa.array([[1], None]), pa.array([{"x": 1.5}, None])], ids=str
)
def test_a_column_without_values_has_the_type_of_the_others(
    kind: str, tags: pa.Array, tmp_path: pathlib.Path
) -> None:
    paths = with_and_without_values(tmp_path, kind, tags)
    read = ds.Dataset.from_parquet if kind == "parquet" else ds.Dataset.from_ipc
    table = read(paths).to_table()
    assert table.schema.field("tags").type == tags.type
    assert table["tags"].to_pylist() == [*tags.to_pylist(), None, None]
    with pytest.raises(SchemaError, match=r"is of type null in .*untyped.*a file first in which"):
        read(paths[::-1]).to_table()


def test_rows_of_a_column_without_values_fail_every_filter(tmp_path: pathlib.Path) -> None:
    paths = with_and_without_values(tmp_path, "parquet", pa.array(["a", None]))
    assert ds.Dataset.from_parquet(paths, filter=ds.col("tags") == "a").to_table().num_rows == 1
    assert ds.Dataset.from_parquet(paths, filter=ds.col("tags").is_null()).to_table().num_rows == 3


def test_a_row_of_csv_that_is_too_long_is_told_as_such(tmp_path: pathlib.Path) -> None:
    (path,) = written(tmp_path, a=HEADER + "1," + "x" * (3 << 20) + "\n2,y\n")
    with pytest.raises(SourceError, match=r"longer than a block.*Parquet or JSON lines"):
        ds.Dataset.from_csv(path).to_table()


@pytest.mark.parametrize("path", ["absent.parquet", "absent-*.parquet"])
def test_of_relative_paths_the_folder_is_named(
    path: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotFoundError, match=f"{path[:6]}.* in '{tmp_path}'.*absolute") as caught:
        ds.Dataset.from_parquet(path).to_table()
    with pytest.raises(NotFoundError) as absolute:
        ds.Dataset.from_parquet(str(tmp_path / path)).to_table()
    assert "where this process runs" in str(caught.value)
    assert "where this process runs" not in str(absolute.value)
