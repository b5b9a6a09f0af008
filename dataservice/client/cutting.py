"""Cuts the rows of a frame into elements, each with its provenance.

Pure. Invariant: the rows and spans of the elements, put together, are those that were accepted of
the frame, in order; so each element can be acknowledged by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import pyarrow as pa

from dataservice.client.tracker import Accepted
from dataservice.dataset.columns import concat_batches
from dataservice.wire.elements import Header, RowSpan


def new_rows(batch: pa.RecordBatch, header: Header, accepted: Accepted) -> pa.RecordBatch:
    """The rows of a frame that did not come before."""
    if accepted.rows == sum(span.rows for span in header.spans):
        return batch
    parts = [batch.slice(*part) for part in accepted.slices]
    return concat_batches(parts) if parts else batch.slice(0, 0)


def cut(
    batch: pa.RecordBatch, spans: Sequence[RowSpan], element_rows: int
) -> Iterator[tuple[pa.RecordBatch, tuple[RowSpan, ...]]]:
    """Elements of so many rows, the last with what is left; 0: all is one element.

    Elements are views of the batch.
    """
    if not element_rows or batch.num_rows <= element_rows:
        yield batch, tuple(spans)
        return
    left = deque(spans)
    for first in range(0, batch.num_rows, element_rows):
        element = batch.slice(first, element_rows)
        yield element, tuple(_take(left, element.num_rows))


def _take(spans: deque[RowSpan], rows: int) -> Iterator[RowSpan]:
    """So many rows from the front, and the ends of windows behind them."""
    while spans and (rows or not spans[0].rows):
        span = spans.popleft()
        if span.rows > rows:
            border = span.first_row + rows
            spans.appendleft(span._replace(first_row=border))
            span = span._replace(end_row=border, final=False)
        rows -= span.rows
        yield span
