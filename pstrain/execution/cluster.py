"""Runs functions on the trainers of a coordinator, several in flight on each.

Knows which trainers have read to their end, not how closures reach them. Invariant: a pass over
dealt data ends when the end was met and every range is done; a pass over data that trainers read by
themselves ends when every live trainer has seen its end since the last loss of a trainer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pstrain.coordinator.client import ClusterCoordinator
from pstrain.coordinator.lost_trainers import LostRunNotes
from pstrain.coordinator.per_worker import PerWorkerDataset, PerWorkerIterator
from pstrain.coordinator.remote_value import RemoteValue
from pstrain.errors import CancelledError, DataError, DeadlineExceededError
from pstrain.execution.data import can_be_dealt, is_dealt
from pstrain.execution.dealing import DealtDataset, DealtPass, Range, in_order
from pstrain.execution.executor import NotingFunction, Report, StepFunction, never, share_of
from pstrain.execution.in_flight import InFlightCalls
from pstrain.execution.on_trainers import OnRange, OnTrainer
from pstrain.input_sharding import AutoShardPolicy, DistributedDataset

if TYPE_CHECKING:
    from pstrain.checkpoints.manager import CheckpointManager

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


_GIVE_UP_TIMEOUT_S: Final = 10.0
_GOES_ON = (
    "steps of an interrupted run had not ended after %.0f s and may still change "
    "values; coordinator.join() waits for them"
)


class _Call(NamedTuple):
    """A scheduled call: its number of steps, and of trainers that had been lost by then."""

    share: int
    losses: int


class _Readers:
    """Which trainers have seen the end of their data, in one pass over it.

    ``has_shares``: each trainer has a share of its own, which no other reads for it.
    """

    def __init__(self, coordinator: ClusterCoordinator, *, has_shares: bool) -> None:
        self._coordinator = coordinator
        self._has_shares = has_shares
        self._ended: set[int] = set()
        self._have_read: set[int] = set()
        self.losses = coordinator.stats()["losses"]

    def are_at_their_end(self) -> bool:
        """True if all live trainers are at the end of their data."""
        live = self._coordinator.live_trainers()
        losses = self._coordinator.stats()["losses"]
        if losses != self.losses:
            # What a lost trainer had not finished is available again, even to those at their end.
            self.losses = losses
            self._ended.clear()
            if self._has_shares and not self._coordinator.recovery.is_restoring:
                logger.warning(_LOST)
        return bool(self._ended) and self._ended >= live

    def note_end(self, trainer: int, losses: int) -> None:
        """Notes that a call which was scheduled after ``losses`` losses found no more data."""
        self._have_read.add(trainer)
        if losses == self.losses:
            self._ended.add(trainer)

    def warn_of_absent(self) -> None:
        """Warns, after a pass, if some trainers have not read their shares."""
        count = self._coordinator.num_trainers
        if self._has_shares and len(self._have_read) < count:
            logger.warning(_ABSENT, sorted(self._have_read), count)


class _End:
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


class ClusterExecutor:
    """Runs functions on the trainers of a coordinator, several in flight on each."""

    resumes = True

    def __init__(self, coordinator: ClusterCoordinator) -> None:
        self._coordinator = coordinator
        self._has_shares = self.is_at_end = False
        self._in_flight: InFlightCalls[Any] | None = None
        self._function: StepFunction | None = None

    def unreported(self) -> list[Report]:
        return (
            []
            if self._in_flight is None
            else list(map(self._report_of, self._in_flight.unreturned()))
        )

    @property
    def checkpoint(self) -> CheckpointManager | None:
        return self._coordinator.checkpoint

    def rolling_back(self, manager: CheckpointManager) -> AbstractContextManager[None]:
        return self._coordinator.recovery.rolling_back(manager)

    def wait_rolled_back(self, error: Exception) -> bool:
        return self._coordinator.recovery.wait_rolled_back(error)

    def check_intact(self) -> None:
        self._coordinator.recovery.check_intact()

    def end_restoring(self, is_behind: Callable[[], bool]) -> bool:
        return self._coordinator.recovery.end_restoring(is_behind)

    def give_up(self) -> None:
        try:
            if self._in_flight is None or self._in_flight.give_up(_GIVE_UP_TIMEOUT_S):
                return
        except DeadlineExceededError as error:
            logger.debug("a trainer does not answer: %s", error)
        logger.warning(_GOES_ON, _GIVE_UP_TIMEOUT_S)

    def dataset(self, data: Any, first_epoch: int = 0) -> PerWorkerDataset | DealtDataset:
        if isinstance(data, PerWorkerDataset):
            return data
        if is_dealt(data):
            return DealtDataset(data, self._coordinator, first_epoch)
        if not callable(data):
            # An epoch is one pass over the data by all trainers together: they share one job, or
            # each keeps its share of the rows that all read.
            self._has_shares = not getattr(data, "is_distributed", True)
            data = DistributedDataset(data, AutoShardPolicy.DATA)
        return self._coordinator.create_per_worker_dataset(data, first_epoch=first_epoch)

    def run(
        self,
        function: StepFunction,
        iterator: Any,
        steps: int | None,
        steps_per_execution: int,
        done: int = 0,
        is_stopped: Callable[[], bool] = never,
    ) -> Iterator[Report]:
        self.is_at_end = False
        if isinstance(iterator, DealtPass):
            given = (function, iterator, steps, steps_per_execution, done, is_stopped)
            return (report for _, report in self._run_dealt(*given))
        return self._run_shared(function, iterator, steps, steps_per_execution, done, is_stopped)

    def _run_dealt(
        self,
        function: StepFunction,
        elements: DealtPass,
        steps: int | None,
        steps_per_execution: int,
        done: int,
        is_stopped: Callable[[], bool],
    ) -> Iterator[tuple[Range, Report]]:
        """Deals every range to one closure, which runs again until it has ended once."""
        cluster = self._coordinator
        in_flight: InFlightCalls[Range] = InFlightCalls(
            4 * cluster.num_trainers, cluster.has_ready_trainer
        )
        self._in_flight = in_flight
        on_range = OnRange(function)
        promised, end = done, _End()

        def goes_on() -> bool:
            is_over = end.is_met and not elements.has_returned
            return not (is_over or is_stopped()) and (steps is None or promised < steps)

        while True:
            while in_flight.has_room and goes_on():
                share = share_of(steps, promised, steps_per_execution)
                promised += self._deal(on_range, elements, in_flight, share)
            if not in_flight:
                self.is_at_end = end.is_met and not elements.has_returned
                return
            ended = in_flight.next_ended(or_room=goes_on())
            if ended is None:
                continue
            value, dealt = ended
            report = self._fetch(value)
            elements.note_bookmark(report)
            elements.note_done(dealt, None if report["ended"] else report["steps"])
            promised += report["steps"] - dealt.length
            end.note(dealt, report)
            yield dealt, report

    def _deal(
        self, on_range: OnRange, elements: DealtPass, in_flight: InFlightCalls[Range], most: int
    ) -> int:
        """Schedules the next range, and returns its length."""
        dealt = elements.deal(most)
        near = elements.bookmark_before(dealt)
        value = self._coordinator.schedule(on_range, args=(elements.readers, *dealt, near))
        elements.note_scheduled(dealt, value)
        in_flight.add(value, dealt)
        return dealt.length

    def _run_shared(
        self,
        function: StepFunction,
        iterator: PerWorkerIterator,
        steps: int | None,
        steps_per_execution: int,
        done: int,
        is_stopped: Callable[[], bool],
    ) -> Iterator[Report]:
        """Runs over data that trainers read by themselves, or that a data service gives them."""
        on_trainer = OnTrainer(function)
        readers = _Readers(self._coordinator, has_shares=self._has_shares)
        in_flight: InFlightCalls[_Call] = InFlightCalls(
            4 * self._coordinator.num_trainers, self._coordinator.has_ready_trainer
        )
        self._in_flight, self._function = in_flight, function
        promised = done
        while True:
            over = readers.are_at_their_end()
            goes_on = not (over or is_stopped())
            while goes_on and (steps is None or promised < steps) and in_flight.has_room:
                share = share_of(steps, promised, steps_per_execution)
                value = self._coordinator.schedule(on_trainer, args=(iterator, share))
                in_flight.add(value, _Call(share, readers.losses))
                promised += share
            if not in_flight:
                self.is_at_end = over
                if over:
                    readers.warn_of_absent()
                return
            ended = in_flight.next_ended(or_room=goes_on and (steps is None or promised < steps))
            if ended is None:
                continue
            value, call = ended
            report = self._fetch(value)
            promised += report["steps"] - call.share
            in_flight.note_idle(report["ended"])
            if report["ended"]:
                readers.note_end(report["trainer"], call.losses)
            yield report

    def run_once(
        self,
        function: StepFunction,
        data: Any,
        steps: int | None,
        steps_per_execution: int,
        *,
        is_in_order: bool = False,
    ) -> Generator[Report, None, None]:
        """Reads each element once, despite lost trainers, if every trainer can read the data.

        Other data (of a data service, or of a dataset function) is read as in :meth:`run`: a data
        service counts rows as read once their report has arrived, and gives out others again.
        """
        is_dealt_out = can_be_dealt(data)
        dataset = DealtDataset(data, self._coordinator) if is_dealt_out else self.dataset(data)
        elements: DealtPass | PerWorkerIterator = dataset.__iter__()
        try:
            if is_in_order and isinstance(elements, DealtPass):
                given = (function, elements, steps, steps_per_execution, 0, never)
                yield from in_order(self._run_dealt(*given))
            else:
                yield from self.run(function, elements, steps, steps_per_execution)
        except (KeyboardInterrupt, GeneratorExit):
            # Else they would fail without the elements, which the next schedule would raise.
            self.give_up()
            raise
        finally:
            elements.close()

    def _report_of(self, value: Any) -> Report:
        """Returns a call's report; if its trainer was lost, the report made from its notes."""
        if isinstance(value, LostRunNotes) and isinstance(self._function, NotingFunction):
            return self._function.report_of(value.notes)
        return value  # type: ignore[no-any-return]

    def _fetch(self, value: RemoteValue) -> Report:
        try:
            return self._report_of(value.fetch())
        except CancelledError:
            self._coordinator.join()  # raises the error that cancelled it
            raise
        except Exception as error:
            self._clear(error)
            raise

    def _clear(self, shown: Exception) -> None:
        """Clears the coordinator's errors after ``shown``, which the caller is about to get."""
        try:
            self._coordinator.join(timeout=60)
        except type(shown):
            pass
