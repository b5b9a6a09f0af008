"""What a reader hands out: an element and its provenance.

A value. Invariant: the spans have the rows of the batch, in order.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from dataservice.wire.elements import RowSpan


class Delivery(NamedTuple):
    """One element and its spans; give them to `acknowledge` when it is used up."""

    batch: pa.RecordBatch
    spans: tuple[RowSpan, ...]
    size_bytes: int
