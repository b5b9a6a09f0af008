"""Roll calls of coordinated reads: all consumers stop, say how far they are, and go on in step.

Pure, like `rounds`. What the dispatcher knows of how far consumers are is always a little old, and
who holds complete rounds may hand them out without asking. So where a consumer comes back, or
where complete rounds are lost that one of them still needs, all are stopped first. Invariants:
nobody is told to go on before all have said where they stand; who came back begins with the first
round that one of those who stayed has yet to hand out; nobody gives up the steps that it is ahead.
"""

from __future__ import annotations

from collections.abc import Iterator

from dataservice.dispatcher import round_events as facts
from dataservice.dispatcher.requests import Decision
from dataservice.dispatcher.round_table import RoundTable
from dataservice.dispatcher.state import DispatcherState
from dataservice.vocabulary import IterationId


def first_round(table: RoundTable, index: int) -> int:
    """Where a consumer that joins seems to begin: at most where it will turn out to.

    If nobody has stayed, all begin where the one was that was furthest.
    """
    stayed = [table.consumed[i] for i in _stayed(table) if i != index]
    return min(stayed) if stayed else max(table.consumed)


def _stayed(table: RoundTable) -> Iterator[int]:
    """Readers that were told before where to go on."""
    return (index for index in table.members if index not in table.newcomers)


def call(state: DispatcherState, iteration_id: IterationId, table: RoundTable) -> Decision:
    """Stops all where complete rounds are lost that a consumer lacks, since it came back."""
    if table.is_calling_roll or _end_of_lost(state, table) <= min(table.received):
        return Decision(())
    return Decision((facts.RollCalled(iteration_id=iteration_id),))


def align(state: DispatcherState, iteration_id: IterationId, table: RoundTable) -> Decision:
    """Lets all go on, once everybody is there and has stopped."""
    if not table.is_calling_roll or table.missing() or table.absent():
        return Decision(())
    begins = _begins(table)
    # One that is ahead leaves out as many rounds as the others: it must stay as many steps ahead.
    left_out = max(0, _end_of_lost(state, table) - min(begins))
    begins = [begin + left_out for begin in begins]
    return Decision((facts.RoundsAligned(iteration_id=iteration_id, begins=tuple(begins)),))


def _begins(table: RoundTable) -> list[int]:
    """Where each goes on as far as that depends on the others."""
    stayed = list(_stayed(table))
    # Beyond what the others have handed out only if it was told to go on there.
    first = max((table.consumed[index] for index in table.newcomers), default=0)
    if stayed:
        first = max(first, min(table.consumed[index] for index in stayed))
    return [max(first, consumed) for consumed in table.consumed]


def _end_of_lost(state: DispatcherState, table: RoundTable) -> int:
    """The end of the complete rounds that a consumer lacks and whose worker is lost, else 0."""
    behind = min(table.received)
    lost = (
        min(block.end, table.complete)
        for block in table.blocks
        if block.worker_id not in state.workers and block.first < table.complete
    )
    return max((end for end in lost if end > behind), default=0)
