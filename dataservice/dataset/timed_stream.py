"""A stream that measures the time of its own `next`.

The time of the streams below it on the same thread is not included. Invariant: a timed stream
yields the same batches as the stream that it wraps, and has the same positions.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import pyarrow as pa

from dataservice.dataset.stream import BatchStream, OverStream, State
from dataservice.dataset.timing import OperatorTimes, TimeEntry


def timed(stream: BatchStream, times: OperatorTimes | None, key: int) -> BatchStream:
    """Returns `stream`, timed as the operator of that key; untimed if `times` has no such key."""
    entry = None if times is None else times.entry(key)
    if times is None or entry is None:
        return stream
    return _TimedStream(stream, entry, times.local)


class _TimedStream(OverStream):
    def __init__(self, stream: BatchStream, entry: TimeEntry, local: threading.local) -> None:
        super().__init__(stream)
        self._entry = entry
        self._local = local

    def __next__(self) -> pa.RecordBatch:
        local, entry = self._local, self._entry
        outer = getattr(local, "below_s", 0.0)
        local.below_s = 0.0
        began_s = time.perf_counter()
        try:
            batch = next(self._stream)
            entry.batches += 1
            entry.rows += batch.num_rows
            return batch
        finally:
            passed_s = time.perf_counter() - began_s
            entry.time_s += passed_s - local.below_s
            local.below_s = outer + passed_s

    def state_after(self, state: State, rows: int) -> State | None:
        return self._stream.state_after(state, rows)

    def advance(self, rows: int) -> int:
        return self._stream.advance(rows)

    def stats(self) -> dict[str, Any]:
        return self._stream.stats()
