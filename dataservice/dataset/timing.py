"""Where the time of a pass goes: per operator, and between pipeline and caller.

Each stream of a plan is wrapped once; its own time is what its `next` takes without that of the
streams below on the same thread. Knows plans only as a list of names. Invariant: a wrapped stream
yields the same batches and has the same positions.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from dataservice.dataset.stream import BatchStream, State


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OperatorStats:
    """What one operator has yielded, and the time that it took itself.

    For a prefetch it is the time that its reader waited.
    """

    name: str
    batches: int = 0
    rows: int = 0
    time_s: float = 0.0

    def __add__(self, other: OperatorStats) -> OperatorStats:
        return OperatorStats(
            name=self.name,
            batches=self.batches + other.batches,
            rows=self.rows + other.rows,
            time_s=self.time_s + other.time_s,
        )


class _Entry:
    __slots__ = ("batches", "rows", "time_s")

    def __init__(self) -> None:
        self.batches = 0
        self.rows = 0
        self.time_s = 0.0


class OperatorTimes:
    """Times of the operators of one pass. Each operator is run by one thread at a time."""

    def __init__(self, names: Sequence[str], keys: Sequence[int]) -> None:
        self._names = list(names)
        self._entries = {key: _Entry() for key in keys}
        self._local = threading.local()

    def timed(self, key: int, stream: BatchStream) -> BatchStream:
        """`stream`, timed; as it is when `key` is none of the plan's."""
        entry = self._entries.get(key)
        return stream if entry is None else _TimedStream(stream, entry, self._local)

    def totals(self) -> list[OperatorStats]:
        """Per operator, inputs before the operators that read them."""
        return [
            OperatorStats(name=name, batches=e.batches, rows=e.rows, time_s=e.time_s)
            for name, e in zip(self._names, self._entries.values(), strict=True)
        ]


class _TimedStream(BatchStream):
    def __init__(self, stream: BatchStream, entry: _Entry, local: threading.local) -> None:
        self._stream = stream
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

    def state(self) -> State:
        return self._stream.state()

    def restore(self, state: State) -> None:
        self._stream.restore(state)

    def state_after(self, state: State, rows: int) -> State | None:
        return self._stream.state_after(state, rows)

    def close(self) -> None:
        self._stream.close()

    def location(self) -> str:
        return self._stream.location()

    def stats(self) -> dict[str, Any]:
        return self._stream.stats()
