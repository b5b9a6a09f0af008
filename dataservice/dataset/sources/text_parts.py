"""Parts of a text file: the lines that begin in a range of its bytes, readable without the others.

Knows ends of lines, nothing of columns or types. Invariant: wherever a file is cut, each of its
lines is in one part, whole; the parts in order are the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from dataservice.dataset.sources.files import InputFile
from dataservice.errors import SourceError
from dataservice.sharding import Split

PART_BYTES: Final = 32 << 20
"""The size of the largest part. Several workers share a file; a lost one repeats little of it."""
_READ_BYTES: Final = 256 << 10
_FETCHES: Final = 4


class TextPart(NamedTuple):
    """The lines of a file that begin in bytes [start, stop); a whole file if `stop` is 0."""

    path: str
    start: int = 0
    stop: int = 0

    @property
    def suffix(self) -> str:
        """What a message adds to the number of a row or line, which counts from the part's first.

        "" if that is the first one of the file.
        """
        return f" of the lines from byte {self.start:,} on" if self.start else ""

    @property
    def ahead_bytes(self) -> int | None:
        """How much of the file to fetch at once, so that little of other parts is; None for any."""
        return max(1, (self.stop - self.start) // _FETCHES) if self.stop else None

    def lines(self, file: Any, header: bytes = b"") -> Any:
        """Returns a file of these lines, behind `header` unless they have the first; reads `file`.

        That is an open file, which can seek unless the part is the whole file.
        """
        if not self.stop:
            return file
        if not self.start:
            return _Lines(file, 0, self.stop)
        try:
            # A line begins behind the end of another, so what counts are ends from here on.
            file.seek(self.start - 1)
        except (OSError, ValueError, NotImplementedError) as error:
            raise SourceError(
                f"{self.path!r} cannot be read from byte {self.start:,} on: its store gives it "
                f"from its beginning only ({error}); copy it to another store, or compress it, so "
                "that it is not read in parts"
            ) from error
        lines = _Lines(file, self.start - 1, self.stop)
        lines.begin_behind_line_end(header)
        return lines


def part_of(split: Split) -> TextPart:
    """Returns the part of a file that a split stands for."""
    assert split.path is not None
    return TextPart(split.path, split.start, split.stop)


def is_large(file: InputFile) -> bool:
    """True if the file is larger than a part."""
    return file.size_bytes > PART_BYTES


def splits_of(file: InputFile) -> Iterator[Split]:
    """Yields a split for each of the even parts of a large file."""
    whole, count = file.as_split(), -(-file.size_bytes // PART_BYTES)
    for number in range(count):
        start, stop = (file.size_bytes * edge // count for edge in (number, number + 1))
        yield whole._replace(start=start, stop=stop)


def first_line(file: Any, max_bytes: int) -> bytes:
    """Returns the first line of a file that is not blank, with its end, and all before it.

    Of a line of more than `max_bytes` it returns about so many.
    """
    text = b""
    while read := bytes(file.read(_READ_BYTES)):
        text += read
        begin = len(text) - len(text.removeprefix(_BOM).lstrip(b"\r\n"))
        ends = [at for at in (text.find(b"\n", begin), text.find(b"\r", begin)) if at >= 0]
        if ends and min(ends) + 1 < len(text):
            end = min(ends) + 1
            return text[: end + (text[end - 1 : end + 1] == b"\r\n")]
        if len(text) - begin > max_bytes:
            break
    return text


_BOM: Final = b"\xef\xbb\xbf"


class _Lines:
    """The bytes of another file, which is at byte `at`, up to the end of the line of `stop` - 1."""

    def __init__(self, file: Any, at: int, stop: int) -> None:
        self._file = file
        self._at = at
        self._stop = stop
        self._is_over = False
        self._next = b""

    def begin_behind_line_end(self, header: bytes) -> None:
        """Passes the rest of a line; puts `header` in its place."""
        self._next = header + self._behind_line_end()

    def read(self, size: int) -> bytes:
        """Returns `size` bytes, fewer only at the end: Arrow expects a line to end in the first."""
        while len(self._next) < size and not self._is_over:
            self._next += self._read(size - len(self._next))
        read, self._next = self._next[:size], self._next[size:]
        return read

    def _behind_line_end(self) -> bytes:
        """Passes the end of a line that began before; returns what was read of those behind it."""
        while not self._is_over:
            before = self._at
            read = self._read(_READ_BYTES)
            end = read.find(b"\n") + 1
            if end and before + end < self._stop:
                return read[end:]
            self._is_over |= before + len(read) >= self._stop
        return b""

    def _read(self, size: int) -> bytes:
        """Returns the next bytes, up to the end of the last line; none once that was reached."""
        # Little of what is behind the part, which others fetch.
        read = bytes(self._file.read(min(size, max(self._stop - self._at, _READ_BYTES))))
        end = read.find(b"\n", max(0, self._stop - 1 - self._at)) + 1
        self._at += len(read)
        self._is_over = end > 0 or not read
        return read[:end] if end else read
