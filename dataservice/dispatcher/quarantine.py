"""Decisions about windows that may kill workers: which worker runs them, when they are acquitted.

Pure, like `decide`. Rules: a message of an accused worker that may have been in flight when its
stream broke proves nothing. The worker is known to live if a new stream from it begins, or if it
sends a heartbeat after one that was answered since the accusation. A suspect window is leased only
when nothing else runs in its stream, and nothing else joins it there; a worker runs one suspect at
a time. Invariant: whatever is suspected, a stream that may go on gets windows; it waits for nothing
but the consumption of its own reader.
"""

from __future__ import annotations

from dataservice.dispatcher import events as ev
from dataservice.dispatcher.jobs import Iteration
from dataservice.dispatcher.requests import Decision, LeaseWindows
from dataservice.dispatcher.state import DispatcherState
from dataservice.dispatcher.windows import WindowTable
from dataservice.vocabulary import IterationId, WorkerId


def acquit(state: DispatcherState, worker_id: WorkerId) -> Decision:
    """Records that an accused worker is known to live, so no window has killed it."""
    if worker_id not in state.accused:
        return Decision(())
    return Decision((ev.WorkerAcquitted(worker_id=worker_id),))


class Evidence:
    """Evidence that accused workers live, from the sequence numbers of their heartbeats.

    A worker sends a heartbeat only when the one before has been answered. The numbers are not
    facts, so after a restart of the dispatcher the proof takes one heartbeat more. Not thread-safe.
    """

    def __init__(self) -> None:
        self._last: dict[WorkerId, int] = {}
        self._due: dict[WorkerId, int] = {}

    def on_accusation(self, worker_id: WorkerId) -> None:
        """Notes an accusation; the next heartbeat may be in flight, so only the second counts."""
        if worker_id in self._last:
            self._due[worker_id] = self._last[worker_id] + 2

    def on_heartbeat(self, state: DispatcherState, worker_id: WorkerId, number: int) -> Decision:
        """Handles a heartbeat; acquits the worker if it was surely sent after the accusation."""
        self._last[worker_id] = max(number, self._last.get(worker_id, number))
        if worker_id in state.accused and number >= self._due.setdefault(worker_id, number + 1):
            del self._due[worker_id]
            return acquit(state, worker_id)
        return Decision(())

    def forget(self, worker_id: WorkerId) -> None:
        """Forgets a worker that is gone."""
        self._last.pop(worker_id, None)
        self._due.pop(worker_id, None)


def has_suspects(state: DispatcherState, iteration_id: IterationId) -> bool:
    """True if the iteration has windows under suspicion, which may wait until others are done."""
    iteration = state.iterations.get(iteration_id)
    table = None if iteration is None else iteration.windows
    return table is not None and bool(table.suspicions.cases)


def choose(
    state: DispatcherState,
    iteration: Iteration,
    table: WindowTable,
    request: LeaseWindows,
    count: int,
) -> tuple[int, ...]:
    """Returns at most `count` windows for a stream: one suspect alone, or unsuspected ones."""
    if not table.suspicions.cases or count < 1:
        return table.candidates(request.reader_id, count)
    running = tuple(table.leased_to(request.worker_id, request.reader_id))
    if any(map(table.suspicions.is_suspect, running)):
        return ()
    suspects = table.suspects_for(request.reader_id)
    if not suspects or _runs_a_suspect(state, request.worker_id):
        return table.candidates(request.reader_id, count)
    # A reader with ordered=True may need the suspect before it can consume the other windows.
    if running and not state.jobs[iteration.job_id].options.ordered:
        return ()
    return suspects[:1]


def _runs_a_suspect(state: DispatcherState, worker_id: WorkerId) -> bool:
    tables = (iteration.windows for iteration in state.iterations.values())
    return any(
        table is not None and any(map(table.suspicions.is_suspect, table.leases.get(worker_id, ())))
        for table in tables
    )
