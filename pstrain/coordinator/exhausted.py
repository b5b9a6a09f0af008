"""Where closures may start once trainers have met the end of their data, and when these end.

What one trainer's reader holds is given to no other, so data is used up only when all readers have
ended. A closure that met an end waits for a trainer that has not met it. So does a closure that has
not run yet, if all iterators among its arguments have ended somewhere; once they have ended
everywhere it runs on any trainer, as it may not need them. What a lost trainer had not used becomes
available to all others again, even those at their end: ends that were met before its release do not
count. Pure. Invariant: no closure waits for a trainer that is not live, and none starts where
another met an end that it would meet too. Once all live trainers are at their end, nothing starts
until all that runs has ended, because a trainer may still be lost; then the waiting closures end.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from pstrain.coordinator import events as ev
from pstrain.coordinator.free_slots import FreeSlots
from pstrain.coordinator.propagation import failures
from pstrain.coordinator.state import CoordinatorState


def spent(state: CoordinatorState) -> Iterator[int]:
    """Yields the waiting closures that met an end, of data that have ended on every trainer."""
    for needs, closures in state.ends.waiting():
        if len(state.ends.at_end(needs)) == len(state.trainers):
            yield from closures


def any_spent(state: CoordinatorState) -> bool:
    """True if a closure is spent: then nothing starts any more."""
    return next(spent(state), None) is not None


def end_spent(state: CoordinatorState) -> ev.Events:
    """Fails spent closures once nothing runs; one whose value the program has ends as before."""
    if not state.is_settled or state.holds:
        return ()
    closures = sorted(spent(state))
    known = (ev.ClosureFinished(closure=c) for c in closures if c in state.reported)
    own = [c for c in closures if c not in state.reported]
    return (*known, *(failures(state, own) if own else ()))


def slots(state: CoordinatorState) -> FreeSlots:
    """Returns the free slots that the first closure in the queue may use."""
    if not state.ends.trainers or not state.waiting:
        return state.free
    needs = state.ends.needs_of(state.waiting.first)
    if len(state.ends.at_end(needs)) == len(state.trainers):
        return state.free
    return state.ends.slots_elsewhere(needs)


def leading(state: CoordinatorState) -> Iterable[int]:
    """Returns the closures at the head of the queue that may use the same slots as the first."""
    if not state.ends.trainers or not state.waiting:
        return state.waiting
    needs = state.ends.needs_of(state.waiting.first)
    return itertools.takewhile(lambda closure: state.ends.needs_of(closure) == needs, state.waiting)
