"""Decisions about coordinated reads: which worker gives a round, which consumer may consume it.

Pure, like `decide`. Consumers ask for rounds by the block, so the control plane works per block and
not per round, and all consumers get the same answer whichever asks first. Rules: a worker that is
lost, or that a consumer cannot reach, loses its incomplete rounds, and only those. A consumer that
comes back begins where the others stand, which a roll call finds out (`roll_call`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from dataservice.dispatcher import events as ev
from dataservice.dispatcher import roll_call
from dataservice.dispatcher import round_events as facts
from dataservice.dispatcher.jobs import Iteration
from dataservice.dispatcher.requests import (
    Decision,
    OpenIteration,
    RoundsAnswer,
    SyncRounds,
)
from dataservice.dispatcher.round_table import RoundTable
from dataservice.dispatcher.state import DispatcherState
from dataservice.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    UnimplementedError,
)
from dataservice.vocabulary import (
    INFINITE_CARDINALITY,
    IterationId,
    ShardingPolicy,
    WorkerId,
)

# A worker computes this many rounds ahead, so all workers compute while one of them is read.
BLOCK_ROUNDS: Final = 8
# The most rounds beyond the low-water mark that a consumer may ask for.
MAX_WINDOW: Final = 1_024


def check_request(request: OpenIteration, cardinality: int) -> None:
    """Raises if a coordinated read is requested with a wrong consumer, dataset or option."""
    options = request.options
    if not options.num_consumers:
        return
    if request.job_name is None:
        raise InvalidArgumentError(
            "coordinated reads (num_consumers) need a job_name, by which the consumers meet"
        )
    if not 0 <= request.consumer_index < options.num_consumers:
        raise FailedPreconditionError(
            f"consumer_index must be from 0 to num_consumers - 1, got "
            f"{request.consumer_index} of {options.num_consumers}"
        )
    if request.policy is not ShardingPolicy.OFF:
        raise UnimplementedError(
            f"coordinated reads are not offered with ShardingPolicy.{request.policy.name}; use "
            "ShardingPolicy.OFF, under which each worker runs the endless dataset"
        )
    if options.target_workers == "LOCAL":
        raise InvalidArgumentError(
            "Coordinated reads require non-local workers; use target_workers='AUTO'"
        )
    for wrong, is_given in (
        ("ordered=True", options.ordered),
        ("on_error='skip'", options.on_error == "skip"),
    ):
        if is_given:
            raise InvalidArgumentError(
                f"coordinated reads (num_consumers) cannot be combined with {wrong}"
            )
    if cardinality != INFINITE_CARDINALITY:
        raise FailedPreconditionError(
            "Round robin reads require that the input dataset has infinite cardinality, but the "
            f"dataset has cardinality {cardinality}. Consider adding a `.repeat()` transformation "
            "to the dataset"
        )


def join(
    table: RoundTable | None, request: OpenIteration, iteration_id: IterationId
) -> tuple[list[ev.Event], list[ev.Event]]:
    """Returns the facts before and after a reader joins; its index's earlier reader is fenced."""
    if not request.options.num_consumers:
        return [], []
    index = request.consumer_index
    before: list[ev.Event] = []
    first_round = 0
    if table is not None:
        first_round = roll_call.first_round(table, index)
        if index in table.members:
            reason = f"another reader joined as consumer_index {index} of {table.num_consumers}"
            before.append(ev.ReaderLost(reader_id=table.members[index], reason=reason))
    joined = facts.ConsumerJoined(
        iteration_id=iteration_id,
        reader_id=request.reader_id,
        consumer_index=index,
        first_round=first_round,
    )
    return before, [joined]


def table_of(iteration: Iteration) -> RoundTable:
    """Returns the iteration's rounds; FailedPreconditionError if its reads are not coordinated."""
    if iteration.rounds is None:
        raise FailedPreconditionError(
            f"the reads of {iteration.iteration_id} are not coordinated; join with num_consumers"
        )
    return iteration.rounds


def sync(state: DispatcherState, request: SyncRounds) -> Iterator[Decision]:
    """Yields the decisions about a request, each from the state with the earlier ones applied."""
    table = table_of(state.iterations[request.iteration_id])
    yield mark(state, request)
    is_lost = True
    while is_lost:
        decision = replace_lost(state, request)
        is_lost = bool(decision.events)
        yield decision
    yield roll_call.call(state, request.iteration_id, table)
    yield roll_call.align(state, request.iteration_id, table)
    yield assign(state, request)


def mark(state: DispatcherState, request: SyncRounds) -> Decision:
    """Records how far a consumer is.

    Rounds that it received under an older version may be void and do not count.
    """
    table = table_of(state.iterations[request.iteration_id])
    index = table.index_of(request.reader_id)
    _check_marks(table, index, request)
    received = request.received if request.version == table.version else request.consumed
    received = max(received, request.consumed)
    has_stopped = request.roll == table.roll > table.stopped[index]
    has_more = received > table.received[index] or request.consumed > table.consumed[index]
    if not has_more and not has_stopped:
        return Decision(())
    marked = facts.RoundsMarked(
        iteration_id=request.iteration_id,
        consumer_index=index,
        received=received,
        consumed=request.consumed,
        roll=table.roll if has_stopped else 0,
    )
    return Decision((marked,))


def _check_marks(table: RoundTable, index: int, request: SyncRounds) -> None:
    may_consume = max(table.complete, table.consumed[index], request.sought)
    may_receive = max(table.end, may_consume)
    if not 0 <= request.consumed <= may_consume or request.received > may_receive:
        raise InvalidArgumentError(
            f"consumer {index} says that it consumed rounds below {request.consumed} and received "
            f"those below {request.received}, of {may_consume} and {may_receive}"
        )


def replace_lost(state: DispatcherState, request: SyncRounds) -> Decision:
    """Reassigns the incomplete rounds of one worker that is lost or unreachable, if there is one.

    Must be repeated until it yields no facts. Rounds of an unreachable worker never go to another
    unreachable worker, or the two would pass them to each other for ever; they stay until one of
    the two is lost or heard of again, or a new worker comes.
    """
    iteration = state.iterations[request.iteration_id]
    table = table_of(iteration)
    broken = request.broken_worker_ids
    for worker_id in _lost(state, table, broken):
        without = broken if worker_id in state.workers else ()
        lost = table.lost_rounds(worker_id)
        parts = tuple(_deal(state, table, lost, without))
        is_suspect = worker_id in state.workers and _has_others(state, worker_id)
        if parts or (is_suspect and worker_id not in table.suspects and not lost):
            reassigned = facts.RoundsReassigned(
                iteration_id=iteration.iteration_id,
                worker_id=worker_id,
                suspect=is_suspect,
                parts=parts,
            )
            return Decision((reassigned,))
    return Decision(())


def _lost(
    state: DispatcherState, table: RoundTable, broken: Collection[WorkerId]
) -> Iterator[WorkerId]:
    givers = dict.fromkeys(block.worker_id for block in table.blocks if block.end > table.complete)
    yield from (worker_id for worker_id in givers if worker_id not in state.workers)
    yield from (worker_id for worker_id in broken if worker_id in state.workers)


def _has_others(state: DispatcherState, worker_id: WorkerId) -> bool:
    return any(other != worker_id for other in state.workers)


def assign(state: DispatcherState, request: SyncRounds) -> Decision:
    """Assigns the rounds that a consumer may ask for and no worker gives yet, block by block."""
    table = table_of(state.iterations[request.iteration_id])
    wanted = table.low + min(max(1, request.window), MAX_WINDOW)
    first = max(table.end, table.low)
    ranges = [(at, at + BLOCK_ROUNDS) for at in range(first, wanted, BLOCK_ROUNDS)]
    parts = tuple(_deal(state, table, ranges, ()))
    if not parts:
        return Decision(())
    return Decision((facts.RoundsAssigned(iteration_id=request.iteration_id, parts=parts),))


def _deal(
    state: DispatcherState,
    table: RoundTable,
    ranges: list[tuple[int, int]],
    without: Collection[WorkerId],
) -> Iterator[tuple[int, int, WorkerId]]:
    """Yields the ranges with a worker for each, round robin; nothing if no worker is left."""
    if not ranges:
        return  # as in most calls, which then need not walk through all workers
    live = [worker_id for worker_id in state.workers if worker_id not in without]
    chosen = [worker_id for worker_id in live if worker_id not in table.suspects] or live
    if chosen:
        for turn, (first, end) in enumerate(ranges, table.turns):
            yield first, end, chosen[turn % len(chosen)]


def answer(state: DispatcherState, request: SyncRounds) -> RoundsAnswer:
    """Answers a consumer, from the state to which the facts of its request have been applied."""
    table = table_of(state.iterations[request.iteration_id])
    index = table.index_of(request.reader_id)
    begin = table.consumed[index]
    late = {i for i in table.members if table.received[i] < table.received[index]}
    late |= set(table.absent()) & set(table.members) - {index}
    return RoundsAnswer(
        blocks=tuple(block for block in table.blocks if block.end > begin),
        version=table.version,
        complete=_may_take(table, begin),
        low=table.low,
        begin=begin,
        missing=table.missing(),
        late=tuple(sorted(late)),
        roll=table.roll,
    )


def _may_take(table: RoundTable, begin: int) -> int:
    """Returns the end of the rounds that a consumer at ``begin`` may hand out.

    No consumer goes on before all have stopped for a roll call, or before a consumer that came back
    has received what the others have: it begins where they stand, so they must still stand there.
    While a consumer is missing, the others get as far as it was when it left, and no further.
    """
    if table.is_calling_roll:
        return begin
    left_at = [table.consumed[index] for index in table.missing()]
    return max(begin, min([*table.received, *left_at]))


def trust(
    state: DispatcherState, worker_id: WorkerId, iteration_ids: Collection[IterationId]
) -> Decision:
    """Trusts a suspect worker again in the iterations that its heartbeat says it works on."""
    return Decision(
        tuple(
            facts.WorkerTrusted(iteration_id=iteration_id, worker_id=worker_id)
            for iteration_id in iteration_ids
            if (iteration := state.iterations.get(iteration_id)) is not None
            and iteration.rounds is not None
            and worker_id in iteration.rounds.suspects
        )
    )
