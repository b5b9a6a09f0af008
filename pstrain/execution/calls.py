"""The calls of one pass over data on trainers: what each is given, and when the pass is over.

Knows not how many calls are in flight. Invariant: a pass over dealt data is over when the end was
met and every range is dealt; a pass over data that trainers read by themselves is over when every
live trainer has seen its end since the last loss of a trainer.
"""

from __future__ import annotations

import logging
from typing import NamedTuple, TypeAlias

from pstrain.coordinator.client import ClusterCoordinator
from pstrain.coordinator.per_worker import PerWorkerIterator
from pstrain.coordinator.remote_value import RemoteValue
from pstrain.errors import DataError
from pstrain.execution.dealing import DealtPass, Range
from pstrain.execution.executor import Report, StepFunction
from pstrain.execution.on_trainers import OnRange, OnTrainer

logger = logging.getLogger(__name__)

_LOST = (
    "a trainer was lost while it read the data: the rows that it had taken but not "
    "finished were left out of this pass; a data service would have given them to "
    "the other trainers"
)
_ABSENT = (
    "only trainers %s of %d read their shares of the rows in this pass, and the "
    "shares of the others were left out: distribute() the data to a data service, "
    "which gives all rows to the trainers that are there"
)
_DIFFERS = (
    "trainers read different data: for one of them the pass ended before element "
    "{:,}, which another one read; make sure that all trainers see the same "
    "files, that nothing changes the files meanwhile, and that functions return the "
    "same rows each time"
)


class DealtCalls:
    """Calls over ranges of dealt data: each range is that of one closure, which may run again."""

    def __init__(
        self, coordinator: ClusterCoordinator, function: StepFunction, elements: DealtPass
    ) -> None:
        self._coordinator, self._function, self._elements = coordinator, OnRange(function), elements
        self._end = End()

    def is_over(self) -> bool:
        """True if no more calls are needed once those that were scheduled have ended."""
        return self._end.is_met and not self._elements.has_returned

    def schedule(self, most: int) -> tuple[RemoteValue, Range]:
        """Schedules the next call, of at most ``most`` steps."""
        elements, dealt = self._elements, self._elements.deal(most)
        near = elements.bookmark_before(dealt)
        value = self._coordinator.schedule(self._function, args=(elements.readers, *dealt, near))
        elements.note_scheduled(dealt, value)
        return value, dealt

    def note(self, call: Range, report: Report) -> bool:
        """Notes a call's report; True if it found nothing to do, while others hold what is left."""
        self._elements.note_bookmark(report)
        self._elements.note_done(call, None if report["ended"] else report["steps"])
        self._end.note(call, report)
        return False

    def end_pass(self) -> None:
        """Called once the pass is over and all calls have ended."""


class End:
    """The end of a pass over dealt data: where it was met; all trainers must agree on it."""

    def __init__(self) -> None:
        self._met_at: int | None = None
        self._found = 0

    @property
    def is_met(self) -> bool:
        return self._met_at is not None

    def note(self, dealt: Range, report: Report) -> None:
        """Notes a report; DataError if a trainer found elements behind the end that another met."""
        stop = dealt.start + report["steps"]
        if report["steps"]:
            self._found = max(self._found, stop)
        if report["ended"]:
            self._met_at = stop if self._met_at is None else min(self._met_at, stop)
        if self._met_at is not None and self._found > self._met_at:
            raise DataError(_DIFFERS.format(self._met_at))


class _Share(NamedTuple):
    """A call on whatever its trainer reads next; ``losses``: of trainers until it was scheduled."""

    length: int
    losses: int


class SharedCalls:
    """Calls over data that trainers read by themselves, or that a data service gives them.

    ``has_shares``: each trainer has a share of its own, which no other reads for it.
    """

    def __init__(
        self,
        coordinator: ClusterCoordinator,
        function: StepFunction,
        iterator: PerWorkerIterator,
        *,
        has_shares: bool,
    ) -> None:
        self._coordinator, self._function = coordinator, OnTrainer(function)
        self._iterator, self._has_shares = iterator, has_shares
        self._ended: set[int] = set()
        self._have_read: set[int] = set()
        self._losses = coordinator.stats()["losses"]

    def is_over(self) -> bool:
        live = self._coordinator.live_trainers()
        losses = self._coordinator.stats()["losses"]
        if losses != self._losses:
            # What a lost trainer had not finished is available again, even to those at their end.
            self._losses = losses
            self._ended.clear()
            if self._has_shares and not self._coordinator.recovery.is_restoring:
                logger.warning(_LOST)
        return bool(self._ended) and self._ended >= live

    def schedule(self, most: int) -> tuple[RemoteValue, _Share]:
        value = self._coordinator.schedule(self._function, args=(self._iterator, most))
        return value, _Share(most, self._losses)

    def note(self, call: _Share, report: Report) -> bool:
        if report["ended"]:
            self._have_read.add(report["trainer"])
            # After a later loss the trainer may find more data.
            if call.losses == self._losses:
                self._ended.add(report["trainer"])
        return bool(report["ended"])

    def end_pass(self) -> None:
        """Warns if some trainers have not read their shares."""
        count = self._coordinator.num_trainers
        if self._has_shares and len(self._have_read) < count:
            logger.warning(_ABSENT, sorted(self._have_read), count)


Calls: TypeAlias = DealtCalls | SharedCalls
