"""Cuts the rows of consecutive windows into elements and keeps track of where the rows come from.

Knows Arrow, nothing of leases, threads or the network. Invariant: the spans of all elements, put
together, are the spans that were added, in order; an element's rows are the rows of its spans.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from dataservice.dataset.columns import concat_batches, encoded_bytes
from dataservice.wire.elements import RowSpan

# Large enough to make the cost per frame negligible, small enough to stay in a core's cache.
UNBATCHED_ELEMENT_BYTES = 1 << 20
# A whole chunk of rows of 40 columns. Large, as a frame costs both sides the same at any size.
_MAX_RUN_BYTES = 18 << 20
# At most this many ends of windows, without rows, wait for the rows that follow them.
_MAX_WAITING_ENDS = 64


class Element(NamedTuple):
    """Rows to hand to a reader; `batch` is None if spans end without rows to deliver.

    With `element_rows`, this is a run of consecutive elements that travel as one; the reader cuts
    it after every `element_rows` rows. `bookmark`, if there is one, is the task's bookmark at the
    first of these rows or before it. A reader may take a part of an element that is `divisible`.
    With `more_follows`, more elements are under way.
    """

    batch: pa.RecordBatch | None
    spans: tuple[RowSpan, ...]
    element_rows: int = 0
    bookmark: bytes = b""
    divisible: bool = False
    more_follows: bool = False


class Rebatcher:
    """Regroups record batches into elements of `rows` rows, across window borders.

    `rows` is None if it does not matter where rows are cut; elements then have about 1 MiB. With
    `drop_remainder`, `flush` returns the spans of an incomplete last element without its rows. Up
    to `run` elements that lie within one batch come as one. With `as_they_are`, each batch is an
    element.
    """

    def __init__(
        self,
        rows: int | None,
        *,
        drop_remainder: bool = False,
        run: int = 1,
        as_they_are: bool = False,
    ) -> None:
        self._rows = rows
        self._as_they_are = as_they_are
        self._drop_remainder = drop_remainder
        self._run = run
        self._pieces: list[pa.RecordBatch] = []
        self._spans: list[RowSpan] = []
        self._held_rows = 0

    @property
    def is_batched(self) -> bool:
        """Whether elements have a given number of rows, so that it matters where rows are cut."""
        return self._rows is not None

    @property
    def holds_anything(self) -> bool:
        """Whether `flush` would yield an element."""
        return bool(self._spans)

    @property
    def holds_only_ends(self) -> bool:
        """Whether only ends of windows are held, the rows before which were all yielded."""
        return bool(self._spans) and not self._held_rows

    def add(
        self,
        batch: pa.RecordBatch,
        window: int,
        generation: int,
        first_row: int,
        size_bytes: int | None = None,
    ) -> Iterator[Element]:
        """Adds rows [first_row, first_row + len(batch)) of a window; yields complete elements.

        `size_bytes` is the encoded size of the batch if the caller knows it.
        """
        target = batch.num_rows if self._as_they_are else self._rows or _rows_per_element(batch)
        run_rows = target if self._rows is None else self._run_rows(batch, target, size_bytes)
        offset = 0
        while offset < batch.num_rows:
            left = batch.num_rows - offset
            if not self._held_rows and left >= 2 * target and run_rows > target:
                count = min(run_rows, left // target * target)
            else:
                count = min(target - self._held_rows, left)
            self._pieces.append(batch.slice(offset, count))
            self._held_rows += count
            self._add_span(window, generation, first_row + offset, first_row + offset + count)
            offset += count
            if self._held_rows >= target:
                yield self._emit()

    def end_window(self, window: int, generation: int, end_row: int) -> Iterator[Element]:
        """Marks a window as complete after `end_row` rows.

        An end without rows waits for the next rows; it becomes an element of its own only in
        `flush`, or together with many others.
        """
        last = self._spans[-1] if self._spans else None
        if last is not None and last.window == window:
            self._spans[-1] = last._replace(final=True)
        else:
            self._spans.append(RowSpan(window, generation, end_row, end_row, True))
        if not self._held_rows and len(self._spans) >= _MAX_WAITING_ENDS:
            yield self._emit()

    def flush(self) -> Iterator[Element]:
        """Yields what is held; only its spans if an incomplete last element has to be dropped."""
        if self._spans:
            if self._drop_remainder and self.is_batched:
                self._pieces.clear()
            yield self._emit()

    def _add_span(self, window: int, generation: int, first_row: int, end_row: int) -> None:
        last = self._spans[-1] if self._spans else None
        if last is not None and last.window == window and last.end_row == first_row:
            self._spans[-1] = last._replace(end_row=end_row)
        else:
            self._spans.append(RowSpan(window, generation, first_row, end_row))

    def _run_rows(self, batch: pa.RecordBatch, element_rows: int, size_bytes: int | None) -> int:
        """Returns the number of rows of the longest run of elements out of a batch."""
        if self._run == 1 or batch.num_rows < 2 * element_rows:
            return element_rows
        size_bytes = encoded_bytes(batch) if size_bytes is None else size_bytes
        element_bytes = max(1, size_bytes * element_rows // batch.num_rows)
        return element_rows * max(1, min(self._run, _MAX_RUN_BYTES // element_bytes))

    def _emit(self) -> Element:
        batch = concat_batches(self._pieces) if self._pieces else None
        rows = self._rows
        is_run = rows is not None and self._held_rows > rows
        element = Element(batch, tuple(self._spans), rows if rows and is_run else 0)
        self._pieces, self._spans, self._held_rows = [], [], 0
        return element


def _rows_per_element(batch: pa.RecordBatch) -> int:
    if not batch.num_rows:
        return 1
    return max(1, UNBATCHED_ELEMENT_BYTES * batch.num_rows // max(1, encoded_bytes(batch)))
