"""Counters of one reader: rows, bytes, and the time that its takers waited.

Responsible for counting and for snapshots of the counters. Thread safe. Knows no streams and no
dispatcher. Invariant: counters only grow.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from dataservice.dataset.ledger import Ledger


class ReadStatistics:
    """The counters of one reader; `as_dict` returns a snapshot."""

    def __init__(self, omissions: Ledger | None = None) -> None:
        self._lock = threading.Lock()
        self._started_s = time.monotonic()
        self.rows = 0
        self.missed = 0
        self._elements = 0
        self._bytes = 0
        self._wait_s = 0.0
        self._told_wait_s = 0.0
        self._told_s = self._started_s
        self.omissions = omissions or Ledger()
        self._protocols: dict[str, str] = {}

    def note_element(self, rows: int, size_bytes: int) -> None:
        with self._lock:
            self.rows += rows
            self._elements += 1
            self._bytes += size_bytes

    def note_protocol(self, address: str, protocol: str) -> None:
        with self._lock:
            self._protocols[address] = protocol

    def note_wait(self, seconds: float) -> None:
        with self._lock:
            self._wait_s += seconds

    def note_missed(self, elements: int) -> None:
        """Counts elements that were evicted from the cross-trainer cache before they were taken."""
        with self._lock:
            self.missed += elements

    def take_wait_share(self) -> float:
        """Returns the share, 0 to 1, of the time since the last call in which takers waited."""
        now_s = time.monotonic()
        with self._lock:
            waited_s, elapsed_s = self._wait_s - self._told_wait_s, now_s - self._told_s
            self._told_wait_s, self._told_s = self._wait_s, now_s
        return min(1.0, waited_s / elapsed_s) if elapsed_s > 0 else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Returns the counters by name.

        They are `rows`, `elements`, `bytes`, `seconds`, `wait_seconds` (the sum over all takers),
        `wait_share`, `rows_per_second`, and `elements_missed`, the elements that were evicted from
        a cross-trainer cache before this reader came to them. `skipped` is what workers left out.
        `protocols` maps the address of each worker to the protocol of its last stream.
        """
        elapsed_s = max(time.monotonic() - self._started_s, 1e-9)
        with self._lock:
            return {
                "rows": self.rows,
                "elements": self._elements,
                "bytes": self._bytes,
                "seconds": elapsed_s,
                "wait_seconds": self._wait_s,
                "wait_share": min(1.0, self._wait_s / elapsed_s),
                "rows_per_second": self.rows / elapsed_s,
                "elements_missed": self.missed,
                "skipped": self.omissions.total().to_json(),
                "protocols": dict(self._protocols),
            }
