"""Reads JSON lines a block at a time and leaves out, and counts, the lines that Arrow cannot read.

Blocks are read ahead until Arrow refuses one, of which the lines at fault are found. Knows nothing
of schemas or of errors of whole files. Invariant: each line is a row, is counted as left out, or is
in a block whose error is raised; the same bytes give the same batches every time.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Generator, Iterator
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.json as pajson

from dataservice.dataset.sources.bisection import read_in_parts
from dataservice.dataset.sources.read_ahead import ReadAheadBatches, ReadAheadFile
from dataservice.errors import InvalidArgumentError

_TEXT_CHARS: Final = 200
_Path: TypeAlias = tuple[str | None, ...]
_ROW: Final = re.compile(r"\.? in row (\d+)$")
_LINE_END: Final = ord("\n")
# Arrow crashes where the first line of a block is null, and takes other such lines for rows.
_NULL_FIRST: Final = re.compile(rb"\s*null")
_NULL_LATER: Final = re.compile(rb"\n[ \t\r]*null")
_IS_NULL: Final = "a line is null, where each must be an object"
_REFUSED_BLOCK: Final = b"0\n"
# More than the spaces before a null.
_JOINT_BYTES: Final = 64


class Refused(NamedTuple):
    """A line that was left out: its beginning, and what Arrow says of it."""

    text: str
    message: str


class ObjectLinesFile(ReadAheadFile):
    """A file of JSON lines that ends before the first one that is null, and notes that as a fault.

    ``faults`` is the caller's, who must not refer to this file: closing waits until nobody does.
    """

    def __init__(self, handle: Any, faults: list[pa.ArrowInvalid]) -> None:
        super().__init__(handle)
        self._faults = faults
        self._before = b"\n"

    def _read(self, size: int) -> bytes:
        read = b"" if self._faults else super()._read(size)
        joint = _NULL_LATER.search(self._before + read[:_JOINT_BYTES])
        found = joint or _NULL_LATER.search(read)
        if found is not None:
            self._faults.append(pa.ArrowInvalid(_IS_NULL))
            read = read[: max(0, found.start() + 1 - (len(self._before) if joint else 0))]
        self._before = (self._before + read)[-_JOINT_BYTES:]
        return read


class TooLongError(pa.ArrowInvalid):
    """A line is longer than a block."""


def require_convertible(schema: pa.Schema) -> None:
    """Raises InvalidArgumentError for a column of a type to which Arrow converts no JSON."""
    for field in schema:
        try:
            _read(b"{}\n", pajson.ParseOptions(explicit_schema=pa.schema([field])))
        except pa.ArrowNotImplementedError as error:
            raise InvalidArgumentError(
                f"the schema given to from_json has the column {field.name!r} of type "
                f"{field.type}, which values of JSON do not get ({error}); read it as another "
                "type, such as a list, a struct or a string, and make the values of it with map"
            ) from error


def blocks_of_lines(file: Any, size_bytes: int) -> Iterator[bytes]:
    """Yields the bytes of a file in blocks of whole lines; TooLongError for a longer line."""
    rest = b""
    while read := bytes(file.read(size_bytes)):
        end = read.rfind(b"\n") + 1
        if not end and len(rest) + len(read) > size_bytes:
            raise TooLongError(f"no line ends in a block of {size_bytes} bytes")
        if end:
            yield rest + read[:end]
            rest = b""
        rest += read[end:]
    if rest:
        yield rest


def read_blocks(
    blocks: Iterator[bytes],
    options: pajson.ParseOptions,
    refuse: Callable[[Refused], None],
    *,
    use_threads: bool,
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of blocks of lines as `read_lines` does, but reads and parses them ahead."""
    # Then Arrow makes one batch of each.
    blocks = (block for block in blocks if not block.isspace())
    is_refused = True
    while is_refused:
        taken = _Taken()
        is_refused = yield from _until_refused(blocks, taken, options, use_threads)
        # The first one is refused, others were read ahead.
        for block in taken.ahead:
            yield from read_lines(block, options, refuse)
        if taken.failure is not None:
            raise taken.failure


class _Taken:
    """What Arrow has taken: `ahead` are the blocks of which it has not given the rows yet.

    `failure` is the error that came in place of a block, after the rows of those before it.
    """

    def __init__(self) -> None:
        self.ahead: deque[bytes] = deque()
        self.is_begun = False
        self.failure: Exception | None = None


class _BlocksFile(ReadAheadFile):
    """A file of which each read returns one block, whatever its size."""

    def __init__(self, blocks: Iterator[bytes], taken: _Taken) -> None:
        super().__init__(None)
        self._blocks = blocks
        self._taken = taken

    def _read(self, size: int) -> bytes:  # noqa: ARG002 - it goes by blocks
        try:
            block = next(self._blocks, b"")
        except Exception as error:
            # To Arrow it looks like the end of the file, so that it gives the rows before it.
            self._taken.failure = error
            return b""
        if block:
            self._taken.is_begun = True
            self._taken.ahead.append(block)
        return _REFUSED_BLOCK if _has_null(block) else block


def _until_refused(
    blocks: Iterator[bytes], taken: _Taken, options: pajson.ParseOptions, use_threads: bool
) -> Generator[pa.RecordBatch, None, bool]:
    """Yields the rows of blocks up to one that Arrow refuses; returns whether it refused one."""
    read = pajson.ReadOptions(use_threads=use_threads)
    try:
        reader = ReadAheadBatches(
            # Not named here: closing waits until nothing refers to it any more.
            _BlocksFile(blocks, taken),
            lambda file: pajson.open_json(file, read, options),
        )
        with contextlib.closing(reader) as batches:
            for batch in batches:
                # Arrow's parser does not check the bytes of strings.
                batch.validate(full=True)
                taken.ahead.popleft()
                yield batch
    except pa.ArrowInvalid:
        if taken.is_begun and not taken.ahead:
            raise
        # Otherwise the file has no lines, which Arrow refuses as well.
        return taken.is_begun
    return False


def first_lines(file: Any, size_bytes: int) -> bytes:
    """Returns the whole lines of the first block of a file; TooLongError if there are none."""
    blocks = blocks_of_lines(file, size_bytes)
    first = next(blocks, b"")
    with contextlib.suppress(TooLongError):
        second = next(blocks, b"")
        # Only the last line of a file may lack its end.
        return first if b"\n" in second else first + second
    return first


def read_lines(
    block: bytes, options: pajson.ParseOptions, refuse: Callable[[Refused], None]
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a block of lines; calls ``refuse`` for each line that is left out.

    Raises Arrow's error if there are too many of them.
    """
    for _, batches in _pieces_read(block, options, refuse):
        yield from batches


def agreeing_lines(lines: bytes) -> bytes:
    """Returns the lines from which to infer types: all of them if Arrow can read them together.

    Otherwise these are the JSON objects whose values, inner ones too, are of the kind that most
    lines have there. Raises ArrowInvalid if there are none.
    """
    options = pajson.ParseOptions()
    with contextlib.suppress(pa.ArrowInvalid):
        _read(lines, options)
        return lines
    # Of lines that agree, Arrow refuses those that are malformed in its eyes only.
    pieces = _pieces_read(_agreeing_objects(lines), options, lambda _: None)
    if agreeing := b"".join(piece for piece, _ in pieces):
        return agreeing
    raise pa.ArrowInvalid("none of the first lines is an object")


def _agreeing_objects(lines: bytes) -> bytes:
    objects = [(line, kinds) for line in lines.split(b"\n") if (kinds := _kinds_of(line))]
    counts: defaultdict[_Path, Counter[type]] = defaultdict(Counter)
    for _, kinds in objects:
        for path, kind in kinds:
            counts[path][kind] += 1
    usual = {(path, count.most_common(1)[0][0]) for path, count in counts.items()}
    return b"".join(line + b"\n" for line, kinds in objects if kinds <= usual)


def _pieces_read(
    block: bytes, options: pajson.ParseOptions, refuse: Callable[[Refused], None]
) -> Iterator[tuple[bytes, list[pa.RecordBatch]]]:
    """Yields parts of a block with their rows; see `read_lines`."""

    def refuse_line(line: bytes, error: pa.ArrowInvalid) -> None:
        text = line[:_TEXT_CHARS].decode(errors="replace").rstrip()
        # Without Arrow's number of the row, which counts from the line itself.
        refuse(Refused(text, _ROW.sub("", f"{error!s:.{_TEXT_CHARS}}")))

    return read_in_parts(block, lambda piece: _read(piece, options), _cut, refuse_line)


def _has_null(lines: bytes) -> bool:
    """True if a line is null, which is no object."""
    return bool(_NULL_FIRST.match(lines) or _NULL_LATER.search(lines))


def _read(lines: bytes, options: pajson.ParseOptions) -> list[pa.RecordBatch]:
    if not lines.strip():
        return []
    if _has_null(lines):
        raise pa.ArrowInvalid(_IS_NULL)
    # One block, whatever its size: Arrow allows no line to reach over several.
    read = pajson.ReadOptions(use_threads=False, block_size=len(lines) + 1)
    batches: list[pa.RecordBatch] = pajson.read_json(
        pa.py_buffer(lines), read, options
    ).to_batches()
    for batch in batches:
        # Arrow's parser does not check the bytes of strings.
        batch.validate(full=True)
    return batches


def _cut(lines: bytes, error: pa.ArrowInvalid) -> list[bytes]:
    """Cuts lines around the one that the error names; in halves if it names none."""
    named = _ROW.search(str(error))
    if named is None:
        return _halves(lines)
    ends = np.flatnonzero(np.frombuffer(lines, np.uint8) == _LINE_END) + 1
    # Arrow counts objects: where a line has none, or several, this is another line.
    row = int(named[1])
    if row >= len(ends):
        return _halves(lines)
    begin, end = int(ends[row - 1]) if row else 0, int(ends[row])
    parts = [lines[:begin], lines[begin:end], *_halves(lines[end:])]
    return [part for part in parts if part]


def _halves(lines: bytes) -> list[bytes]:
    """Cuts lines at the line end nearest to their middle; returns a single line as it is."""
    before = lines.rfind(b"\n", 0, len(lines) // 2) + 1
    cut = before or lines.find(b"\n") + 1
    return [lines[:cut], lines[cut:]] if 0 < cut < len(lines) else [lines]


def _kinds_of(line: bytes) -> frozenset[tuple[_Path, type]]:
    """Returns the kinds of an object's values and where they are; none for no object."""
    try:
        value = json.loads(line)
        return frozenset(_kinds(value, ()) if isinstance(value, dict) else ())
    except (ValueError, RecursionError):
        return frozenset()


def _kinds(value: Any, path: _Path) -> Iterator[tuple[_Path, type]]:
    if value is None:
        return
    kind = type(value)
    yield path, float if kind is int else kind
    if kind is dict:
        for name, each in value.items():
            yield from _kinds(each, (*path, name))
    elif kind is list:
        for each in value:
            yield from _kinds(each, (*path, None))
