"""Decisions about windows: which ones a worker gets for a reader, and what a reader's marks mean.

Pure, like `decide`. Rules: a reader's own windows come first, because it has part of their rows.
Towards the end of an epoch grants shrink, so that all workers share the last rows. Invariant: a
window is leased again only once the reader that owns it has said what it received, or is lost, so
that no row is delivered under two leases.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from dataservice.dispatcher import events as ev
from dataservice.dispatcher import ordering, positions, quarantine, shares
from dataservice.dispatcher.jobs import Iteration
from dataservice.dispatcher.plans import WindowPlan
from dataservice.dispatcher.requests import (
    Decision,
    Lease,
    LeaseAnswer,
    LeaseWindows,
    Sync,
    SyncAnswer,
)
from dataservice.dispatcher.state import DispatcherState
from dataservice.dispatcher.window_records import Phase
from dataservice.dispatcher.windows import WindowTable
from dataservice.errors import FailedPreconditionError, InvalidArgumentError
from dataservice.ranges import RowMark
from dataservice.stream_counts import workers_per_reader
from dataservice.vocabulary import ALL_WINDOWS, IterationId, ReaderId

_NOTHING_EVER = LeaseAnswer((), True)
_NOTHING_NOW = LeaseAnswer((), False)


def open_round(state: DispatcherState, iteration_id: IterationId) -> Decision:
    """Opens the next reading of the splits once all windows so far have been leased."""
    iteration = state.iterations.get(iteration_id)
    if iteration is None or iteration.windows is None or not iteration.windows.needs_round():
        return Decision(())
    if positions.awaits_positions(iteration):
        return Decision(())
    return Decision((ev.RoundOpened(iteration_id=iteration_id),))


def rounds_ahead(state: DispatcherState) -> list[tuple[WindowPlan, int]]:
    """Returns plans with the round each opens next, so that windows can be prepared ahead."""
    tables = (iteration.windows for iteration in state.iterations.values())
    return [
        (table.plan, table.rounds_opened)
        for table in tables
        if table is not None and not table.is_exhausted
    ]


def give_back(state: DispatcherState, request: LeaseWindows) -> Decision:
    """Fences the leases that a worker returns, as it will not finish them."""
    iteration = state.iterations.get(request.iteration_id)
    if iteration is None or iteration.windows is None or not request.returned:
        return Decision(())
    if any(mark.window == ALL_WINDOWS for mark in request.returned):
        return _begin_stream(state, iteration, iteration.windows, request)
    records = iteration.windows.records
    fenced = tuple(
        mark.window
        for mark in request.returned
        if (record := records.get(mark.window)) is not None
        and record.phase is Phase.LEASED
        and (record.worker, record.generation) == (request.worker_id, mark.generation)
    )
    return Decision(_fence(request.iteration_id, fenced))


def _begin_stream(
    state: DispatcherState, iteration: Iteration, table: WindowTable, request: LeaseWindows
) -> Decision:
    """Fences the windows leased to earlier streams from this worker to this reader, never sent.

    Also grants no windows under the new sequence number, so that a request of an earlier stream
    that is still in flight gets nothing.
    """
    again = table.grants.get((request.worker_id, request.reader_id))
    if request.reader_id not in iteration.readers or iteration.finished:
        return Decision(())
    if again is not None and again[0] >= request.sequence:
        return Decision(())
    left = tuple(table.leased_to(request.worker_id, request.reader_id))
    # The reader reached the worker after the earlier stream had broken, so the worker is alive.
    lives = quarantine.acquit(state, request.worker_id).events
    return Decision((*lives, *_fence(request.iteration_id, left), _leased(request, ())))


def lease_windows(state: DispatcherState, request: LeaseWindows) -> Decision:
    """Grants up to `count` windows. Answers a LeaseAnswer.

    A retry with the same sequence number gets the same windows, as far as they are still leased.
    """
    iteration = state.iterations.get(request.iteration_id)
    if iteration is None or iteration.finished:
        return Decision((), _NOTHING_EVER)
    if state.jobs[iteration.job_id].options.cross_trainer_cache:
        return _lease_for_all(iteration, request)
    if request.reader_id not in iteration.readers:
        return Decision((), _NOTHING_EVER)
    table = iteration.windows
    if table is None:
        raise FailedPreconditionError(
            f"{request.iteration_id} has no windows to lease: every worker reads all of it"
        )
    if positions.awaits_positions(iteration):
        return Decision((), _NOTHING_NOW)
    again = table.grants.get((request.worker_id, request.reader_id))
    if again is not None and request.sequence:
        sequence, windows = again
        if windows and sequence == request.sequence:
            return Decision((), LeaseAnswer(_still_leased(table, request, windows), False))
        # A later request has overtaken this one: its sender no longer waits and would run nothing.
        if sequence > request.sequence:
            return Decision((), _NOTHING_NOW)
    # The worker may have died since it sent the request: nobody would run the granted windows.
    if request.worker_id in state.accused:
        return Decision((), _NOTHING_NOW)
    size = _grant_size(state, iteration, table, request)
    chosen = quarantine.choose(state, iteration, table, request, size)
    if not chosen:
        return Decision((), _NOTHING_NOW)
    answer = LeaseAnswer(tuple(_lease(table, window) for window in chosen), False)
    return Decision((_leased(request, chosen),), answer)


def _leased(request: LeaseWindows, windows: tuple[int, ...]) -> ev.Event:
    return ev.WindowsLeased(
        iteration_id=request.iteration_id,
        reader_id=request.reader_id,
        worker_id=request.worker_id,
        sequence=request.sequence,
        windows=windows,
    )


def _lease_for_all(iteration: Iteration, request: LeaseWindows) -> Decision:
    """Grants windows that a worker produces once for all trainers; none while there is none.

    Whichever worker asks takes them, and they are done at once: delivery is at most once. The facts
    name the first reader as owner, since a lease needs one.
    """
    table = iteration.windows
    if table is None or not iteration.readers:
        return Decision((), _NOTHING_NOW)
    chosen = table.candidates(request.reader_id, max(0, request.count))
    if not chosen:
        return Decision((), _NOTHING_NOW)
    request = replace(request, reader_id=next(iter(iteration.readers)))
    done = ev.RowsConsumed(
        iteration_id=request.iteration_id,
        reader_id=request.reader_id,
        marks=tuple(RowMark(window, 0, 0, True) for window in chosen),
    )
    answer = LeaseAnswer(tuple(_lease(table, window) for window in chosen), False)
    return Decision((_leased(request, chosen), done), answer)


def _grant_size(
    state: DispatcherState, iteration: Iteration, table: WindowTable, request: LeaseWindows
) -> int:
    """Returns how many windows to grant: what was asked, at most a fair share of the last ones."""
    if ordering.is_ordered(state, iteration.iteration_id):
        return ordering.grant_size(state, table, request)
    if not table.is_exhausted:
        return max(0, request.count)
    fair = -(-table.claimable(request.reader_id) // (2 * _streams(state, iteration, table)))
    return max(0, min(request.count, fair))


def _streams(state: DispatcherState, iteration: Iteration, table: WindowTable) -> int:
    """Returns how many streams may ask for windows: the expected number, or those seen if more."""
    readers, workers = len(iteration.readers), len(state.workers)
    return max(1, readers * workers_per_reader(workers, readers), len(table.grants))


def _still_leased(
    table: WindowTable, request: LeaseWindows, windows: tuple[int, ...]
) -> tuple[Lease, ...]:
    held = set(table.leased_to(request.worker_id, request.reader_id))
    return tuple(_lease(table, window) for window in windows if window in held)


def _lease(table: WindowTable, index: int) -> Lease:
    round_number, window = table.locate(index)
    record = table.records.get(index)
    generation, start_row = (0, 0) if record is None else (record.generation, record.start_row)
    return Lease(index, generation, start_row, table.plan.epoch_of(round_number), window)


def sync(state: DispatcherState, request: Sync) -> Decision:
    """Records what a reader consumed and released, and which workers it lost.

    `answer_sync` makes the answer, from the state to which these facts have been applied.
    """
    iteration = state.iterations[request.iteration_id]
    table = iteration.windows
    if table is None:
        return Decision(())
    facts = consumed_facts(iteration, request.reader_id, request.consumed)
    _check_marks(table, request.released)
    released = tuple(m for m in request.released if table.is_releasable(request.reader_id, m))
    received = {mark.window for mark in released if mark.final}
    facts.extend(_accusations(state, request, table, received))
    if released:
        facts.append(
            ev.WindowsReleased(
                iteration_id=request.iteration_id,
                reader_id=request.reader_id,
                marks=released,
            )
        )
    answered = {mark.window for mark in released}
    due = tuple(
        window
        for worker_id in request.broken_worker_ids
        for window in table.leased_to(worker_id, request.reader_id)
        if window not in answered
    )
    return Decision((*facts, *_fence(request.iteration_id, due)))


def _accusations(
    state: DispatcherState, request: Sync, table: WindowTable, received: set[int]
) -> Iterator[ev.Event]:
    """Accuses the windows that may have killed the workers which the reader lost.

    A window that the reader has `received` as a whole is not accused.
    """
    for worker_id in request.broken_worker_ids:
        had = table.leased_to(worker_id, request.reader_id)
        windows = tuple(window for window in had if window not in received)
        # Without windows only the connection is in doubt: other readers may still reach the worker,
        # and an accused worker would get no windows.
        if windows and worker_id in state.workers:
            yield ev.WindowsAccused(
                iteration_id=request.iteration_id, worker_id=worker_id, windows=windows
            )


def answer_sync(state: DispatcherState, request: Sync) -> SyncAnswer:
    """Answers which leases the reader must release, and whether anything is left for it."""
    iteration = state.iterations[request.iteration_id]
    table = iteration.windows
    fences = () if table is None else tuple(_fences(table, request.reader_id))
    quarantined = () if table is None else tuple(table.quarantined)
    missing = shares.missing(state, iteration)
    ended = iteration.is_over_for(request.reader_id) and not missing
    awaited = () if iteration.resumption is None else iteration.resumption.missing()
    leased = table is not None and table.is_leased_for(request.reader_id)
    return SyncAnswer(fences, ended, iteration.finished, missing, awaited, quarantined, leased)


def _fences(table: WindowTable, reader_id: ReaderId) -> Iterator[RowMark]:
    """Yields the leases that the reader must release, with where they began."""
    for window in sorted(table.readers[reader_id].fencing):
        record = table.records[window]
        yield RowMark(window, record.generation, record.start_row, False)


def consumed_facts(
    iteration: Iteration, reader_id: ReaderId, marks: tuple[RowMark, ...]
) -> list[ev.Event]:
    """Returns the fact that rows were consumed, if any of the marks is new.

    InvalidArgumentError for a mark of a window that was never leased, or with a negative row.
    """
    if iteration.windows is None:
        return []
    _check_marks(iteration.windows, marks)
    new = tuple(mark for mark in marks if _is_new(iteration.windows, reader_id, mark))
    if not new:
        return []
    return [ev.RowsConsumed(iteration_id=iteration.iteration_id, reader_id=reader_id, marks=new)]


def _is_new(table: WindowTable, reader_id: ReaderId, mark: RowMark) -> bool:
    record = table.records.get(mark.window)
    if record is None or record.owner != reader_id:
        return False
    return mark.row > record.consumed_row or (mark.final and record.phase is not Phase.PENDING)


def is_idle(request: Sync, answer: SyncAnswer) -> bool:
    """True if a sync reported nothing and its answer tells nothing, so it need not be durable.

    That a window is leased only says when to call again.
    """
    told = any(answer._replace(is_leased=False))
    return not (request.consumed or request.released or request.broken_worker_ids or told)


def _check_marks(table: WindowTable, marks: Iterable[RowMark]) -> None:
    for mark in marks:
        if not 0 <= mark.window < table.cursor or mark.row < 0:
            raise InvalidArgumentError(
                f"mark {tuple(mark)} is about a window that was never leased, or a negative row; "
                f"windows 0 to {table.cursor - 1} were leased so far"
            )


def _fence(iteration_id: IterationId, windows: tuple[int, ...]) -> tuple[ev.Event, ...]:
    return (ev.WindowsFenced(iteration_id=iteration_id, windows=windows),) if windows else ()


def touched(
    state: DispatcherState, event: ev.Event, waiting: Iterable[IterationId]
) -> tuple[IterationId, ...]:
    """Returns the iterations in which a fact may bring windows, or the end, to waiting requests.

    To be asked before the fact is applied.
    """
    match event:
        case ev.ReaderReleased() | ev.ReaderLost():
            return (state.iteration_of_reader[event.reader_id],)
        case ev.WorkerLost() | ev.WorkerAcquitted() | ev.JobDeleted() | ev.IterationCollected():
            return tuple(waiting)
        case ev.WindowsReleased() | ev.RoundOpened() | ev.ReaderJoined() | ev.IterationResumed():
            return (event.iteration_id,)
        case ev.RowsConsumed() if quarantine.has_suspects(state, event.iteration_id):
            return (event.iteration_id,)
        case ev.RowsConsumed() if ordering.is_ordered(state, event.iteration_id):
            return (event.iteration_id,)
    return ()
