"""Cuts the rows of consecutive windows into elements and keeps their provenance.

Knows Arrow, nothing of leases, threads or the network. Invariant: the spans of all elements, put
together, are the spans that were added, in order; an element's rows are its spans' rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from dataservice.dataset.columns import concat_batches
from dataservice.wire.elements import RowSpan

# Large enough that the cost per frame vanishes, small enough to stay in a core's cache.
UNBATCHED_ELEMENT_BYTES = 1 << 20


class Element(NamedTuple):
    """Rows to hand to a reader; `batch` is None where spans end without rows to deliver."""

    batch: pa.RecordBatch | None
    spans: tuple[RowSpan, ...]


class Rebatcher:
    """Regroups record batches into elements of `rows` rows, over window borders.

    `rows` None means that the cut has no meaning: elements are then of about 1 MiB. With
    `drop_remainder`, `flush` gives away the spans of a short rest without its rows.
    """

    def __init__(self, rows: int | None, *, drop_remainder: bool = False) -> None:
        self._rows = rows
        self._drop_remainder = drop_remainder
        self._pieces: list[pa.RecordBatch] = []
        self._spans: list[RowSpan] = []
        self._held_rows = 0

    @property
    def is_batched(self) -> bool:
        """Whether the cut carries meaning."""
        return self._rows is not None

    @property
    def holds_anything(self) -> bool:
        """Whether `flush` would give an element."""
        return bool(self._spans)

    def add(
        self, batch: pa.RecordBatch, window: int, generation: int, first_row: int
    ) -> Iterator[Element]:
        """Takes rows [first_row, first_row + len(batch)) of a window; gives full elements."""
        target = self._rows or _rows_per_element(batch)
        offset = 0
        while offset < batch.num_rows:
            count = min(target - self._held_rows, batch.num_rows - offset)
            self._pieces.append(batch.slice(offset, count))
            self._held_rows += count
            self._note(window, generation, first_row + offset, first_row + offset + count)
            offset += count
            if self._held_rows >= target:
                yield self._emit()

    def end_window(self, window: int, generation: int, end_row: int) -> Iterator[Element]:
        """Marks a window as complete after `end_row` rows."""
        last = self._spans[-1] if self._spans else None
        if last is not None and last.window == window:
            self._spans[-1] = last._replace(final=True)
        else:
            self._spans.append(RowSpan(window, generation, end_row, end_row, True))
        if not self._held_rows:
            yield self._emit()

    def flush(self) -> Iterator[Element]:
        """Gives what is held, or only its spans where a short rest is to be dropped."""
        if self._spans:
            if self._drop_remainder and self.is_batched:
                self._pieces.clear()
            yield self._emit()

    def _note(self, window: int, generation: int, first_row: int, end_row: int) -> None:
        last = self._spans[-1] if self._spans else None
        if last is not None and last.window == window and last.end_row == first_row:
            self._spans[-1] = last._replace(end_row=end_row)
        else:
            self._spans.append(RowSpan(window, generation, first_row, end_row))

    def _emit(self) -> Element:
        batch = concat_batches(self._pieces) if self._pieces else None
        element = Element(batch, tuple(self._spans))
        self._pieces, self._spans, self._held_rows = [], [], 0
        return element


def _rows_per_element(batch: pa.RecordBatch) -> int:
    if not batch.num_rows:
        return 1
    return max(1, UNBATCHED_ELEMENT_BYTES * batch.num_rows // max(1, batch.nbytes))
