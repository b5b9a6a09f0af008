"""Heartbeats: which clients are there, how often each has to call, and which have timed out.

Pure: the caller passes the time. All clients together send a bounded number of heartbeats per
second, however many they are. So each client is told how long it must at least be silent: until its
own moment within the interval, which spreads the heartbeats even if all clients joined at once.
Invariants: the interval depends on the number of clients alone, so that a restarted dispatcher
tells the same; no client is given up before a few of its intervals have passed, nor because of
time in which the dispatcher itself did not run; no reader is given up while nobody at all is heard,
as when the dispatcher's host is cut off.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from dataservice.config import DEFAULT_HEARTBEAT_INTERVAL_MS, HEARTBEATS_PER_S
from dataservice.dispatcher.liveness import Deadlines
from dataservice.vocabulary import ReaderId, WorkerId

# A client whose last two heartbeats were lost still counts as there.
INTERVALS_PER_TIMEOUT: Final = 3
# Least silence as a part of the interval, so that a client that is a little early calls once.
_LEAST_PART: Final = 0.25
# A standstill of the dispatcher that is longer is reported.
_STALL_S: Final = 2.0
# If nobody is heard for this part of a reader's time-out, but at least for so long, the dispatcher
# may be cut off. Workers are given up all the same: they register again, and lose nothing.
_ALONE_PART: Final = 0.5
_ALONE_LEAST_S: Final = 3.0
# How long readers have to call again, as a part of that time: less than 1, so that the only worker
# does not keep lost readers there for ever by calling seldom.
_RETURN_PART: Final = 0.5


class TimedOut(NamedTuple):
    """The clients to give up; `stood_still_s` is not 0 if the dispatcher stood still for long."""

    workers: tuple[WorkerId, ...] = ()
    readers: tuple[ReaderId, ...] = ()
    stood_still_s: float = 0.0


def share_of(client_id: str) -> float:
    """Maps an id to [0, 1): uniform over ids, the same for an id in every process."""
    return zlib.crc32(client_id.encode()) / 2**32


class Presence:
    """The workers and readers that are there. Not thread-safe.

    `worker_timeout_s` and `client_timeout_s` are lower bounds of the time-outs.
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
        # A dispatcher that stands still receives no heartbeats, so deadlines stand still as well.
        self._stood_still_s = 0.0
        # These two on the clock that stands still.
        self._heard_s = now_s
        self._readers_kept_until_s = now_s

    @property
    def interval_s(self) -> float:
        """The shortest interval between two heartbeats of a client at present.

        Clients whose own interval is longer keep it.
        """
        return (len(self._workers) + len(self._readers)) / self._heartbeats_per_s

    @property
    def worker_timeout_s(self) -> float:
        """The silence after which a worker is taken for lost."""
        return max(self._worker_timeout_s, INTERVALS_PER_TIMEOUT * self.interval_s)

    @property
    def client_timeout_s(self) -> float:
        """The silence after which a reader is taken for lost."""
        return max(self._client_timeout_s, INTERVALS_PER_TIMEOUT * self.interval_s)

    @property
    def reader_heartbeat_s(self) -> float:
        """The interval of syncs that keeps a reader from being taken for lost."""
        return min(1.0, self._client_timeout_s / 5)

    @property
    def tick_s(self) -> float:
        """The interval at which `take_timed_out` should be called."""
        return min(1.0, self._worker_timeout_s / 10, self._client_timeout_s / 10)

    def restore(
        self, workers: Iterable[WorkerId], readers: Iterable[ReaderId], now_s: float
    ) -> None:
        """Adds the clients known from an earlier process; each counts as just heard of."""
        run_s = self._run_s(now_s)
        for worker_id in workers:
            self._workers.renew(worker_id, run_s)
        for reader_id in readers:
            self._readers.renew(reader_id, run_s)
        # Only now is it known how many there are, on which the time-outs depend.
        self._workers.renew_all(run_s + self.worker_timeout_s)
        self._readers.renew_all(run_s + self.client_timeout_s)

    def hear(self, now_s: float) -> None:
        """Notes that somebody called, who may not be a client yet."""
        self._heard_s = self._run_s(now_s)

    def renew_worker(self, worker_id: WorkerId, now_s: float) -> None:
        """Renews the deadline of a worker that gave a sign of life."""
        self.hear(now_s)
        self._workers.renew(worker_id, self._heard_s + self.worker_timeout_s)

    def renew_reader(self, reader_id: ReaderId, now_s: float) -> None:
        """Renews the deadline of a reader that gave a sign of life."""
        self.hear(now_s)
        self._readers.renew(reader_id, self._heard_s + self.client_timeout_s)

    def least_silence_s(self, client_id: str, now_s: float) -> float:
        """Returns how long the client being answered must at least be silent. Any thread may ask.

        The silence lasts until the client's own moment: one interval if it called at its moment,
        otherwise from a quarter of an interval to one and a quarter.
        """
        interval_s = self.interval_s
        if not interval_s:
            return 0.0
        ahead = share_of(client_id) - now_s / interval_s - _LEAST_PART
        return interval_s * (_LEAST_PART + ahead % 1.0)

    def drop_worker(self, worker_id: WorkerId) -> None:
        """Forgets a worker that is gone."""
        self._workers.drop(worker_id)

    def drop_reader(self, reader_id: ReaderId) -> None:
        """Forgets a reader that is gone."""
        self._readers.drop(reader_id)

    def take_timed_out(self, now_s: float) -> TimedOut:
        """Removes and returns the clients that have been silent for too long."""
        since_s = now_s - self._last_tick_s
        self._stood_still_s += max(0.0, since_s - self.tick_s)
        self._last_tick_s = now_s
        run_s = self._run_s(now_s)
        workers = self._workers.expired(run_s)
        readers = () if self._keeps_readers(run_s) else self._readers.expired(run_s)
        is_stall = since_s > self.tick_s + _STALL_S
        return TimedOut(tuple(workers), tuple(readers), since_s if is_stall else 0.0)

    def silent_readers(self, now_s: float) -> frozenset[ReaderId]:
        """Returns the readers that would be lost by now if somebody had been heard meanwhile."""
        run_s = self._run_s(now_s)
        kept = run_s < self._readers_kept_until_s
        return frozenset(self._readers.overdue(run_s) if kept else ())

    def _keeps_readers(self, run_s: float) -> bool:
        """True while nobody is heard, and for a moment after that, in which readers can call."""
        alone_s = max(_ALONE_LEAST_S, _ALONE_PART * self.client_timeout_s)
        if run_s - self._heard_s >= alone_s:
            self._readers_kept_until_s = run_s + _RETURN_PART * alone_s
        return run_s < self._readers_kept_until_s

    def _run_s(self, now_s: float) -> float:
        """Returns the time without the periods in which the dispatcher stood still."""
        return now_s - self._stood_still_s

    def describe(self) -> dict[str, Any]:
        """Returns counts, intervals and time-outs as JSON values, for people."""
        default_s = DEFAULT_HEARTBEAT_INTERVAL_MS / 1_000
        return {
            "clients": len(self._workers) + len(self._readers),
            "interval_s": max(default_s, self.interval_s),
            "worker_timeout_s": self.worker_timeout_s,
            "client_timeout_s": self.client_timeout_s,
        }
