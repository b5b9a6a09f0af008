"""A worker's rates for each iteration: rows per second, and the share of time that it is busy.

A producer that waits because readers have not taken what is ready is held back; for the rest of its
time it counts as busy. Knows nothing of what producers do. Invariant: shares are from 0 to 1, and a
producer counts from the measurement that first saw it.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple


class WaitTimer:
    """The time that one thread has waited for readers, including a wait that has not ended."""

    def __init__(self) -> None:
        self._waited_s = 0.0
        self._since_s: float | None = None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Measures the time that the block waits."""
        started_s = self._since_s = time.monotonic()
        try:
            yield
        finally:
            self._since_s = None
            self._waited_s += time.monotonic() - started_s

    def waited_s(self) -> float:
        """Returns the seconds waited so far. May be called from any thread."""
        waited_s, since_s = self._waited_s, self._since_s
        return waited_s if since_s is None else waited_s + time.monotonic() - since_s


class ProducerCounters(NamedTuple):
    """The rows that one producer made so far, and the time for which it was held back."""

    iteration: str
    key: Hashable
    rows: int
    held_back_s: float


class Production(NamedTuple):
    """The rates of all producers of an iteration since the last measurement."""

    iteration_id: str
    rows_per_s: float
    busy_share: float


class ProductionMeter:
    """A meter that derives rates from successive readings of the counters. Not thread-safe."""

    def __init__(self, now_s: float) -> None:
        self._last: dict[Hashable, ProducerCounters] = {}
        self._last_s = now_s

    def measure(self, counters: Iterable[ProducerCounters], now_s: float) -> list[Production]:
        """Returns the rates since the last call.

        Leaves out producers that have ended since, and those that it sees for the first time.
        """
        elapsed_s = max(now_s - self._last_s, 1e-3)
        rows: dict[str, int] = {}
        busy: dict[str, list[float]] = {}
        current = {counter.key: counter for counter in counters}
        for key, counter in current.items():
            before = self._last.get(key)
            if before is None:
                continue
            held_back = (counter.held_back_s - before.held_back_s) / elapsed_s
            iteration = counter.iteration
            rows[iteration] = rows.get(iteration, 0) + counter.rows - before.rows
            busy.setdefault(iteration, []).append(1.0 - min(1.0, max(0.0, held_back)))
        self._last, self._last_s = current, now_s
        return [
            Production(iteration, rows[iteration] / elapsed_s, sum(shares) / len(shares))
            for iteration, shares in busy.items()
        ]
