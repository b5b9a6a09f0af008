"""Failures and cancellations of closures, passed on to those that depend on their values.

Pure. A closure that needs the value of a failed one fails too; one that needs the value of a
cancelled one is cancelled. A failure does not cancel closures that count already: those of which a
part is committed, and those that run again after a restore although the program has their values.
Invariant: each closure is named once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pstrain.coordinator import events as ev
from pstrain.coordinator.state import CoordinatorState


def failures(state: CoordinatorState, closures: Sequence[int]) -> Iterator[ev.Event]:
    """Fails ``closures`` and those that need their values; cancels all others that wait."""
    dependants = list(state.queues.dependencies.dependants_of(closures))
    yield from (ev.ClosureFailed(closure=closure) for closure in closures)
    yield from (ev.ClosureFailed(closure=closure, input=each) for closure, each in dependants)
    ended = {*closures, *(closure for closure, _ in dependants)}
    yield from (event for event in cancellations_of_others(state) if event.closure not in ended)


def cancellations(
    state: CoordinatorState, closures: Sequence[int], reason: ev.Reason | None = None
) -> Iterator[ev.Event]:
    """Cancels ``closures``, as their program asked, and the closures that need their values."""
    for closure in closures:
        yield ev.ClosureCancelled(closure=closure, reason=reason or state.cancelling[closure])
    for closure, each in state.queues.dependencies.dependants_of(closures):
        yield ev.ClosureCancelled(closure=closure, reason=ev.Reason.INPUT, input=each)


def failures_and_cancellations(
    state: CoordinatorState, failed: Sequence[int], cancelled: Sequence[int]
) -> Iterator[ev.Event]:
    """Fails closures, and cancels others as their program asked; either may be none."""
    if not failed:
        yield from cancellations(state, cancelled)
        return
    # Closures that need a cancelled one wait, so the failures cancel them with all others.
    yield from failures(state, failed)
    for closure in cancelled:
        yield ev.ClosureCancelled(closure=closure, reason=state.cancelling[closure])


def cancellations_of_others(state: CoordinatorState) -> Iterator[ev.ClosureCancelled]:
    """Cancels all closures that wait, as one has failed, except those that count already."""
    return (event for event in cancellations_of_all(state) if not has_counted(state, event.closure))


def has_counted(state: CoordinatorState, closure: int) -> bool:
    """True if a part of the closure is committed, or the program has its value already."""
    return closure in state.reported or closure in state.parts


def cancellations_of_all(state: CoordinatorState) -> Iterator[ev.ClosureCancelled]:
    """Cancels all closures that wait."""
    return (ev.ClosureCancelled(closure=closure) for closure in state.queues)
