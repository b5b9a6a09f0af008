"""The text of a CSV file as Arrow should get it, and where it ends within quotes.

Arrow takes the rest of a file for a value if its quote is left open, without a word. Knows quotes
and ends of lines, nothing of columns or types. Invariant: Arrow gets every byte, and behind them at
most the end of the last line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from dataservice.dataset.sources.read_ahead import ReadAheadFile

_BOM = b"\xef\xbb\xbf"


class Quotes:
    """The number of quotes in the text that was read so far."""

    def __init__(self) -> None:
        self.number = 0

    @property
    def may_be_open(self) -> bool:
        """True if the quotes cannot be pairs. Then one is open, or is part of a value."""
        return self.number % 2 == 1


class CsvText(ReadAheadFile):
    """A text whose blocks never end between the two characters of a CRLF line end.

    Arrow's CSV reader drops a line feed at the beginning of a block, even inside quotes. It also
    needs the end of a line to see the only one of a file.
    """

    def __init__(self, handle: Any, quotes: Quotes) -> None:
        super().__init__(handle)
        self._quotes = quotes
        self._next = b""  # the first byte of the next block

    def _read(self, size: int) -> bytes:
        block = self._next + bytes(self._handle.read(max(1, size - 2)))
        self._next = bytes(self._handle.read(1))
        if block.endswith(b"\r") and self._next == b"\n":
            block, self._next = block + self._next, b""
        elif block and not self._next and not block.endswith((b"\n", b"\r")):
            block += b"\n"
        self._quotes.number += block.count(b'"')
        return block


def line_of_open_quote(blocks: Iterable[bytes], delimiter: str) -> int | None:
    """Returns the number of the line with the quote that is still open at the end of the text.

    None if none is. Quotes count as in Arrow: only at the beginning of a value do they open one.
    """
    before = rb"[\r\n%s]" % re.escape(delimiter.encode())
    quoted = re.compile(before + rb'"[^"]*(?:""[^"]*)*("?)')
    # Of what is before it, only the last character matters; before the first line, the end of one.
    line, rest = 0, b"\n"
    for number, block in enumerate(blocks):
        text = rest + (block.removeprefix(_BOM) if number == 0 else block)
        rest = text[-1:]
        for value in quoted.finditer(text):
            # A quote at the end of a block may be the first of two, which close nothing.
            if value.end() == len(text):
                rest = value[0]
        line += text.count(b"\n") - rest.count(b"\n")
    last = quoted.fullmatch(rest)
    return line + rest[:1].count(b"\n") if last is not None and not last[1] else None
