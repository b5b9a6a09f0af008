"""The elements that a reader hands out, and how the rows of a frame are cut into them.

Responsible for assigning spans to elements. Knows no readers and no marks. Invariant: the rows and
spans of all elements, concatenated, are those accepted from the frame, in order; so each element
can be acknowledged by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from dataservice.client.tracker import Accepted
from dataservice.client.worker_stream import WorkerStream
from dataservice.dataset.columns import concat_batches
from dataservice.wire.elements import Header, RowSpan


class TakenElement(NamedTuple):
    """One element and its spans, which go to the reader's `acknowledge` when it is consumed.

    `stream` is set if the stream must be told when the element is taken, since other readers get
    the elements that were not.
    """

    batch: pa.RecordBatch
    spans: tuple[RowSpan, ...]
    size_bytes: int
    stream: WorkerStream | None = None


def new_rows(batch: pa.RecordBatch, header: Header, accepted: Accepted) -> pa.RecordBatch:
    """Returns the rows of a frame that are new, as `accepted` lists them."""
    if accepted.rows == sum(span.rows for span in header.spans):
        return batch
    parts = [batch.slice(*part) for part in accepted.slices]
    return concat_batches(parts) if parts else batch.slice(0, 0)


def cut(
    batch: pa.RecordBatch, spans: Sequence[RowSpan], element_rows: int
) -> Iterator[tuple[pa.RecordBatch, tuple[RowSpan, ...]]]:
    """Yields elements of `element_rows` rows, the last with the remainder, each with its spans.

    With `element_rows` 0 the batch is one element. Elements are views of the batch.
    """
    if not element_rows or batch.num_rows <= element_rows:
        yield batch, tuple(spans)
        return
    left = deque(spans)
    for first in range(0, batch.num_rows, element_rows):
        element = batch.slice(first, element_rows)
        yield element, tuple(_take(left, element.num_rows))


def _take(spans: deque[RowSpan], rows: int) -> Iterator[RowSpan]:
    """Removes and yields spans of `rows` rows from the front, with empty spans that follow them."""
    while spans and (rows or not spans[0].rows):
        span = spans.popleft()
        if span.rows > rows:
            border = span.first_row + rows
            spans.appendleft(span._replace(first_row=border))
            span = span._replace(end_row=border, final=False)
        rows -= span.rows
        yield span
