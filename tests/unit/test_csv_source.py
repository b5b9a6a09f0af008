"""CSV files without an end of a line, of which Arrow sees no line where there is but one."""

from __future__ import annotations

import gzip
import pathlib

import pyarrow as pa
import pytest

from dataservice.dataset.dataset import Dataset
from dataservice.errors import SchemaError, SourceError
from tests.unit.checkpoint_checker import check_positions


@pytest.mark.parametrize("packed", [False, True])
def test_a_header_alone_is_a_file_without_rows(tmp_path: pathlib.Path, packed: bool) -> None:
    if packed:
        (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"x,y"))
    else:
        (tmp_path / "a.csv").write_text("x,y")
    (tmp_path / "b.csv").write_text("x,y\n1,2")
    dataset = Dataset.from_csv(str(tmp_path))
    assert dataset.to_table().to_pylist() == [{"x": 1, "y": 2}]
    assert dataset.schema == pa.schema([("x", pa.int64()), ("y", pa.int64())])
    check_positions(dataset)


def test_a_row_alone_is_a_row_where_there_is_no_header(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.csv").write_text("1,2")
    dataset = Dataset.from_csv(str(tmp_path), header=False)
    assert dataset.to_table().to_pylist() == [{"f0": 1, "f1": 2}]


def test_a_header_of_other_columns_is_still_an_error(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    (tmp_path / "b.csv").write_text("z")
    with pytest.raises(SchemaError, match=r"b\.csv' has \['z'\]"):
        Dataset.from_csv(str(tmp_path)).to_table()


def test_nothing_but_blanks_is_no_header(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.csv").write_text("\n\n")
    with pytest.raises(SourceError, match="cannot be read as CSV"):
        Dataset.from_csv(str(tmp_path)).to_table()
