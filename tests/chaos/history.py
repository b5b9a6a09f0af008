"""Records the rows that readers got, and judges whether every row came once.

Pure but for a lock and the time. Knows nothing of how rows are delivered. Rows that a killed reader
wrote down but could not report go to other readers; only such rows may appear twice.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence, Set
from typing import NamedTuple


class Written(NamedTuple):
    """Rows that a reader wrote down before it acknowledged them.

    ``reported``: how many of its elements before this one the dispatcher then knew as acknowledged.
    """

    reported: int
    rows: tuple[int, ...]


class History:
    """The rows that living readers got, and when each reader last saw the end. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: list[int] = []
        self._ends: dict[str, float] = {}
        self.first_s: float | None = None
        self.last_s = 0.0

    def note_rows(self, rows: Sequence[int]) -> None:
        """Records rows that a living reader got."""
        with self._lock:
            self.last_s = time.monotonic()
            self.first_s = self.first_s or self.last_s
            self._rows.extend(rows)

    def note_end(self, reader: str) -> None:
        """Records that a reader was told that nothing is left for it at present."""
        with self._lock:
            self._ends[reader] = time.monotonic()

    def ended_s(self, reader: str) -> float | None:
        """Returns when a reader last saw the end, None if it never did."""
        return self._ends.get(reader)

    def rows(self) -> list[int]:
        with self._lock:
            return list(self._rows)


def missing_rows(expected: Set[int], lived: Sequence[int], written: Sequence[Written]) -> set[int]:
    """Returns the rows that neither a living reader nor the killed one has; they may still come."""
    return set(expected).difference(lived, _rows_of(written))


def damage(
    expected: Set[int],
    lived: Sequence[int],
    written: Sequence[Written],
) -> list[str]:
    """Names the faults in the rows so far that time cannot mend.

    `written` is what the killed reader wrote down, element by element.
    """
    of_dead = _rows_of(written)
    faults = []
    for whose, rows in (("the readers", lived), ("the killed reader", of_dead)):
        again = [row for row, count in Counter(rows).items() if count > 1]
        if again:
            faults.append(f"I1: {whose} got {len(again)} rows more than once: {shown(again)}")
    strange = (set(lived) | set(of_dead)) - expected
    if strange:
        faults.append(f"I1: rows that should not come: {shown(strange)}")
    reported = max((entry.reported for entry in written), default=0)
    repeated = set(_rows_of(written[:reported])) & set(lived)
    if repeated:
        faults.append(f"I1: rows of a dead reader that were reported come again: {shown(repeated)}")
    return faults


def _rows_of(written: Sequence[Written]) -> list[int]:
    return [row for entry in written for row in entry.rows]


def shown(rows: Sequence[int] | set[int]) -> str:
    """Formats the first few rows for a message."""
    ordered = sorted(rows)
    return f"{ordered[:8]} ... {ordered[-1]}" if len(ordered) > 8 else str(ordered)
