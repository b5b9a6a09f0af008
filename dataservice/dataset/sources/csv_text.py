"""The text of a CSV file as Arrow should get it, and where it ends within quotes.

Arrow takes the rest of a file for a value if its quote is left open, without a word. Knows quotes
and ends of lines, nothing of columns or types. Invariant: Arrow gets every byte but blank lines at
the beginning, and behind them at most the end of the only one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import pyarrow as pa

from dataservice.dataset.sources.read_ahead import ReadAheadFile

BLOCK_BYTES: Final = 1 << 20
"""So many bytes of the text Arrow gets at once. No row may be longer."""

_BOM: Final = b"\xef\xbb\xbf"
_QUOTE: Final = ord('"')


class Quotes:
    """The number of quotes in the text that was read so far."""

    def __init__(self) -> None:
        self.number = 0

    @property
    def may_be_open(self) -> bool:
        """True if the quotes cannot be pairs. Then one is open, or is part of a value.

        An even number may hide an open one: `7" screen` has a quote without another.
        """
        return self.number % 2 == 1

    def count_in(self, block: bytes) -> None:
        # Counting as bytes do takes six times as long.
        self.number += int(np.count_nonzero(np.frombuffer(block, np.uint8) == _QUOTE))


class CsvText(ReadAheadFile):
    """A text whose blocks never end between the two characters of a CRLF line end.

    Arrow's CSV reader drops a line feed at the beginning of a block, even inside quotes. It also
    takes a text for an empty one if no line ends in its first block, or if all of these are blank;
    `has_lines` tells whether it is one, once it is read.
    """

    def __init__(self, handle: Any, quotes: Quotes) -> None:
        super().__init__(handle)
        self.has_lines = False
        self._quotes = quotes
        self._next = b""  # the first byte of the next block
        self._first = b""  # the first block, if it was read before Arrow asked for it

    def in_memory(self) -> pa.BufferReader | None:
        """Returns the whole text if it fits into one block; else None, and nothing is lost.

        Arrow's threads read it without the interpreter, for which they wait longer than they take
        to parse a small file.
        """
        first = self._read(BLOCK_BYTES)
        self._next = self._next or bytes(self._handle.read(1))
        if self._next:
            self._first = first
            return None
        text = pa.allocate_buffer(len(first))
        np.frombuffer(text, np.uint8)[:] = np.frombuffer(first, np.uint8)
        return pa.BufferReader(text)

    def _read(self, size: int) -> bytes:
        if self._first:
            block, self._first = self._first, b""
            return block
        block = self._read_block(size)
        while block and not self.has_lines:
            self.has_lines = bool(block.removeprefix(_BOM).strip(b"\r\n"))
            block = block if self.has_lines else self._read_block(size)
        self._quotes.count_in(block)
        return block

    def _read_block(self, size: int) -> bytes:
        block = self._next + bytes(self._handle.read(max(1, size - 2)))
        # Not always: another byte in front of a block takes a copy of it.
        looks_ahead = block.endswith(b"\r") or not self.has_lines
        self._next = bytes(self._handle.read(1)) if looks_ahead else b""
        if block.endswith(b"\r") and self._next == b"\n":
            block, self._next = block + self._next, b""
        elif block and looks_ahead and not self._next and not block.endswith((b"\n", b"\r")):
            block += b"\n"
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
        line += _line_ends(text) - _line_ends(rest)
    last = quoted.fullmatch(rest)
    return line + _line_ends(rest[:1]) if last is not None and not last[1] else None


def _line_ends(text: bytes) -> int:
    return text.count(b"\n") + text.count(b"\r") - text.count(b"\r\n")
