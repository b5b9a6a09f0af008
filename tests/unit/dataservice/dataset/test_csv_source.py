"""CSV files: a missing end of line, values of several lines, encodings, and unreadable files."""

from __future__ import annotations

import csv
import gzip
import io
import lzma
import pathlib
import pickle
from typing import Any

import pyarrow as pa
import pytest

from dataservice.dataset.dataset import Dataset
from dataservice.dataset.omission_log import OmissionLog
from dataservice.dataset.stream import RunContext
from dataservice.dataset.tolerance import tolerant
from dataservice.errors import InvalidArgumentError, SchemaError, SourceError
from tests.unit.dataservice.dataset.checkpoint_checker import check_positions, run


@pytest.mark.parametrize("packed", [False, True])
def test_csv_file_with_header_only_has_no_rows(tmp_path: pathlib.Path, packed: bool) -> None:
    if packed:
        (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"x,y"))
    else:
        (tmp_path / "a.csv").write_text("x,y")
    (tmp_path / "b.csv").write_text("x,y\n1,2")
    dataset = Dataset.from_csv(str(tmp_path))
    assert dataset.to_table().to_pylist() == [{"x": 1, "y": 2}]
    assert dataset.schema == pa.schema([("x", pa.int64()), ("y", pa.int64())])
    check_positions(dataset)


def test_single_line_of_csv_file_without_header_is_row(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.csv").write_text("1,2")
    dataset = Dataset.from_csv(str(tmp_path), header=False)
    assert dataset.to_table().to_pylist() == [{"f0": 1, "f1": 2}]


def test_header_only_csv_file_with_other_columns_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    (tmp_path / "b.csv").write_text("z")
    with pytest.raises(SchemaError, match=r"b\.csv' has \['z'\]"):
        Dataset.from_csv(str(tmp_path)).to_table()


@pytest.mark.parametrize("text", ["", "\n\n", "\r\n", "\ufeff", "\ufeff\n"])
@pytest.mark.parametrize("suffix", ["csv", "csv.gz"])
def test_csv_file_without_lines_has_no_rows_but_must_have_an_expected_header(
    tmp_path: pathlib.Path, text: str, suffix: str
) -> None:
    written = [text, "1,2\n", text]
    for number, each in enumerate(written):
        packed = gzip.compress(each.encode()) if suffix.endswith("gz") else each.encode()
        (tmp_path / f"{number}.{suffix}").write_bytes(packed)
    with pytest.raises(SourceError, match=r"0\.csv.*' is empty: it has not even a header line"):
        Dataset.from_csv(str(tmp_path)).to_table()
    for schema in (None, pa.schema([("f0", pa.int64()), ("f1", pa.int64())])):
        data = Dataset.from_csv(str(tmp_path), schema, header=False)
        assert data.to_table().to_pylist() == [{"f0": 1, "f1": 2}]
        check_positions(data)


def test_csv_files_without_lines_or_schema_have_no_columns(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.csv").write_text("\n")
    with pytest.raises(SourceError, match="is empty, so that the columns are not known; state"):
        Dataset.from_csv(str(tmp_path), header=False).to_table()


@pytest.mark.parametrize(
    ("null_values", "numbers", "texts"),
    [
        (None, [1, None, None], ["", "x", "NA"]),
        ([""], ["1", None, "NA"], [None, "x", "NA"]),
        (["", "NA"], [1, None, None], [None, "x", None]),
    ],
)
def test_texts_are_null_only_where_null_values_name_them(
    tmp_path: pathlib.Path, null_values: list[str] | None, numbers: list[Any], texts: list[Any]
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("n,s\n1,\n,x\nNA,NA\n")
    table = Dataset.from_csv(path, null_values=null_values).to_table()
    assert table.to_pydict() == {"n": numbers, "s": texts}


def test_quoted_multiline_values_are_whole_across_block_borders(tmp_path: pathlib.Path) -> None:
    """Each line inside the quotes looks like a row, and every second one ends in two characters.

    Values have odd lengths, so that blocks end at every place of a value.
    """
    texts = ["1,2\r\n3,4\n" * (row % 41) + "\n" * (row % 7) + "end" for row in range(24_000)]
    with (tmp_path / "a.csv").open("w", newline="") as to:
        writer = csv.writer(to, lineterminator="\n")
        writer.writerows([("x", "text"), *enumerate(texts)])
    assert (tmp_path / "a.csv").stat().st_size > 4 << 20
    table = Dataset.from_csv(str(tmp_path / "a.csv")).to_table()
    assert table["x"].to_pylist() == list(range(len(texts)))
    assert table["text"].to_pylist() == texts


def test_line_end_inside_quoted_value_is_kept_at_block_border(
    tmp_path: pathlib.Path,
) -> None:
    for shift in range(-3, 3):
        text = "a" * ((1 << 20) - len('x,text\n1,"') + shift)
        (tmp_path / "a.csv").write_bytes(f'x,text\n1,"{text}\r\nb"\n'.encode())
        table = Dataset.from_csv(str(tmp_path / "a.csv")).to_table()
        assert table["text"].to_pylist() == [text + "\r\nb"]


def test_long_invalid_value_is_shortened_in_error(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n" + "a" * 500_000 + "\n")
    with pytest.raises(SchemaError, match="invalid value 'aaaa") as caught:
        Dataset.from_csv(str(tmp_path / "a.csv"), pa.schema([("x", pa.int64())])).to_table()
    assert len(str(caught.value)) < 1_000


def test_unclosed_quote_is_refused_naming_it(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'x,y\n1,"two\n' + b"3,four\n" * 400_000)
    with pytest.raises(SourceError, match="close a quote that is left open"):
        Dataset.from_csv(str(tmp_path / "a.csv")).to_table()


@pytest.mark.parametrize("delimiter", ["§", '"', "\n", "\r", "\0", ";;", "", 7])
def test_invalid_delimiter_is_refused(delimiter: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"delimiter must be .*got"):
        Dataset.from_csv("a.csv", delimiter=delimiter)


def test_binary_csv_header_is_source_error(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.csv").write_bytes(gzip.compress(b"x,y\n1,2\n"))
    with pytest.raises(SourceError, match="not UTF-8"):
        Dataset.from_csv(str(tmp_path / "a.csv")).to_table()


def test_unsupported_compression_is_refused_naming_supported_ones(tmp_path: pathlib.Path) -> None:
    for name, read in (("a.csv.xz", Dataset.from_csv), ("a.jsonl.xz", Dataset.from_json)):
        (tmp_path / name).write_bytes(lzma.compress(b"x,y\n1,2\n"))
        with pytest.raises(SourceError, match=r"as \.xz, which is not read; \.gz, .* are"):
            read(str(tmp_path / name)).to_table()


def test_csv_text_that_is_not_utf_8_is_refused_naming_remedy(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.csv").write_bytes("x\ncafé\n".encode("latin-1"))
    with pytest.raises(SourceError, match=r"a\.csv', row 1: .*not UTF-8.*iconv"):
        Dataset.from_csv(str(tmp_path / "a.csv"), pa.schema([("x", pa.string())])).to_table()


def test_column_of_invalid_utf_8_is_refused_rather_than_read_as_bytes(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "a.csv").write_bytes("x,city\n1,café\n".encode("latin-1"))
    path = str(tmp_path / "a.csv")
    with pytest.raises(SourceError, match=r"a\.csv': column 'city' .*UTF-8.*encoding='latin-1'"):
        _ = Dataset.from_csv(path).schema
    stated = pa.schema([("city", pa.binary())])
    assert Dataset.from_csv(path, stated).to_table().to_pylist() == [{"city": b"caf\xe9"}]


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "utf-16-le", "gb18030"])
@pytest.mark.parametrize("packed", [False, True])
def test_csv_file_of_other_encoding_is_decoded_across_block_borders(
    tmp_path: pathlib.Path, encoding: str, packed: bool
) -> None:
    """The file is longer than a block, so that a block ends between the bytes of a character."""
    texts = ["é\r\nü" * (row % 37) for row in range(30_000)]
    with io.StringIO(newline="") as to:
        csv.writer(to).writerows([("größe", "text"), *enumerate(texts)])
        content = to.getvalue().encode(encoding)
    path = tmp_path / ("a.csv.gz" if packed else "a.csv")
    path.write_bytes(gzip.compress(content, 1) if packed else content)
    dataset = Dataset.from_csv(str(path), encoding=encoding)
    table = dataset.to_table()
    assert table["größe"].to_pylist() == list(range(len(texts)))
    assert table["text"].to_pylist() == texts
    again = pickle.loads(pickle.dumps(dataset))
    assert next(again.rows()) == {"größe": 0, "text": ""}


@pytest.mark.parametrize("encoding", ["shift_jis", "utf-16"])  # no such character; no BOM
def test_csv_file_not_in_stated_encoding_is_refused(tmp_path: pathlib.Path, encoding: str) -> None:
    (tmp_path / "a.csv").write_bytes("x,y\n1,café\n".encode("latin-1"))
    with pytest.raises(SourceError, match=rf"a\.csv'.* not {encoding.upper()} .*encoding="):
        Dataset.from_csv(str(tmp_path / "a.csv"), encoding=encoding).to_table()


@pytest.mark.parametrize("encoding", ["latin-99", "hex", "", 7, None])
def test_unknown_encoding_is_refused(encoding: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"encoding must be .*such as .*got"):
        Dataset.from_csv("a.csv", encoding=encoding)


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_column_type_unsupported_by_csv_is_refused_naming_remedy(
    tmp_path: pathlib.Path, on_error: str
) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,[1]\n")
    schema = pa.schema([("x", pa.int64()), ("y", pa.list_(pa.int64()))])
    told = r"column 'y' of type list<item: int64>.*read the column as a string"
    with pytest.raises(InvalidArgumentError, match=told):
        Dataset.from_csv(str(tmp_path / "a.csv"), schema, on_error=on_error).to_table()


def test_integers_above_int64_are_read_as_uint64(tmp_path: pathlib.Path) -> None:
    large = 2**63 + 5
    (tmp_path / "a.csv").write_text(f"id,x,y\n{large},1e19,-1\n,0.5,{large}\n")
    table = Dataset.from_csv(str(tmp_path / "a.csv")).to_table()
    assert table["id"].to_pylist() == [large, None]
    assert table.schema.types == [pa.uint64(), pa.float64(), pa.float64()]


@pytest.mark.parametrize("last", ["7,u,8", "7"])
@pytest.mark.parametrize("threads", [1, 2])
def test_csv_error_names_row_and_column(tmp_path: pathlib.Path, last: str, threads: int) -> None:
    rows = 200_000  # more than a block
    (tmp_path / "a.csv").write_text("a,b,c\n" + "1,2,3\n" * rows + last + "\n")
    schema = pa.schema([("c", pa.int64()), ("b", pa.int64())])
    error, column = (SchemaError, "column 'b' of type int64 ") if "u" in last else (SourceError, "")
    with pytest.raises(error, match=rf"a\.csv'.*, row {rows + 1}: {column}"):
        run(Dataset.from_csv(str(tmp_path / "a.csv"), schema), threads=threads)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("header", [True, False])
def test_rows_with_other_numbers_of_values_are_left_out_and_counted(
    tmp_path: pathlib.Path, threads: int, header: bool
) -> None:
    rows = [f"{number},x" for number in range(200_000)]  # more than a block
    bad = {0: "garbage", 9: "1,2,3", 150_000: '\'open, "a,b",,', 199_999: "7"}
    lines = [bad.get(number, row) for number, row in enumerate(rows)]
    (tmp_path / "a.csv").write_text("\n".join(["id,y"] * header + ["-1,x", *lines]) + "\n")
    schema = None if header else pa.schema([("id", pa.int64()), ("y", pa.string())])
    dataset = Dataset.from_csv(str(tmp_path), schema, header=header, on_error="skip")
    log = OmissionLog()
    ids = []
    with dataset.node.run(RunContext(threads=threads, omitted=log.open_run())) as stream:
        for batch in stream:
            ids += batch.column(0).to_pylist()
    assert ids == [-1, *(number for number in range(200_000) if number not in bad)]
    total = log.total()
    assert (total.source_rows, total.splits, len(total.files)) == (len(bad), 0, 1)
    assert "1 values for 2 columns: 'garbage'" in total.messages[0]
    if threads == 1:
        assert "a.csv', row 2: " in total.messages[0]


def test_positions_in_csv_file_do_not_count_malformed_rows(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\nbad\n3,4\n5,6\n")
    (tmp_path / "b.csv").write_text("x,y\nbad\n7,8\n")
    dataset = Dataset.from_csv(str(tmp_path), on_error="skip")
    assert dataset.to_table()["x"].to_pylist() == [1, 3, 5, 7]
    check_positions(dataset)
    tolerated = Dataset(tolerant(Dataset.from_csv(str(tmp_path)).node))
    assert tolerated.to_table() == dataset.to_table()


def test_error_for_malformed_row_names_remedy(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\nbad\n")
    with pytest.raises(SourceError, match=r"row 2: .*; from_csv\(\.\.\., on_error='skip'\) leaves"):
        Dataset.from_csv(str(tmp_path)).to_table()
    with pytest.raises(InvalidArgumentError, match="on_error"):
        Dataset.from_csv(str(tmp_path), on_error="ignore")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_malformed_row_that_is_no_text_ends_its_file_and_names_the_encoding(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "a.csv").write_bytes(b"x,y\n1,2\n\xff\n")
    dataset = Dataset.from_csv(
        str(tmp_path), pa.schema([("x", pa.int64()), ("y", pa.int64())]), on_error="skip"
    )
    log = OmissionLog()
    with dataset.node.run(RunContext(omitted=log.open_run())) as stream:
        assert list(stream) == []
    assert (log.total().source_rows, log.total().splits) == (0, 1)
    assert "row 2: a text is not UTF-8" in log.total().messages[0]
    assert "encoding='latin-1'" in log.total().messages[0]
