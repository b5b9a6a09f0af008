"""The reorder buffer of an ordered reader: rows leave in window order, however they arrive.

Responsible for holding windows that arrive early. The dispatcher bounds their number, as it leases
only a limited number of windows beyond the first unfinished one. Knows no threads and no network;
the reader's lock guards it. Invariant: what leaves depends on the rows alone. Windows leave by
index, each cut at multiples of `chunk_rows`, so that reading on from any of these positions gives
the same chunks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from dataservice.dataset.columns import concat_batches
from dataservice.ranges import Consumed
from dataservice.wire.elements import RowSpan

_CHUNK_BYTES: Final = 1 << 20
_MAX_CHUNK_ROWS: Final = 65_536


class Chunk(NamedTuple):
    """Rows of one window whose turn has come."""

    batch: Any
    span: RowSpan


class _Window:
    """The rows [row, end) of a window, which have arrived and not left."""

    def __init__(self, row: int) -> None:
        self.row = self.end = row
        self.generation = 0
        self.is_complete = False
        self.pieces: deque[Any] = deque()

    def add(self, span: RowSpan, rows: Any) -> None:
        self.generation = span.generation
        self.is_complete = span.final
        if span.rows:
            self.pieces.append(rows)
            self.end = span.end_row

    def cut(self, chunk_rows: int) -> Iterator[tuple[Any, int]]:
        """Yields the chunks that can leave, each with the row after it."""
        while self.row < self.end:
            border = (self.row // chunk_rows + 1) * chunk_rows
            if border > self.end and not self.is_complete:
                return
            end = min(border, self.end)
            batch = self._take(end - self.row)
            self.row = end
            yield batch, end

    def _take(self, rows: int) -> Any:
        taken = []
        while rows:
            piece = self.pieces.popleft()
            if piece.num_rows > rows:
                self.pieces.appendleft(piece.slice(rows))
                piece = piece.slice(0, rows)
            taken.append(piece)
            rows -= piece.num_rows
        return taken[0] if len(taken) == 1 else concat_batches(taken)


class Sequencer:
    """The reorder buffer of one reader.

    The windows in `base` were consumed before and do not come. `chunk_rows` 0 lets the size of the
    first rows decide.
    """

    def __init__(self, base: Consumed, chunk_rows: int = 0) -> None:
        self.chunk_rows = chunk_rows
        self._base = base
        self._windows: dict[int, _Window] = {}
        self._next = self._skip_done(0)

    @property
    def holds_anything(self) -> bool:
        """True if rows, or the ends of windows, wait for earlier ones."""
        return bool(self._windows)

    def add(self, spans: Sequence[RowSpan], batch: Any) -> list[Chunk]:
        """Adds accepted rows, those of `spans` in order; returns the chunks whose turn has come."""
        if batch is not None and batch.num_rows and not self.chunk_rows:
            self.chunk_rows = _suitable_rows(batch)
        offset = 0
        for span in spans:
            # The end of a window may arrive twice; a window that has left is not opened again.
            if span.window >= self._next:
                window = self._windows.setdefault(span.window, _Window(span.first_row))
                window.add(span, batch.slice(offset, span.rows) if span.rows else None)
            offset += span.rows
        return list(self._leaving())

    def _leaving(self) -> Iterator[Chunk]:
        while (window := self._windows.get(self._next)) is not None:
            first = window.row
            for batch, end in window.cut(self.chunk_rows):
                is_last = window.is_complete and end == window.end
                span = RowSpan(self._next, window.generation, first, end, is_last)
                yield Chunk(batch, span)
                first = end
            if not window.is_complete:
                return
            del self._windows[self._next]
            self._next = self._skip_done(self._next + 1)

    def _skip_done(self, index: int) -> int:
        for first, end in self._base.done.pairs():
            if first <= index < end:
                return end
        return index


def _suitable_rows(batch: Any) -> int:
    """Returns a suitable number of rows for a chunk.

    It is a power of two, so that few different chunk sizes occur.
    """
    rows = max(1, min(_MAX_CHUNK_ROWS, _CHUNK_BYTES * batch.num_rows // max(1, batch.nbytes)))
    return 1 << (int(rows).bit_length() - 1)
