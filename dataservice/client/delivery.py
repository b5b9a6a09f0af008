"""What a reader hands out: an element and its provenance.

A value. Invariant: the spans have the rows of the batch, in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from dataservice.wire.elements import RowSpan

if TYPE_CHECKING:
    from dataservice.client.worker_stream import WorkerStream


class Delivery(NamedTuple):
    """One element and its spans; give them to `acknowledge` when it is used up.

    `stream`: which wants to know when it was taken, since other readers get what was not.
    """

    batch: pa.RecordBatch
    spans: tuple[RowSpan, ...]
    size_bytes: int
    stream: WorkerStream | None = None
