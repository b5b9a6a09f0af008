"""A user's files as a dataset."""

from __future__ import annotations

import gzip
import pathlib

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from pstrain.errors import DataError, InvalidArgumentError, NotFoundError
from pstrain.tabular.files import (
    check_columns,
    check_output,
    check_types,
    open_files,
    replacing_remedy,
)


def write(folder: pathlib.Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_glob_folder_and_file_paths_are_opened(tmp_path: pathlib.Path) -> None:
    for index in range(2):
        pq.write_table(pa.table({"a": [index, index]}), tmp_path / f"part-{index}.parquet")
    for pattern in ("*.parquet", "part-?.parquet", "."):
        assert len(open_files(str(tmp_path / pattern)).to_table()) == 4
    assert len(open_files(str(tmp_path / "part-1.parquet")).to_table()) == 2


def test_nested_folders_and_folder_urls_are_opened(tmp_path: pathlib.Path) -> None:
    for index in range(2):
        (tmp_path / f"day={index}").mkdir()
        pq.write_table(pa.table({"a": [index, index]}), tmp_path / f"day={index}" / "a.parquet")
    write(tmp_path, "notes.txt", "of no kind that is read")
    for folder in (str(tmp_path), f"file://{tmp_path}", f"file://{tmp_path}/"):
        assert len(open_files(folder).to_table()) == 4
    (tmp_path / "none").mkdir()
    write(tmp_path / "none", "notes.txt", "x")
    for folder in (f"{tmp_path}/none", f"file://{tmp_path}/none"):
        with pytest.raises(NotFoundError, match="no file matches"):
            open_files(folder)


def test_csv_tsv_and_other_delimiters_are_read(tmp_path: pathlib.Path) -> None:
    commas = write(tmp_path, "a.csv", "x,y\n1,a\n2,b\n")
    tabs = write(tmp_path, "b.tsv", "x\ty\n1\ta\n2\tb\n")
    assert open_files(commas).to_table().equals(open_files(tabs).to_table())
    signs = write(tmp_path, "c.csv", "x;y\n1;a\n2;b\n")
    assert open_files(signs, delimiter=";").to_table().equals(open_files(tabs).to_table())
    with pytest.raises(InvalidArgumentError, match=r"it has x;y: .* by --delimiter"):
        check_columns(open_files(signs), ["x"], "c.csv")
    with pytest.raises(
        InvalidArgumentError, match=r"--delimiter is for CSV .*d\.json.* matches json"
    ):
        open_files(write(tmp_path, "d.json", '{"x": 1}\n'), delimiter=";")


def test_given_types_override_inferred_ones_and_keep_all_columns(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path, "a.csv", "x,y\n1,2\n3,4\n")
    schema = open_files(path, {"x": "double", "absent": "int64"}).schema
    assert schema.field("x").type == pa.float64()
    assert schema.field("y").type == pa.int64()


def test_missing_unsupported_mixed_or_empty_files_are_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(NotFoundError, match=r"no file matches .*nothing"):
        open_files(str(tmp_path / "nothing*.csv"))
    with pytest.raises(InvalidArgumentError, match="one kind"):
        open_files(write(tmp_path, "notes.txt", "x"))
    write(tmp_path, "a.csv", "x\n1\n")
    pq.write_table(pa.table({"x": [1]}), tmp_path / "a.parquet")
    with pytest.raises(InvalidArgumentError, match="one kind"):
        open_files(str(tmp_path / "a.*"))
    pq.write_table(pa.table({"x": pa.array([], pa.int64())}), tmp_path / "none.parquet")
    with pytest.raises(DataError, match="no rows"):
        open_files(str(tmp_path / "none.parquet"))


def test_types_option_is_refused_for_files_that_have_types(tmp_path: pathlib.Path) -> None:
    check_types(
        open_files(write(tmp_path, "a.csv", "x\n1\n"), {"x": "string"}), {"x": "string"}, ""
    )
    pq.write_table(pa.table({"x": [1]}), tmp_path / "a.parquet")
    dataset = open_files(str(tmp_path / "a.parquet"), {"x": "string"})
    with pytest.raises(InvalidArgumentError, match=r"--types x=string: the data holds it as int64"):
        check_types(dataset, {"x": "string"}, "the data")


def test_replacing_remedy_changes_remedy_in_error(tmp_path: pathlib.Path) -> None:
    mixed = open_files(write(tmp_path, "a.csv", "x\n1\n"), {"x": "int64"})
    write(tmp_path, "a.csv", "x\none\n")
    with (
        pytest.raises(
            DataError, match=r"another type .*'one'\); do this; correct or remove that row$"
        ),
        replacing_remedy("do this"),
    ):
        mixed.to_table()
    with (
        pytest.raises(DataError, match=r"another type .*'one'\); correct or remove that row$"),
        replacing_remedy(""),
    ):
        mixed.to_table()
    write(tmp_path, "b.csv", "y\n1\n")
    with (
        pytest.raises(DataError, match=r"; rewrite that file, or leave it out$"),
        replacing_remedy(""),
    ):
        open_files(str(tmp_path / "*.csv")).to_table()
    malformed = write(tmp_path, "c.csv", "x,y\n1,2\n3\n")
    with (
        pytest.raises(DataError, match=r"number of columns; correct or remove that row$"),
        replacing_remedy(""),
    ):
        open_files(malformed).to_table()


def test_missing_column_error_lists_available_columns(tmp_path: pathlib.Path) -> None:
    dataset = open_files(write(tmp_path, "a.csv", "x,y\n1,2\n"))
    check_columns(dataset, ["x", "y"], "the data")
    with pytest.raises(InvalidArgumentError, match=r"the data has no column 'z'; it has x, y"):
        check_columns(dataset, ["x", "z"], "the data")


def test_output_that_is_an_input_file_is_refused(tmp_path: pathlib.Path) -> None:
    write(tmp_path, "a.csv", "x\n1\n")
    (tmp_path / "link.csv").symlink_to(tmp_path / "a.csv")
    check_output(tmp_path / "b.csv", str(tmp_path / "*.csv"))
    for name in ("a.csv", "link.csv"):
        with pytest.raises(InvalidArgumentError, match=rf"--output .*{name} is one of the files"):
            check_output(tmp_path / name, str(tmp_path / "a.csv"))


def test_json_lines_and_feather_files_are_read(tmp_path: pathlib.Path) -> None:
    lines = "".join(f'{{"x": {x}, "y": "{y}"}}\n' for x, y in ((1, "a"), (2, "b")))
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    table = open_files(write(tmp_path, "a.csv", "x,y\n1,a\n2,b\n")).to_table()
    pyarrow.feather.write_feather(table, tmp_path / "d.feather")
    for path in (write(tmp_path, "b.json", lines), tmp_path / "c.jsonl.gz", tmp_path / "d.feather"):
        assert open_files(str(path)).to_table().equals(table)
    schema = open_files(str(tmp_path / "b.json"), {"x": "float", "y": "halffloat"}).schema
    assert schema.field("x").type == pa.float32()
    assert schema.field("y").type == pa.string()


def test_output_needs_existing_folder_and_file_name(tmp_path: pathlib.Path) -> None:
    data = write(tmp_path, "a.csv", "x\n1\n")
    with pytest.raises(NotFoundError, match=r"there is no folder '.*none', make it"):
        check_output(tmp_path / "none" / "b.csv", data)
    (tmp_path / "c.csv").mkdir()
    with pytest.raises(InvalidArgumentError, match="is a folder: name a file in it"):
        check_output(tmp_path / "c.csv", data)
