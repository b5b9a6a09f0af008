"""Heartbeats: who is there, at which interval each is to call, and whose time is up.

Pure: the caller brings the time. All clients together send about so many heartbeats in a second,
however many they are, so each is told how long to be silent at least: until its own moment within
the interval, so that they come one after the other even if they all joined at once. Invariants: an
interval follows from the number of clients alone, so that a restarted dispatcher tells the same;
nobody is given up before a few of the intervals told to it have passed, nor for time in which the
dispatcher itself did not run.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from dataservice.config import DEFAULT_HEARTBEAT_INTERVAL_MS, HEARTBEATS_PER_S
from dataservice.dispatcher.liveness import Deadlines
from dataservice.vocabulary import ReaderId, WorkerId

# A client that loses a heartbeat, and the one after it, is there still.
INTERVALS_PER_TIMEOUT: Final = 3
# Told at least such a part of the interval: who is a little early does not call twice.
_LEAST_PART: Final = 0.25
# A dispatcher that stood still for longer says so.
_STALL_S: Final = 2.0


class Silent(NamedTuple):
    """Who is given up; `stood_still_s` is not 0 when the dispatcher itself did, for long."""

    workers: tuple[WorkerId, ...] = ()
    readers: tuple[ReaderId, ...] = ()
    stood_still_s: float = 0.0


def least_interval_s(clients: int, heartbeats_per_s: float) -> float:
    """What so many clients have to leave between two heartbeats; those with longer ones keep them.

    Exactly then they send so many in a second, if no calls come for other reasons.
    """
    return clients / heartbeats_per_s


def timeout_s(configured_s: float, interval_s: float) -> float:
    """After how much silence a client is given up that was told this interval."""
    return max(configured_s, INTERVALS_PER_TIMEOUT * interval_s)


def share_of(client_id: str) -> float:
    """From 0 to 1, evenly over ids, and the same for one id in every process."""
    return zlib.crc32(client_id.encode()) / 2**32


class Presence:
    """Workers and readers that are there. Not thread-safe.

    `worker_timeout_s` and `client_timeout_s` are the shortest time-outs.
    """

    def __init__(
        self,
        worker_timeout_s: float,
        client_timeout_s: float,
        now_s: float,
        heartbeats_per_s: float = HEARTBEATS_PER_S,
    ) -> None:
        self._worker_timeout_s = worker_timeout_s
        self._client_timeout_s = client_timeout_s
        self._heartbeats_per_s = heartbeats_per_s
        self._workers = Deadlines[WorkerId]()
        self._readers = Deadlines[ReaderId]()
        self._last_tick_s = now_s
        # A dispatcher that stands still hears of nobody, so deadlines stand still with it.
        self._stood_still_s = 0.0

    @property
    def interval_s(self) -> float:
        """The least between two heartbeats of a client at present."""
        return least_interval_s(len(self._workers) + len(self._readers), self._heartbeats_per_s)

    @property
    def worker_timeout_s(self) -> float:
        """A worker silent for longer is taken for lost."""
        return timeout_s(self._worker_timeout_s, self.interval_s)

    @property
    def client_timeout_s(self) -> float:
        """A reader silent for longer is taken for lost."""
        return timeout_s(self._client_timeout_s, self.interval_s)

    @property
    def reader_heartbeat_s(self) -> float:
        """A reader that syncs this often is not taken for lost."""
        return min(1.0, self._client_timeout_s / 5)

    @property
    def tick_s(self) -> float:
        """How often `silent` should be asked."""
        return min(1.0, self._worker_timeout_s / 10, self._client_timeout_s / 10)

    def restore(
        self, workers: Iterable[WorkerId], readers: Iterable[ReaderId], now_s: float
    ) -> None:
        """Those of an earlier process: each counts as just heard."""
        workers, readers = tuple(workers), tuple(readers)
        longest_s = least_interval_s(len(workers) + len(readers), self._heartbeats_per_s)
        run_s = self._run_s(now_s)
        for worker_id in workers:
            self._workers.renew(worker_id, run_s + timeout_s(self._worker_timeout_s, longest_s))
        for reader_id in readers:
            self._readers.renew(reader_id, run_s + timeout_s(self._client_timeout_s, longest_s))

    def hear_worker(self, worker_id: WorkerId, now_s: float) -> None:
        """A sign of life."""
        self._workers.renew(worker_id, self._run_s(now_s) + self.worker_timeout_s)

    def hear_reader(self, reader_id: ReaderId, now_s: float) -> None:
        """A sign of life."""
        self._readers.renew(reader_id, self._run_s(now_s) + self.client_timeout_s)

    def tell_interval_s(self, client_id: str, now_s: float) -> float:
        """How long the client that is now answered is to be silent at least. Any thread.

        Until its moment: an interval for one that keeps to it; less, or a little more, for others.
        """
        interval_s = self.interval_s
        if not interval_s:
            return 0.0
        ahead = share_of(client_id) - now_s / interval_s - _LEAST_PART
        return interval_s * (_LEAST_PART + ahead % 1.0)

    def drop_worker(self, worker_id: WorkerId) -> None:
        """A worker is gone."""
        self._workers.drop(worker_id)

    def drop_reader(self, reader_id: ReaderId) -> None:
        """A reader is gone."""
        self._readers.drop(reader_id)

    def silent(self, now_s: float) -> Silent:
        """Who has been silent for too long; each is told once."""
        since_s = now_s - self._last_tick_s
        self._stood_still_s += max(0.0, since_s - self.tick_s)
        self._last_tick_s = now_s
        run_s = self._run_s(now_s)
        workers, readers = self._workers.expired(run_s), self._readers.expired(run_s)
        is_stall = since_s > self.tick_s + _STALL_S
        return Silent(tuple(workers), tuple(readers), since_s if is_stall else 0.0)

    def _run_s(self, now_s: float) -> float:
        """The time, less that in which the dispatcher stood still."""
        return now_s - self._stood_still_s

    def describe(self) -> dict[str, Any]:
        """As JSON values, for people."""
        default_s = DEFAULT_HEARTBEAT_INTERVAL_MS / 1_000
        return {
            "clients": len(self._workers) + len(self._readers),
            "interval_s": max(default_s, self.interval_s),
            "worker_timeout_s": self.worker_timeout_s,
            "client_timeout_s": self.client_timeout_s,
        }
