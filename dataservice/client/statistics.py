"""Counters of one reader: rows, bytes, and the time that it waited.

Thread safe. Knows nothing of where elements come from. Invariant: counters only grow.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from dataservice.dataset.ledger import Ledger


class ReadStatistics:
    """Counters of one reader; `as_dict` is a snapshot."""

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
        """Elements left the cross-trainer cache before this trainer took them."""
        with self._lock:
            self.missed += elements

    def take_wait_share(self) -> float:
        """Part of the time since the last call of this method that takers waited, 0 to 1."""
        now_s = time.monotonic()
        with self._lock:
            waited_s, elapsed_s = self._wait_s - self._told_wait_s, now_s - self._told_s
            self._told_wait_s, self._told_s = self._wait_s, now_s
        return min(1.0, waited_s / elapsed_s) if elapsed_s > 0 else 0.0

    def as_dict(self) -> dict[str, Any]:
        """`rows`, `elements`, `bytes`, `seconds`, `wait_seconds`, `wait_share`, `rows_per_second`,
        and `elements_missed`, dropped from a cross-trainer cache before this reader came to them.

        `skipped` is what workers left out. With several takers, `wait_seconds` sums their waits.
        `protocols` has the protocol of the last stream from each worker, by address.
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
