"""Texts of CSV that end within quotes, and those that only look so."""

from __future__ import annotations

import gzip
import io
import pathlib
import threading
from collections.abc import Callable
from itertools import pairwise

import pyarrow as pa
import pyarrow.csv as pacsv
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dataservice import Dataset
from dataservice.dataset.omission_log import OmissionLog
from dataservice.dataset.sources import csv_text
from dataservice.dataset.sources.csv_text import CsvText, Quotes, line_of_open_quote
from dataservice.dataset.stream import RunContext
from dataservice.errors import SourceError

TEXTS = st.text(alphabet='",\n\r a', max_size=30)


def in_blocks(text: bytes, size: int) -> list[bytes]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def lines_that_arrow_sees(text: bytes) -> int:
    """Returns the number of lines that end in the text and are not blank, by Arrow's rules."""
    other: list[pacsv.InvalidRow] = []

    def count(row: pacsv.InvalidRow) -> str:
        other.append(row)
        return "skip"

    read = pacsv.ReadOptions(column_names=["a", "b"], use_threads=False)
    parse = pacsv.ParseOptions(newlines_in_values=True, invalid_row_handler=count)
    table = pacsv.read_csv(io.BytesIO(text), read, parse)
    return len(other) + table.num_rows


@given(TEXTS, st.integers(1, 40))
def test_open_quotes_are_those_that_swallow_a_line(text: str, block_bytes: int) -> None:
    raw = text.encode()
    line = line_of_open_quote(in_blocks(raw, block_bytes), ",")
    # A line behind the text is seen as such unless the text ends within quotes.
    before, after = lines_that_arrow_sees(raw + b"\nz\n"), lines_that_arrow_sees(raw + b"\nz\nz\n")
    assert (line is not None) == (before == after)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('"a', 1),
        ('\ufeff"a', 1),
        ('a\n"b\nc', 2),
        ('a\r\nb,c,"b""\r\nc', 2),
        ('a\r\rb\r"c\rd', 4),
        ('a\r\n\r"c\r\nd', 3),
        ('"a\nb"\n"c\nd"\n\ne,"', 6),
        ('"a\nb"\n', None),
        ('7",8"\n"a""b"', None),
    ],
)
@pytest.mark.parametrize("block_bytes", [4, 100])
def test_line_of_the_quote_is_told(text: str, line: int | None, block_bytes: int) -> None:
    assert line_of_open_quote(in_blocks(text.encode(), block_bytes), ",") == line


def test_only_the_delimiter_begins_a_value() -> None:
    assert line_of_open_quote([b'a;"b'], ";") == 1
    assert line_of_open_quote([b'a,"b'], ";") is None
    assert line_of_open_quote([b'a]"b'], "]") == 1
    assert line_of_open_quote([b'a^"b'], "^") == 1


@example([b"a", b"a", b"\r", b"\n"], 3)
@given(st.lists(st.sampled_from([b"a", b'"', b"\r", b"\n"]), max_size=12), st.integers(3, 6))
def test_arrow_gets_all_from_the_first_line_on_and_an_end_of_an_only_one(
    text: list[bytes], size: int
) -> None:
    whole = b"".join(text)
    quotes = Quotes()
    file = CsvText(io.BytesIO(whole), quotes)
    blocks = list(iter(lambda: bytes(file.read(size)), b""))
    assert all(len(block) <= size for block in blocks)
    read = b"".join(blocks)
    assert read.removesuffix(b"\n").lstrip(b"\r\n") == whole.removesuffix(b"\n").lstrip(b"\r\n")
    assert file.has_lines == bool(read) == bool(whole.strip(b"\r\n"))
    if read:
        assert blocks[0].strip(b"\r\n")
    if len(blocks) == 1:
        assert read.endswith((b"\r", b"\n"))
    assert not any(a.endswith(b"\r") and b.startswith(b"\n") for a, b in pairwise(blocks))
    assert quotes.may_be_open == (whole.count(b'"') % 2 == 1)


@pytest.mark.parametrize(
    "text", ["y" * (2 << 20), '"' + "y\n" * (1 << 20), "y" * (1 << 20) + "\nz\n"]
)
def test_first_line_longer_than_a_block_is_an_error(tmp_path: pathlib.Path, text: str) -> None:
    (tmp_path / "b.csv").write_text(text)
    (tmp_path / "a.csv").write_text("x\n")
    for path in (tmp_path, tmp_path / "b.csv"):
        with pytest.raises(
            SourceError, match=r"b\.csv', after row 0: a row is longer than a block"
        ):
            Dataset.from_csv(str(path), header=False).to_table()
    with pytest.raises(SourceError, match="a row is longer than a block"):
        Dataset.from_csv(str(tmp_path / "b.csv")).to_table()


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_rows_behind_more_blank_lines_than_a_block_has_are_read(
    tmp_path: pathlib.Path, mark: str
) -> None:
    # The other file is the first with rows: that this one has some shows only when it is read.
    (tmp_path / "b.csv").write_text(mark + "\n" * (3 << 20) + "3,4\n")
    (tmp_path / "a.csv").write_text("1,2\n")
    rows = Dataset.from_csv(str(tmp_path), header=False).to_table().to_pylist()
    assert rows == [{"f0": 1, "f1": 2}, {"f0": 3, "f1": 4}]
    rows = Dataset.from_csv(str(tmp_path / "b.csv")).to_table()
    assert rows.column_names == ["3", "4"]


@pytest.mark.parametrize("schema", [None, pa.schema([("x", pa.int64())])])
@pytest.mark.parametrize("end", ["\n", ""])
def test_file_that_ends_within_quotes_is_refused(
    tmp_path: pathlib.Path, schema: pa.Schema | None, end: str
) -> None:
    text = f'x,s\n1,a\n2,"b\n3,c\n4,d{end}'
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text.encode("utf-16")))
    data = Dataset.from_csv(str(tmp_path), schema, encoding="utf-16")
    with pytest.raises(SourceError, match=r"a\.csv\.gz' ends within quotes, which open in line 3"):
        data.to_table()


def test_rows_that_open_quotes_hide_are_counted_as_left_out(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.csv").write_text('x,s\n1,a\nu,b\n2,"b\n3,c\n')
    (tmp_path / "b.csv").write_text("x,s\n5,e\n")
    log = OmissionLog()
    schema = pa.schema([("x", pa.int64()), ("s", pa.string())])
    data = Dataset.from_csv(str(tmp_path), schema, on_error="skip")
    with data.node.run(RunContext(omitted=log.open_run())) as stream:
        rows = [x for batch in stream for x in batch["x"].to_pylist()]
    assert rows == [1, 2, 5]
    assert (log.total().splits, log.total().source_rows) == (1, 1)
    assert "quotes, which open in line 4" in "\n".join(log.total().messages)


def test_odd_quote_within_a_value_is_none_that_opens_one(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.csv").write_text('x,s\n1,7" screen\n2,"b"\n')
    rows = Dataset.from_csv(str(tmp_path)).to_table().to_pylist()
    assert rows == [{"x": 1, "s": '7" screen'}, {"x": 2, "s": "b"}]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary()])
@pytest.mark.parametrize("end", ["\n", ""])
@pytest.mark.parametrize("line_end", ["\n", "\r", "\r\n"])
def test_open_quote_beside_a_quote_within_a_value_is_found(
    tmp_path: pathlib.Path, kind: pa.DataType, end: str, line_end: str
) -> None:
    text = f'x,s\n1,7" tv\n2,"b\n3,c\n4,d{end}'.replace("\n", line_end)
    (tmp_path / "a.csv").write_bytes(text.encode())
    data = Dataset.from_csv(str(tmp_path), pa.schema([("x", pa.int64()), ("s", kind)]))
    with pytest.raises(SourceError, match=r"a\.csv' ends within quotes, which open in line 3"):
        data.to_table()


@pytest.mark.parametrize(
    "text",
    [
        '7" tv,1\n"b,2\nc,3\n',  # the row has too few values
        '7" tv,1\na,2\nc,"3\nd,4\n',  # the value is none of its type
    ],
)
def test_rows_that_one_of_two_quotes_hides_are_counted_as_left_out(
    tmp_path: pathlib.Path, text: str
) -> None:
    (tmp_path / "a.csv").write_text(text)
    log = OmissionLog()
    schema = pa.schema([("s", pa.string()), ("x", pa.int64())])
    data = Dataset.from_csv(str(tmp_path), schema, header=False, on_error="skip")
    with data.node.run(RunContext(omitted=log.open_run())) as stream:
        rows = [x for batch in stream for x in batch["x"].to_pylist()]
    assert rows[0] == 1
    assert (log.total().splits, log.total().source_rows) == (1, 1)
    assert "ends within quotes" in "\n".join(log.total().messages)


def test_last_value_of_several_lines_is_read(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.csv").write_text('x,s\n1,7" tv\n2,"b\nc"\n3,"d\ne\n"\n')
    rows = Dataset.from_csv(str(tmp_path)).to_table()
    assert rows["s"].to_pylist() == ['7" tv', "b\nc", "d\ne\n"]


@pytest.mark.parametrize("text", [b"", b"a,b\n1,2", b"\n\n\xef\xbb\xbfa\r\n1\r\n", b"a\r", b"\n"])
def test_text_of_one_block_is_the_same_in_memory(text: bytes) -> None:
    read = CsvText(io.BytesIO(text), Quotes()).read(csv_text.BLOCK_BYTES)
    whole = CsvText(io.BytesIO(text), Quotes()).in_memory()
    assert whole is not None
    assert whole.read() == read.tobytes()


@pytest.mark.parametrize("text", [b'a,b\n1,"2\n3"\n4,5\n', b"a\n1234\r\n5\r\n6", b"abcdefg\n1\n"])
@pytest.mark.parametrize("block_bytes", [4, 5, 6, 7])
def test_text_of_several_blocks_is_left_to_be_read(
    text: bytes, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_text, "BLOCK_BYTES", block_bytes)
    quotes, same = Quotes(), Quotes()
    looked_at, other = CsvText(io.BytesIO(text), quotes), CsvText(io.BytesIO(text), same)
    assert looked_at.in_memory() is None
    for _ in range(len(text)):
        assert looked_at.read(block_bytes).tobytes() == other.read(block_bytes).tobytes()
    assert quotes.number == same.number


def test_only_large_files_are_read_on_threads_of_arrow(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[bool] = []

    def observed(text: CsvText, size: int, read: Callable[..., bytes] = CsvText._read) -> bytes:
        readers.append(threading.current_thread() is threading.main_thread())
        return read(text, size)

    monkeypatch.setattr(CsvText, "_read", observed)
    small, large = tmp_path / "small.csv", tmp_path / "large.csv"
    small.write_text("a\n1\n")
    large.write_text("a\n" + "1234567\n" * 300_000)
    schema = pa.schema([("a", pa.int64())])
    assert Dataset.from_csv(str(small), schema=schema).to_table().num_rows == 1
    assert readers == [True]
    assert Dataset.from_csv(str(large), schema=schema).to_table().num_rows == 300_000
    assert not all(readers)
