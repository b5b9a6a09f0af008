"""The progress that ``join`` reports: counts of closures, and their rate.

Pure. Invariant: a value describes one moment, and never changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple


class JoinProgress(NamedTuple):
    """Counts of a coordinator's closures since it was made, and of its live trainers.

    ``queued``: closures that wait for a trainer or for their inputs. ``retried``: how often a
    closure ran again because its trainer was lost. ``per_second``: the rate at which closures
    finished since the value before.
    """

    finished: int
    failed: int
    cancelled: int
    running: int
    queued: int
    retried: int
    trainers: int
    per_second: float

    def __str__(self) -> str:
        ends = f"{self.finished:,} finished"
        if self.failed or self.cancelled:
            ends += f", {self.failed:,} failed, {self.cancelled:,} cancelled"
        return (
            f"{ends}, {self.running:,} running, {self.queued:,} queued; "
            f"{self.per_second:,.1f}/s on {self.trainers} trainers"
        )


OnProgress = Callable[[JoinProgress], object]


class Meter:
    """Makes JoinProgress from counts, and rates from successive counts."""

    def __init__(self, finished: int, now_s: float) -> None:
        self._finished, self._at_s = finished, now_s

    def read(self, counts: Mapping[str, int], now_s: float) -> JoinProgress:
        """Returns the progress at this moment."""
        passed_s = now_s - self._at_s
        more = counts["finished"] - self._finished
        self._finished, self._at_s = counts["finished"], now_s
        return JoinProgress(
            counts["finished"],
            counts["failed"],
            counts["cancelled"],
            counts["running"],
            counts["waiting"],
            counts["retries"],
            counts["trainers"],
            more / passed_s if passed_s > 0 else 0.0,
        )
