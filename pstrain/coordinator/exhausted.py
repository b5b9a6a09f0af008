"""Closures that met the end of their trainer's data, and wait for a trainer that may have some.

What one trainer's reader still holds no other is given, so data are used up only when all readers
have ended. What a lost trainer had not used is there again for all, at their end or not: ends that
were met before count for nothing then. Pure. Invariant: nobody waits for a trainer that is not
live; where all live ones are at their end, nothing starts until what runs has ended, for its
trainer may be lost yet, and then the end is the closure's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pstrain.coordinator import events as ev
from pstrain.coordinator.ends import failures
from pstrain.coordinator.state import CoordinatorState


def spent(state: CoordinatorState) -> list[int]:
    """Those that wait and have met the end on every trainer."""
    live = state.trainers.keys()
    return [c for c, met in state.ends.items() if met >= live and c in state.waiting]


def end_spent(state: CoordinatorState) -> Iterator[ev.Event]:
    """They fail once nothing runs; one of whose value the program was told ends as it did."""
    if not state.ends or not state.is_settled or state.holds:
        return
    closures = spent(state)
    yield from (ev.ClosureFinished(closure=c) for c in closures if c in state.told)
    own = [c for c in closures if c not in state.told]
    if own:
        yield from failures(state, own)


def first_for(state: CoordinatorState, queue: Iterable[int], trainer: int) -> int | None:
    """The first in the queue that may start there.

    Those that met the end there are overtaken only by others of their kind: of what follows, most
    would meet it too.
    """
    is_overtaking = False
    for closure in queue:
        met = state.ends.get(closure)
        if met is None:
            return None if is_overtaking else closure
        if trainer not in met:
            return closure
        is_overtaking = True
    return None


def shunned(state: CoordinatorState) -> set[int]:
    """Trainers on which the first in the queue met the end."""
    if not state.ends or not state.waiting:
        return set()
    return state.ends.get(state.waiting.first, set())


def slowest(state: CoordinatorState) -> int:
    """The least clock of the live trainers, but for those with nothing to run: they never tick."""
    idle = {t for t in shunned(state) if all(c in state.bound for c in state.trainers[t].running)}
    clocks = (t.clock for i, t in state.trainers.items() if not t.is_silenced and i not in idle)
    return min(clocks, default=state.slowest)
