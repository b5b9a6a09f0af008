"""JSON lines under on_error="skip": lines that cannot be read are left out by themselves."""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import json
import logging
import pathlib
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.json as pajson
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dataservice as ds
from dataservice.dataset.sources import json_lines, read_ahead
from dataservice.dataset.sources.bisection import REFUSED_MAX
from dataservice.dataset.sources.json_lines import (
    ObjectLinesFile,
    TooLongError,
    agreeing_lines,
    blocks_of_lines,
    first_lines,
    read_blocks,
)
from dataservice.errors import FailedPreconditionError, InvalidArgumentError, SourceError

DEADLINE_S = 30.0
SCHEMA = pa.schema([("x", pa.int64()), ("s", pa.string())])
BAD = ['{"x": ', "[1]", '{"x": "a"}', "garbage", '{"x": 1, "z": 2}', '{"x": 1.5}', '"text"', "null"]
OPTIONS = pajson.ParseOptions(explicit_schema=SCHEMA, unexpected_field_behavior="error")
LATIN = b'{"s": "M\xfcnchen"}'


def line(x: int) -> str:
    return json.dumps({"x": x, "s": f"n{x}"})


def skipped(dataset: ds.Dataset) -> tuple[list[Any], dict[str, Any]]:
    with iter(dataset) as rows:
        read = [value for batch in rows for value in batch["x"].to_pylist()]
        return read, dict(rows.stats()["skipped"])


@given(
    lines=st.lists(st.one_of(st.integers(0, 99).map(line), st.sampled_from([*BAD, "", " "]))),
    size=st.integers(80, 400),
    ends_whole=st.booleans(),
    use_threads=st.booleans(),
)
def test_each_line_is_a_row_or_is_refused(
    lines: list[str], size: int, ends_whole: bool, use_threads: bool
) -> None:
    text = "\n".join(lines) + ("\n" if ends_whole else "")
    refused: list[json_lines.Refused] = []
    read: list[Any] = []
    blocks = blocks_of_lines(io.BytesIO(text.encode()), size)
    for batch in read_blocks(blocks, OPTIONS, refused.append, use_threads=use_threads):
        assert batch.schema == SCHEMA
        read += batch["x"].to_pylist()
    wanted = [each for each in lines if each.strip() and each not in BAD]
    assert read == [json.loads(each)["x"] for each in wanted]
    assert [each.text for each in refused] == [each.strip() for each in lines if each in BAD]


@pytest.mark.parametrize("size", [*range(1, 30), 1_000])
def test_a_file_ends_before_a_line_that_is_null_however_it_is_read(size: int) -> None:
    rows = 2 * b'{"x": null}\n{"null": 1}\n\n {"y":\tnull, "z": "a null"}\n'

    def read(text: bytes) -> tuple[bytes, list[Any]]:
        faults: list[Any] = []
        file, whole = ObjectLinesFile(io.BytesIO(text), faults), b""
        while part := bytes(file.read(size)):
            whole += part
        return whole, faults

    assert read(rows) == (rows, [])
    for null in (b"null\n", b" \t null"):
        whole, faults = read(rows + null + rows)
        assert [str(fault) for fault in faults] == ["a line is null, where each must be an object"]
        # Its beginning may have been read before its end.
        assert whole.startswith(rows)
        assert (rows + null.rstrip()[:-1]).startswith(whole)


def test_null_values_agree_with_values_of_all_kinds() -> None:
    lines = b'{"x": null, "y": [null]}\n{"x": null, "y": []}\n{"x": 1, "y": [1.5]}\n'
    assert agreeing_lines(lines + b'garbage\n{"x": [1]}\n') == lines
    assert agreeing_lines(b"") == b""


def test_types_are_not_inferred_from_lines_that_are_no_objects() -> None:
    assert agreeing_lines(b'[1]\n[2]\n[3]\n{"x": 1}\n') == b'{"x": 1}\n'


def blocks_of(*xs: int) -> Iterator[bytes]:
    return (line(x).encode() + b"\n" for x in xs)


def xs_of(rows: Iterator[pa.RecordBatch]) -> Iterator[int]:
    return (x for batch in rows for x in batch["x"].to_pylist())


def test_blocks_are_read_before_they_are_asked_for() -> None:
    second = threading.Event()

    def blocks() -> Iterator[bytes]:
        yield from blocks_of(1)
        second.set()
        yield from blocks_of(2)

    rows = xs_of(read_blocks(blocks(), OPTIONS, pytest.fail, use_threads=False))
    assert next(rows) == 1
    assert second.wait(DEADLINE_S)
    assert list(rows) == [2]


def test_only_blocks_at_hand_are_read_line_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    read = json_lines._read

    def noting(lines: bytes, options: pajson.ParseOptions) -> list[pa.RecordBatch]:
        sizes.append(len(lines))
        return read(lines, options)

    monkeypatch.setattr(json_lines, "_read", noting)
    blocks = itertools.chain(blocks_of(*range(500)), [b"garbage\n"], blocks_of(*range(500, 999)))
    refused: list[json_lines.Refused] = []
    rows = xs_of(read_blocks(blocks, OPTIONS, refused.append, use_threads=False))
    assert list(rows) == list(range(999))
    assert [each.text for each in refused] == ["garbage"]
    assert sizes[0] == len(b"garbage\n")
    assert len(sizes) < 200


@pytest.mark.parametrize("at", [0, 1, 700, 998, 999])
def test_a_line_that_arrow_names_takes_few_calls(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    calls = Counter[str]()
    read = json_lines._read

    def counting(lines: bytes, options: pajson.ParseOptions) -> list[pa.RecordBatch]:
        calls["read"] += 1
        return read(lines, options)

    monkeypatch.setattr(json_lines, "_read", counting)
    lines = list(blocks_of(*range(1000)))
    lines[at] = b'{"x": "a"}\n'
    refused: list[json_lines.Refused] = []
    rows = xs_of(json_lines.read_lines(b"".join(lines), OPTIONS, refused.append))
    assert list(rows) == [x for x in range(1000) if x != at]
    assert [each.text for each in refused] == ['{"x": "a"}']
    assert calls["read"] <= 5  # by halves it is twenty


@pytest.mark.parametrize("at", range(4))
def test_block_of_empty_lines_hides_no_rows_and_repeats_none(at: int) -> None:
    blocks = [*blocks_of(1, 2), b"garbage\n", *blocks_of(3)]
    blocks.insert(at, b"\n \n")
    rows = xs_of(read_blocks(iter(blocks), OPTIONS, lambda _: None, use_threads=False))
    assert list(rows) == [1, 2, 3]


def test_text_that_is_not_utf_8_is_refused_if_nothing_else_is_wrong() -> None:
    blocks = itertools.chain(blocks_of(1), [LATIN + b"\n"], blocks_of(2))
    refused: list[json_lines.Refused] = []
    rows = xs_of(read_blocks(blocks, OPTIONS, refused.append, use_threads=False))
    assert list(rows) == [1, 2]
    assert [each.text for each in refused] == [LATIN.decode(errors="replace")]


@pytest.mark.parametrize("at", [0, 700, 999])
def test_a_line_that_arrow_does_not_name_is_found_by_halves(
    monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    sizes: list[int] = []
    read = json_lines._read

    def noting(lines: bytes, options: pajson.ParseOptions) -> list[pa.RecordBatch]:
        sizes.append(len(lines))
        return read(lines, options)

    monkeypatch.setattr(json_lines, "_read", noting)
    lines = list(blocks_of(*range(1000)))
    lines[at] = LATIN + b"\n"
    rows = xs_of(json_lines.read_lines(b"".join(lines), OPTIONS, lambda _: None))
    assert list(rows) == [x for x in range(1000) if x != at]
    assert len(sizes) <= 30


def test_line_behind_a_longer_one_that_is_not_utf_8_is_read() -> None:
    long = b'{"s": "' + 99 * b"\xfc" + b'"}\n'
    refused: list[json_lines.Refused] = []
    rows = xs_of(json_lines.read_lines(long + b'{"x": 2}\n', OPTIONS, refused.append))
    assert list(rows) == [2]
    assert len(refused) == 1


def test_long_line_is_read_from_a_block_with_a_bad_line() -> None:
    long = json.dumps({"x": 5, "s": "y" * (3 << 20)}).encode()
    refused: list[json_lines.Refused] = []
    rows = xs_of(json_lines.read_lines(b"garbage\n" + long + b"\n", OPTIONS, refused.append))
    assert list(rows) == [5]
    assert [each.text for each in refused] == ["garbage"]


@pytest.mark.parametrize("bad", [[], [b"garbage\n"]])
def test_rows_before_an_error_of_the_file_come_first(bad: list[bytes]) -> None:
    def blocks() -> Iterator[bytes]:
        yield from blocks_of(1, 2)
        yield from bad
        yield from blocks_of(3)
        raise OSError("the store failed")

    refused: list[json_lines.Refused] = []
    rows = xs_of(read_blocks(blocks(), OPTIONS, refused.append, use_threads=True))
    assert [next(rows), next(rows), next(rows)] == [1, 2, 3]
    with pytest.raises(OSError, match="the store failed"):
        next(rows)
    assert len(refused) == len(bad)


@pytest.mark.parametrize("taken", [1, 2, 9])
def test_closing_does_not_wait_for_a_file_that_is_still_named(
    caplog: pytest.LogCaptureFixture, taken: int
) -> None:
    blocks = itertools.chain(blocks_of(1, 2), [b"garbage\n"], blocks_of(3, 4))
    with caplog.at_level(logging.DEBUG, read_ahead.logger.name):
        rows = read_blocks(blocks, OPTIONS, lambda _: None, use_threads=False)
        with contextlib.closing(rows):  # type: ignore[type-var]
            assert len(list(itertools.islice(rows, taken))) == min(taken, 4)
    assert not caplog.messages


def test_bad_lines_are_left_out_and_counted(tmp_path: pathlib.Path) -> None:
    lines = [line(x) for x in range(1_000)]
    for at, bad in enumerate(BAD):
        lines.insert(at * 137, bad)
    data = "\n".join(lines).encode() + b"\n" + LATIN + b"\n" + line(1_000).encode() + b"\n"
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(data))
    dataset = ds.Dataset.from_json(tmp_path / "a.jsonl.gz", on_error="skip", block_size_bytes=4_096)
    read, omitted = skipped(dataset)
    assert read == list(range(1_001))
    assert dataset.schema == SCHEMA
    assert (omitted["source_rows"], omitted["splits"]) == (len(BAD) + 1, 0)
    assert "Invalid value: '{\"x\":'" in "".join(omitted["messages"])
    assert "in row" not in "".join(omitted["messages"])


def test_reading_goes_on_behind_bad_lines_after_a_restore(tmp_path: pathlib.Path) -> None:
    lines = [each for x in range(200) for each in ([line(x)] if x % 7 else [line(x), "garbage"])]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    dataset = ds.Dataset.from_json(tmp_path, SCHEMA, on_error="skip", block_size_bytes=500)
    rows = iter(dataset)
    read = [value for batch in (next(rows), next(rows)) for value in batch["x"].to_pylist()]
    state = rows.state_dict()
    rows.close()
    again = iter(dataset)
    again.load_state_dict(state)
    read += [value for batch in again for value in batch["x"].to_pylist()]
    assert read == list(range(200))


def test_types_are_those_of_most_lines_of_the_first_block(tmp_path: pathlib.Path) -> None:
    lines = ['{"x": "n/a"}', "", '{"x": 1}', '{"x": null}', '{"x": 2.5}', "[[[", '{"x": true}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    dataset = ds.Dataset.from_json(tmp_path, on_error="skip")
    assert dataset.schema == pa.schema([("x", pa.float64())])
    read, omitted = skipped(dataset)
    assert read == [1.0, None, 2.5]
    assert omitted["source_rows"] == 3


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ('{"x": 1}', '{"x": 1, "x": 2}'),
        ('{"x": 1}', '{"x": 1e999}'),
        ('{"x": "a"}', '{"x": "\\ud800"}'),
        ('{"x": {"y": 1}}', '{"x": {"y": "a"}}'),
        ('{"x": [1, 2.5]}', '{"x": [1, "a"]}'),
        ('{"x": [1, 2.5]}', '{"x": ["a"]}'),
    ],
)
def test_line_that_only_arrow_refuses_does_not_hide_the_types(
    good: str, bad: str, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "a.jsonl").write_text("\n".join([good, bad, good]))
    read, omitted = skipped(ds.Dataset.from_json(tmp_path, on_error="skip"))
    assert read == [json.loads(good)["x"]] * 2
    assert (omitted["source_rows"], omitted["splits"]) == (1, 0)


@pytest.mark.parametrize(
    "text", ['{\n "x": 1\n}\n{\n "x": 2.5\n}\n', '{"x": 1}\r{"x": 2.5}', '{"x": 1}\n{"x": 2.5}']
)
def test_types_are_inferred_as_without_skipping_from_what_arrow_reads(
    text: str, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "a.jsonl").write_bytes(text.encode())
    assert skipped(ds.Dataset.from_json(tmp_path, on_error="skip"))[0] == [1.0, 2.5]
    assert ds.Dataset.from_json(tmp_path).to_table()["x"].to_pylist() == [1.0, 2.5]


def test_file_without_a_readable_line_says_why(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("garbage\n")
    reason = "none of the first lines is an object; every line must be one object.*other format$"
    with pytest.raises(FailedPreconditionError, match=reason):
        ds.Dataset.from_json(path, on_error="skip").to_table()
    path.write_text(line(1) * 9)
    with pytest.raises(FailedPreconditionError, match="larger block_size_bytes="):
        ds.Dataset.from_json(path, on_error="skip", block_size_bytes=20).to_table()


def test_file_of_another_kind_is_left_out_as_a_whole(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.jsonl").write_text(line(1) + "\n")
    (tmp_path / "b.jsonl").write_text("a,b\n" * (REFUSED_MAX + 1))
    (tmp_path / "c.jsonl").write_text("a,b\n" * REFUSED_MAX + line(2))
    read, omitted = skipped(ds.Dataset.from_json(tmp_path, on_error="skip"))
    assert read == [1, 2]
    assert (omitted["splits"], omitted["source_rows"]) == (1, 2 * REFUSED_MAX)


def test_first_lines_are_those_of_the_first_block_and_a_last_one_without_an_end() -> None:
    assert first_lines(io.BytesIO(b"1\n2\n3\n4\n"), 5) == b"1\n2\n"
    assert first_lines(io.BytesIO(b"1\n2\n3"), 4) == b"1\n2\n3"


def test_line_longer_than_a_block_ends_the_file(tmp_path: pathlib.Path) -> None:
    file = io.BytesIO(b"x" * 1_000)
    with pytest.raises(TooLongError):
        list(blocks_of_lines(file, 40))
    assert file.tell() == 80, "the rest of a long file has no place in memory"
    long = json.dumps({"x": 5, "s": "y" * 9_000})
    (tmp_path / "a.jsonl").write_text("\n".join([line(1), long, line(2)]))
    dataset = ds.Dataset.from_json(tmp_path, on_error="skip", block_size_bytes=1_000)
    read, omitted = skipped(dataset)
    assert read == [1]
    assert omitted["splits"] == 1
    assert "read it with a larger block_size_bytes=" in omitted["messages"][0]


def test_error_of_a_bad_line_tells_of_skipping(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.jsonl").write_text(line(1) + "\ngarbage\n")
    with pytest.raises(SourceError, match=r"from_json\(\.\.\., on_error='skip'\) leaves out such"):
        ds.Dataset.from_json(tmp_path).to_table()
    with pytest.raises(InvalidArgumentError, match="on_error"):
        ds.Dataset.from_json(tmp_path, on_error="ignore")
