"""Runs functions on the trainers of a coordinator, several in flight on each.

Knows neither what a call reads nor how it reaches a trainer. Invariant: a run ends once its pass is
over, its steps are done or it is stopped, and each of its calls has ended and was reported.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from typing import Any, Final

from pstrain.consistency import Sync
from pstrain.coordinator.client import ClusterCoordinator
from pstrain.coordinator.lost_trainers import LostRunNotes
from pstrain.coordinator.per_worker import PerWorkerDataset, PerWorkerIterator
from pstrain.coordinator.remote_value import RemoteValue
from pstrain.coordinator.server_recovery import ServerRecovery
from pstrain.errors import CancelledError, DeadlineExceededError
from pstrain.execution.calls import Calls, DealtCalls, SharedCalls
from pstrain.execution.data import can_be_dealt, is_dealt
from pstrain.execution.dealing import DealtDataset, DealtPass, in_order
from pstrain.execution.executor import NotingFunction, Report, StepFunction, Steps
from pstrain.execution.in_flight import InFlightCalls
from pstrain.strategy.input_sharding import AutoShardPolicy, DistributedDataset

logger = logging.getLogger(__name__)

_GIVE_UP_TIMEOUT_S: Final = 10.0
_CALLS_PER_TRAINER: Final = 4
_STEPS_PER_TRAINER: Final = 32
"""How many steps of a trainer are in flight if that takes more calls: it would wait for short ones
while their reports are read."""
_GOES_ON = (
    "steps of an interrupted run had not ended after %.0f s and may still change "
    "values; coordinator.join() waits for them"
)


class ClusterExecutor:
    """Runs functions on the trainers of a coordinator, several in flight on each."""

    resumes = True

    def __init__(self, coordinator: ClusterCoordinator) -> None:
        self._coordinator = coordinator
        self._has_shares = self.is_at_end = False
        self._in_flight: InFlightCalls[Any] | None = None
        self._function: StepFunction | None = None

    def unreported(self) -> list[Report]:
        if self._in_flight is None:
            return []
        return [self._report_of(value) for value in self._in_flight.unreturned()]

    @property
    def recovery(self) -> ServerRecovery:
        return self._coordinator.recovery

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

    def run(self, function: StepFunction, iterator: Any, steps: Steps) -> Iterator[Report]:
        calls: Calls
        if isinstance(iterator, DealtPass):
            calls = DealtCalls(self._coordinator, function, iterator)
        else:
            shares = self._has_shares
            calls = SharedCalls(self._coordinator, function, iterator, has_shares=shares)
        return (report for _, report in self._run(function, calls, steps))

    def _run(
        self, function: StepFunction, calls: Calls, steps: Steps
    ) -> Iterator[tuple[Any, Report]]:
        """Yields each call with its report, in the order in which calls end."""
        in_flight: InFlightCalls[Any] = InFlightCalls(
            self._room(steps), self._coordinator.has_ready_trainer
        )
        self._in_flight, self._function, self.is_at_end = in_flight, function, False
        promised = steps.done
        while True:
            is_over = calls.is_over()
            while not is_over and steps.wants_more(promised) and in_flight.has_room:
                value, call = calls.schedule(steps.next_call(promised))
                in_flight.add(value, call)
                promised += call.length
                is_over = calls.is_over()
            if not in_flight:
                break
            ended = in_flight.next_ended(or_room=not is_over and steps.wants_more(promised))
            if ended is None:
                continue
            value, call = ended
            report = self._fetch(value)
            promised += report["steps"] - call.length
            in_flight.note_idle(calls.note(call, report))
            yield call, report
        self.is_at_end = is_over
        if is_over:
            calls.end_pass()

    def _room(self, steps: Steps) -> int:
        """Returns how many calls may be in flight."""
        calls = _CALLS_PER_TRAINER
        if not steps.is_watched and not isinstance(self._coordinator.strategy.consistency, Sync):
            calls = max(calls, _STEPS_PER_TRAINER // steps.per_call)
        return calls * self._coordinator.num_trainers

    def run_once(
        self,
        function: StepFunction,
        data: Any,
        steps: Steps,
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
                calls = DealtCalls(self._coordinator, function, elements)
                yield from in_order(self._run(function, calls, steps))
            else:
                yield from self.run(function, elements, steps)
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
        return value

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
