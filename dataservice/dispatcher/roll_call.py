"""Roll calls of coordinated reads: all consumers stop, say how far they are, and go on in step.

Pure, like `rounds`. The dispatcher's knowledge of how far consumers are is always a little old, as
a consumer that holds complete rounds may hand them out without asking. So if a consumer comes back,
or if complete rounds are lost that a consumer still needs, all consumers are stopped first.
Invariants: no consumer is told to go on before all have said where they stand; a consumer that came
back begins with the first round that one of those who stayed has yet to hand out; a consumer that
is ahead stays as many steps ahead.
"""

from __future__ import annotations

from collections.abc import Iterator

from dataservice.dispatcher import round_events as facts
from dataservice.dispatcher.requests import Decision
from dataservice.dispatcher.round_table import RoundTable
from dataservice.dispatcher.state import DispatcherState
from dataservice.vocabulary import IterationId


def first_round(table: RoundTable, index: int) -> int:
    """Returns the provisional first round of a consumer that joins, a lower bound of the final one.

    If no consumer has stayed, all begin at the round of the consumer that was furthest.
    """
    stayed = [table.consumed[i] for i in _stayed(table) if i != index]
    return min(stayed) if stayed else max(table.consumed)


def _stayed(table: RoundTable) -> Iterator[int]:
    """Yields the consumers that are there and did not join since the last alignment."""
    return (index for index in table.members if index not in table.newcomers)


def call(state: DispatcherState, iteration_id: IterationId, table: RoundTable) -> Decision:
    """Calls the roll if complete rounds are lost that a consumer which came back still lacks."""
    if table.is_calling_roll or _end_of_lost(state, table) <= min(table.received):
        return Decision(())
    return Decision((facts.RollCalled(iteration_id=iteration_id),))


def align(state: DispatcherState, iteration_id: IterationId, table: RoundTable) -> Decision:
    """Lets all consumers go on once all of them are there and have stopped."""
    if not table.is_calling_roll or table.missing() or table.absent():
        return Decision(())
    begins = _begins(table)
    # All consumers skip the same number of rounds, so that one that is ahead stays as far ahead.
    left_out = max(0, _end_of_lost(state, table) - min(begins))
    begins = [begin + left_out for begin in begins]
    return Decision((facts.RoundsAligned(iteration_id=iteration_id, begins=tuple(begins)),))


def _begins(table: RoundTable) -> list[int]:
    """Returns the round at which each consumer goes on, before lost rounds are skipped."""
    stayed = list(_stayed(table))
    # A newcomer goes beyond the rounds that the others have handed out only if it was told to.
    first = max((table.consumed[index] for index in table.newcomers), default=0)
    if stayed:
        first = max(first, min(table.consumed[index] for index in stayed))
    return [max(first, consumed) for consumed in table.consumed]


def _end_of_lost(state: DispatcherState, table: RoundTable) -> int:
    """Returns the end of the complete rounds of lost workers that a consumer lacks; 0 if none."""
    behind = min(table.received)
    lost = (
        min(block.end, table.complete)
        for block in table.blocks
        if block.worker_id not in state.workers and block.first < table.complete
    )
    return max((end for end in lost if end > behind), default=0)
