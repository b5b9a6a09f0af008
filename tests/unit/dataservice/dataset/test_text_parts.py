"""Wherever a text file is cut, each of its lines is in one part, whole."""

from __future__ import annotations

import io
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataservice.dataset.sources import text_parts
from dataservice.dataset.sources.text_parts import TextPart, first_line

lines = st.lists(
    st.tuples(st.sampled_from([b"", b"a", b"bcd", b"e" * 30]), st.sampled_from([b"\n", b"\r\n"]))
)


@given(lines, st.sampled_from([b"", b"x", b"\r"]), st.integers(1, 40), st.integers(1, 50))
def test_a_part_has_the_lines_that_begin_in_it(
    text: list[tuple[bytes, bytes]], last: bytes, part_bytes: int, read_bytes: int
) -> None:
    every = [line + end for line, end in text] + ([last] if last else [])
    begins = [0, *itertools.accumulate(map(len, every))]
    whole = b"".join(every)
    for start, stop in itertools.pairwise([*range(0, len(whole), part_bytes), len(whole)]):
        file = TextPart("p", start, stop).lines(io.BytesIO(whole))
        read = b"".join(iter(lambda file=file: file.read(read_bytes), b""))
        assert read == b"".join(
            line for line, begin in zip(every, begins, strict=False) if start <= begin < stop
        )


def test_a_long_line_is_in_the_part_in_which_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_parts, "_READ_BYTES", 4)
    whole = b"first\n" + b"x" * 100 + b"\nlast\n"
    parts = [TextPart("p", start, start + 28).lines(io.BytesIO(whole)) for start in (0, 28, 56, 84)]
    assert [part.read(1_000) for part in parts] == [whole[:107], b"", b"", b"last\n"]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        (b"a,b\n1,2\n", b"a,b\n"),
        (b"\xef\xbb\xbf\r\n\na,b\r\n1,2\r\n", b"\xef\xbb\xbf\r\n\na,b\r\n"),
        (b"a,b\r1,2\r", b"a,b\r"),
        (b"a,b", b"a,b"),
        (b"a,b\n", b"a,b\n"),
        (b"", b""),
    ],
)
@pytest.mark.parametrize("read_bytes", [1, 4, 1_000])
def test_first_line(
    text: bytes, first: bytes, read_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_parts, "_READ_BYTES", read_bytes)
    assert first_line(io.BytesIO(text), 100) == first


def test_of_a_first_line_without_an_end_not_the_whole_file_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(text_parts, "_READ_BYTES", 4)
    file = io.BytesIO(b"\n\n" + b"x" * 1_000)
    assert 10 <= len(first_line(file, 10)) <= 20


@pytest.mark.parametrize("header", [b"", b"a,b\n"])
@pytest.mark.parametrize("read_bytes", [1, 100])
def test_reads_are_as_long_as_asked_for(
    header: bytes, read_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Arrow takes a text for an empty one if no line ends in what it reads first.
    monkeypatch.setattr(text_parts, "_READ_BYTES", read_bytes)
    part = TextPart("p", 2, 40).lines(io.BytesIO(b"first\n" + b"x" * 50 + b"\nlast\n"), header)
    assert part.read(20) == (header + b"x" * 20)[:20]
    assert part.read(1_000) == (header + b"x" * 50 + b"\n")[20:]
    assert part.read(1_000) == b""
