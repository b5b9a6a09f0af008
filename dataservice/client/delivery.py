"""What a reader hands out: an element with its provenance.

A value that knows no reader. Invariant: the spans cover the rows of the batch, in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from dataservice.wire.elements import RowSpan

if TYPE_CHECKING:
    from dataservice.client.worker_stream import WorkerStream


class Delivery(NamedTuple):
    """One element and its spans, which go to the reader's `acknowledge` when it is consumed.

    `stream` is set if the stream must be told when the element is taken, since other readers get
    the elements that were not.
    """

    batch: pa.RecordBatch
    spans: tuple[RowSpan, ...]
    size_bytes: int
    stream: WorkerStream | None = None
