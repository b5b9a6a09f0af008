"""Failures and cancellations of closures, passed on to those that depend on their values.

Pure. Who needs the value of one that failed has failed too; who needs that of one that nobody wants
any more just ends. With nobody else ends what counts already: a closure of which a part is made,
and one that runs again after a restore, of whose value the program was told. Invariant: each
closure is named once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pstrain.coordinator import events as ev
from pstrain.coordinator.state import CoordinatorState


def failures(state: CoordinatorState, closures: Sequence[int]) -> Iterator[ev.Event]:
    """These have failed, and those that need their values; others that wait are cancelled."""
    needing = list(state.inputs.needing(closures))
    yield from (ev.ClosureFailed(closure=closure) for closure in closures)
    yield from (ev.ClosureFailed(closure=closure, input=each) for closure, each in needing)
    ended = {*closures, *(closure for closure, _ in needing)}
    yield from (event for event in others_waiting(state) if event.closure not in ended)


def unwanted(
    state: CoordinatorState, closures: Sequence[int], reason: ev.Reason | None = None
) -> Iterator[ev.Event]:
    """These end as their program wants it, for the reason that it gave, and who needs them."""
    for closure in closures:
        yield ev.ClosureCancelled(closure=closure, reason=reason or state.cancelling[closure])
    for closure, each in state.inputs.needing(closures):
        yield ev.ClosureCancelled(closure=closure, reason=ev.Reason.INPUT, input=each)


def others_waiting(state: CoordinatorState) -> Iterator[ev.ClosureCancelled]:
    """When one has failed, those that wait are cancelled, but for those that count."""
    return (event for event in all_waiting(state) if not has_counted(state, event.closure))


def has_counted(state: CoordinatorState, closure: int) -> bool:
    """Whether its program would be wrong to think that nothing of it is applied."""
    return closure in state.told or closure in state.parts


def all_waiting(state: CoordinatorState) -> Iterator[ev.ClosureCancelled]:
    """All that wait are cancelled."""
    queues: tuple[Iterable[int], ...] = (state.waiting, *state.bound_waiting.values(), state.inputs)
    return (ev.ClosureCancelled(closure=closure) for queue in queues for closure in queue)
