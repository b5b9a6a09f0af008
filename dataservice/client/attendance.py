"""Time-outs of a reader that waits for workers, or for the other readers of its job.

Pure: the caller brings the time. Invariant: a share that is missing is never left out; either its
worker comes in time, or the reader fails with the worker's place and address. Nor does a reader
wait without an end, or without a word, for workers that nobody started, or that it cannot reach.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from dataservice.errors import DeadlineExceededError, UnavailableError

logger = logging.getLogger(__name__)

_REMIND_S = 10.0


class Attendance:
    """Waits up to `patience_s` for each missing worker."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._since_s: dict[str, float] = {}
        self._reminded_s = float("-inf")

    def note(self, missing: Iterable[str], now_s: float) -> DeadlineExceededError | None:
        """Takes in who is missing now; the error to fail with once that lasted too long."""
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
        late = [w for w, since_s in self._since_s.items() if now_s - since_s >= self._patience_s]
        return self._error(late) if late else None

    def _error(self, late: list[str]) -> DeadlineExceededError:
        return DeadlineExceededError(
            f"{', '.join(late)} has been missing for {self._patience_s:g} s, and no other "
            "worker has its share of the data; start a worker at that address "
            "(worker_address, --port), give distribute() a larger timeout_s to wait longer, "
            "or use ShardingPolicy.DYNAMIC, which does not depend on particular workers"
        )


class Gathering:
    """Waits up to `patience_s` for the saved positions of the other readers."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._since_s: float | None = None

    def note(self, awaited: Iterable[str], now_s: float) -> DeadlineExceededError | None:
        """Takes in whose positions have yet to be loaded; the error to fail with."""
        names = ", ".join(awaited)
        if not names:
            self._since_s = None
            return None
        if self._since_s is None:
            self._since_s = now_s
            logger.info("waiting until the saved positions of readers %s are loaded too", names)
        if now_s - self._since_s < self._patience_s:
            return None
        return DeadlineExceededError(
            "the job was read by several readers when this position was saved, and the "
            f"positions of readers {names} were not loaded within {self._patience_s:g} s; "
            "without them, rows would be delivered twice. Load each state into an iterator "
            "of its own, or load dataservice.merge_states([state, ...]) of all of them into "
            "one iterator"
        )


class Starvation:
    """Waits up to `patience_s` for any worker at all; with a `host`, for one on that host."""

    def __init__(self, target: str, patience_s: float, host: str | None = None) -> None:
        self._target = target
        self._patience_s = patience_s
        self._host = host
        self._since_s: float | None = None
        self._reminded_s = 0.0

    def note(self, starving: bool, now_s: float) -> UnavailableError | None:
        """Takes in whether somebody waits while there is no worker; the error to fail with."""
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
        if now_s - self._since_s >= self._patience_s:
            return UnavailableError(
                f"{cause}, and none came in {self._patience_s:g} s; {remedy}, or give distribute() "
                "a larger timeout_s to wait longer"
            )
        if now_s - self._reminded_s >= _REMIND_S:
            self._reminded_s = now_s
            logger.warning("waiting: %s; %s", cause, remedy)
        return None


class Reach:
    """Waits for workers that are registered but cannot be reached: up to `patience_s` at first.

    A reader that has had rows goes on for as long as it takes, for the network is then in the way.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._since_s: float | None = None
        self._reminded_s = 0.0
        self._rows = 0

    def note(
        self, unreachable: Mapping[str, str], rows: int, now_s: float
    ) -> UnavailableError | None:
        """Takes in which workers are waited for, by address, and why; the error to fail with."""
        if not unreachable or rows != self._rows:
            self._since_s, self._rows = None, rows
        if not unreachable:
            return None
        if self._since_s is None:
            self._since_s = self._reminded_s = now_s
        if not rows and now_s - self._since_s >= self._patience_s:
            return UnavailableError(
                f"{_unreached(unreachable)}, or give distribute() a larger timeout_s than "
                f"{self._patience_s:g} s to wait longer"
            )
        if now_s - self._reminded_s >= _REMIND_S:
            self._reminded_s = now_s
            logger.warning("waiting: %s", _unreached(unreachable))
        return None


class Roll:
    """Waits for the other consumers of coordinated reads: up to `patience_s` for a missing one.

    One that is there but slow is waited for as long as it is there.
    """

    def __init__(self, index: int, count: int, patience_s: float) -> None:
        self._name = f"consumer {index} of {count}"
        self._patience_s = patience_s
        self._since_s: float | None = None
        self._reminded_s: float | None = None

    def note(
        self, waits: bool, missing: Sequence[int], late: Sequence[int], now_s: float
    ) -> DeadlineExceededError | None:
        """Takes in for whom this consumer waits; the error to fail with."""
        if not waits or not missing:
            self._since_s = None
        elif self._since_s is None:
            self._since_s = now_s
        if not waits or not (missing or late):
            self._reminded_s = now_s
            return None
        if self._since_s is not None and now_s - self._since_s >= self._patience_s:
            return DeadlineExceededError(
                f"{self._name} waited {self._patience_s:g} s for consumer_index "
                f"{_listed(missing)}, which no reader has joined as; all consumers of "
                "coordinated reads must run at once: start them, or give distribute() a larger "
                "timeout_s to wait longer"
            )
        if self._reminded_s is None and not missing:
            # A little behind is everybody now and then.
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
