"""Time-outs of a reader that waits for workers, or for the other readers of its job.

Responsible for the errors and log messages of these waits. Knows no clock: the caller passes the
time in. Invariant: a missing share is never left out; either its worker comes in time, or the
reader fails with the worker's place and address. Every long wait is logged. A wait for something
missing ends with an error; only a reader that has had rows waits without limit for workers that it
cannot reach, and a consumer for others that are present but slow.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from dataservice.errors import DeadlineExceededError, UnavailableError
from dataservice.wire import dispatcher_pb2 as pb

logger = logging.getLogger(__name__)

_REMIND_S = 10.0


class MissingWorkersWait:
    """The wait for missing workers of a static policy, up to `timeout_s` for each."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._since_s: dict[str, float] = {}
        self._reminded_s = float("-inf")

    def check(self, missing: Iterable[str], now_s: float) -> DeadlineExceededError | None:
        """Notes which workers are missing; returns an error if one was missing for too long."""
        known = self._since_s
        self._since_s = {worker: known.get(worker, now_s) for worker in missing}
        if not self._since_s:
            return None
        if self._since_s.keys() - known.keys() or now_s - self._reminded_s >= _REMIND_S:
            self._reminded_s = now_s
            logger.warning(
                "waiting for %s; under static sharding no other worker can deliver its share",
                ", ".join(self._since_s),
            )
        late = [w for w, since_s in self._since_s.items() if now_s - since_s >= self._timeout_s]
        return self._error(late) if late else None

    def _error(self, late: list[str]) -> DeadlineExceededError:
        return DeadlineExceededError(
            f"{', '.join(late)} has been missing for {self._timeout_s:g} s, and no other "
            "worker has its share of the data; start a worker at that address "
            "(worker_address, --port), give distribute() a larger timeout_s to wait longer, "
            "or use ShardingPolicy.DYNAMIC, which does not depend on particular workers"
        )


class PositionsWait:
    """The wait for the saved positions of the job's other readers, up to `timeout_s`."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._since_s: float | None = None

    def check(self, awaited: Iterable[str], now_s: float) -> DeadlineExceededError | None:
        """Notes whose positions were not loaded yet; returns an error if that lasted too long."""
        names = ", ".join(awaited)
        if not names:
            self._since_s = None
            return None
        if self._since_s is None:
            self._since_s = now_s
            logger.info("waiting until the saved positions of readers %s are loaded too", names)
        if now_s - self._since_s < self._timeout_s:
            return None
        return DeadlineExceededError(
            "the job was read by several readers when this position was saved, and the "
            f"positions of readers {names} were not loaded within {self._timeout_s:g} s; "
            "without them, rows would be delivered twice. Load each state into an iterator "
            "of its own, or load dataservice.merge_states([state, ...]) of all of them into "
            "one iterator"
        )


class NoWorkerWait:
    """The wait for any worker, up to `timeout_s`; with a `host`, for any worker on that host."""

    def __init__(self, target: str, timeout_s: float, host: str | None = None) -> None:
        self._target = target
        self._timeout_s = timeout_s
        self._host = host
        self._since_s: float | None = None
        self._reminded_s = 0.0

    def check(self, starving: bool, now_s: float) -> UnavailableError | None:
        """Notes whether a taker waits while no worker exists; returns an error after too long."""
        if not starving:
            self._since_s = None
            return None
        if self._since_s is None:
            self._since_s = self._reminded_s = now_s
        cause = f"no data worker is registered with the dispatcher at {self._target}"
        remedy = f"start one with `dataservice worker --dispatcher {self._target}`"
        if self._host is not None:
            cause = (
                "Local reads require local data workers, but no local worker is found: none on "
                f"host {self._host} is registered with the dispatcher at {self._target}"
            )
            remedy += " there, or use target_workers='AUTO'"
        if now_s - self._since_s >= self._timeout_s:
            return UnavailableError(
                f"{cause}, and none came in {self._timeout_s:g} s; {remedy}, or give distribute() "
                "a larger timeout_s to wait longer"
            )
        if now_s - self._reminded_s >= _REMIND_S:
            self._reminded_s = now_s
            logger.warning("waiting: %s; %s", cause, remedy)
        return None


class UnreachableWorkersWait:
    """The wait for workers that are registered but cannot be reached.

    It fails after `timeout_s` if the reader has had no rows yet. A reader that has had rows waits
    without limit, since its addresses are right and the network must be at fault.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._since_s: float | None = None
        self._reminded_s = 0.0
        self._rows = 0

    def check(
        self, unreachable: Mapping[str, str], rows: int, now_s: float
    ) -> UnavailableError | None:
        """Notes which workers cannot be reached, by address, and why; returns an error if it fails.

        `rows` is the number of rows that the reader has had so far.
        """
        if not unreachable or rows != self._rows:
            self._since_s, self._rows = None, rows
        if not unreachable:
            return None
        if self._since_s is None:
            self._since_s = self._reminded_s = now_s
        if not rows and now_s - self._since_s >= self._timeout_s:
            return UnavailableError(
                f"{_unreached(unreachable)}, or give distribute() a larger timeout_s than "
                f"{self._timeout_s:g} s to wait longer"
            )
        if now_s - self._reminded_s >= _REMIND_S:
            self._reminded_s = now_s
            logger.warning("waiting: %s", _unreached(unreachable))
        return None


class ReaderWaits:
    """All waits of a reader that is no consumer of coordinated reads.

    With a `host` only workers on that host are read from.
    """

    def __init__(self, target: str, timeout_s: float, host: str | None = None) -> None:
        self._missing_workers = MissingWorkersWait(timeout_s)
        self._positions = PositionsWait(timeout_s)
        self._no_worker = NoWorkerWait(target, timeout_s, host)
        self._unreachable = UnreachableWorkersWait(timeout_s)

    def check(
        self,
        reply: pb.SyncReply,
        *,
        waits: bool,
        has_workers: bool,
        unreachable: Mapping[str, str],
        rows: int,
        now_s: float,
    ) -> DeadlineExceededError | UnavailableError | None:
        """Notes what the dispatcher says is missing; returns an error if it was so for too long.

        `waits`: a taker waits and there is no element for it. `unreachable`, empty unless one
        waits, and `rows` are as in `UnreachableWorkersWait.check`.
        """
        missing = reply.missing_workers
        starving = waits and not has_workers and not reply.ended and not missing
        return (
            self._missing_workers.check(missing, now_s)
            or self._positions.check(reply.awaited_readers, now_s)
            or self._no_worker.check(starving, now_s)
            or self._unreachable.check(unreachable, rows, now_s)
        )


class MissingConsumersWait:
    """The wait for the other consumers of coordinated reads.

    It fails after `timeout_s` if a consumer is missing. For a consumer that is present but slow it
    lasts as long as that one is present.
    """

    def __init__(self, index: int, count: int, timeout_s: float) -> None:
        self._name = f"consumer {index} of {count}"
        self._timeout_s = timeout_s
        self._since_s: float | None = None
        self._reminded_s: float | None = None

    def check(
        self, waits: bool, missing: Sequence[int], late: Sequence[int], now_s: float
    ) -> DeadlineExceededError | None:
        """Notes for which consumers this one waits; returns an error if one is missing too long."""
        if not waits or not missing:
            self._since_s = None
        elif self._since_s is None:
            self._since_s = now_s
        if not waits or not (missing or late):
            self._reminded_s = now_s
            return None
        if self._since_s is not None and now_s - self._since_s >= self._timeout_s:
            return DeadlineExceededError(
                f"{self._name} waited {self._timeout_s:g} s for consumer_index "
                f"{_listed(missing)}, which no reader has joined as; all consumers of "
                "coordinated reads must run at once: start them, or give distribute() a larger "
                "timeout_s to wait longer"
            )
        if self._reminded_s is None and not missing:
            # Every consumer is a little behind at times, so the first reminder comes later.
            self._reminded_s = now_s
        if self._reminded_s is None or now_s - self._reminded_s >= _REMIND_S:
            self._reminded_s = now_s
            whom = f"{_listed(missing)} (missing)" if missing else f"{_listed(late)} (behind)"
            logger.warning("%s waits for consumer_index %s", self._name, whom)
        return None


def _unreached(reasons: Mapping[str, str]) -> str:
    reason = next(iter(reasons.values()))
    return (
        f"the dispatcher knows data workers at {', '.join(sorted(reasons))}, which cannot be "
        f"reached from here ({reason}); check that they give readers the right address "
        "(worker_address, --worker-address, --host) and that nothing blocks its port"
    )


def _listed(indices: Sequence[int]) -> str:
    return ", ".join(map(str, sorted(indices)))
