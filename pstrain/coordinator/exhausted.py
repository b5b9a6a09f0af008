"""Closures that met the end of their trainer's data, and wait for a trainer that may have some.

What one trainer's reader holds is given to no other, so data is used up only when all readers have
ended. What a lost trainer had not used becomes available to all others again, even those at their
end: ends that were met before the loss do not count. Pure. Invariant: no closure waits for a
trainer that is not live. Once all live trainers are at their end, nothing starts until all that
runs has ended, because a trainer may still be lost; then the waiting closures end.
"""

from __future__ import annotations

from collections.abc import Iterable

from pstrain.coordinator import events as ev
from pstrain.coordinator.propagation import failures
from pstrain.coordinator.state import CoordinatorState


def spent(state: CoordinatorState) -> list[int]:
    """Returns the waiting closures that have met the end on every trainer."""
    live = state.trainers.keys()
    return [c for c, met in state.exhausted_on.items() if met >= live and c in state.waiting]


def end_spent(state: CoordinatorState) -> ev.Events:
    """Fails spent closures once nothing runs; one whose value the program has ends as before."""
    if not state.is_settled or state.holds:
        return ()
    closures = spent(state)
    known = (ev.ClosureFinished(closure=c) for c in closures if c in state.reported)
    own = [c for c in closures if c not in state.reported]
    return (*known, *(failures(state, own) if own else ()))


def first_for(state: CoordinatorState, queue: Iterable[int], trainer: int) -> int | None:
    """Returns the first closure in the queue that may start on ``trainer``.

    Closures that met the end there are overtaken only by closures that met an end elsewhere: most
    of the rest of the queue would meet the end there too.
    """
    is_overtaking = False
    for closure in queue:
        met = state.exhausted_on.get(closure)
        if met is None:
            return None if is_overtaking else closure
        if trainer not in met:
            return closure
        is_overtaking = True
    return None


def shunned(state: CoordinatorState) -> set[int]:
    """Returns the trainers on which the first closure in the queue met the end."""
    if not state.exhausted_on or not state.waiting:
        return set()
    return state.exhausted_on.get(state.waiting.first, set())


def slowest(state: CoordinatorState) -> int:
    """Returns the least clock of live trainers, leaving out shunned ones with nothing to run."""
    idle = {t for t in shunned(state) if all(c in state.bound for c in state.trainers[t].running)}
    clocks = (t.clock for i, t in state.trainers.items() if not t.is_silenced and i not in idle)
    return min(clocks, default=state.slowest)
