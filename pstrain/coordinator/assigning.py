"""Decides which closures start, and where: in queue order, as the rule of consistency allows.

Pure, as `decide` is. If the rule allows any start, a closure starts where fewest run. Short
closures are also sent ahead, to wait at the trainers; but not a closure that ran before, so that
one which kills its trainers takes few others with it, and not to a trainer that has only begun,
whose first run may take long. Invariant: a closure starts only where it may run, and in its turn
among those that may start there.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from pstrain.consistency import Ssp, Sync
from pstrain.coordinator import events as ev
from pstrain.coordinator import exhausted, rounds
from pstrain.coordinator.state import CoordinatorState, Trainer


def _as_slots(closure: int) -> int:  # noqa: ARG001
    return 0


def assign(state: CoordinatorState, ahead: Callable[[int], int] = _as_slots) -> ev.Events:
    """Starts waiting closures in queue order.

    ``ahead``: how many closures a trainer may hold, this one included; 0: only as it has slots.
    """
    if not (state.waiting or state.bound_waiting):
        return ()
    if state.holds and (not isinstance(state.consistency, Sync) or state.is_quiet):
        return ()  # a round that has begun needs its other closures to end
    if state.exhausted_on and exhausted.spent(state):
        return ()
    match state.consistency:
        case Sync() as rule:
            return _starts(state, rounds.next_trainers(state, rule))
        case Ssp() as rule:
            return _starts(state, _near_the_slowest(state, rule))
    started = _starts(state, state.free)
    more = _ahead(state, started, ahead) if len(started) == len(state.free) else ()
    bound = _bound_ahead(state, started, ahead) if state.bound_waiting else ()
    return (*started, *more, *bound)


def _starts(state: CoordinatorState, trainers: Iterable[int]) -> tuple[ev.ClosureStarted, ...]:
    """Starts the first closures in the queue, one on each of these trainers."""
    if state.bound_waiting or state.exhausted_on:
        return tuple(_starts_one_by_one(state, list(trainers)))
    return tuple(
        ev.ClosureStarted(closure=closure, trainer=trainer, attempt=state.attempts[closure])
        for closure, trainer in zip(state.waiting, trainers, strict=False)
    )


def _starts_one_by_one(
    state: CoordinatorState, trainers: Sequence[int]
) -> Iterator[ev.ClosureStarted]:
    """Starts, on each free slot, the first closure that may run there.

    Closures bound to a trainer may use any of its slots, others only those in ``trainers``.
    Trainers without bound closures come first, so that closures which any trainer may run leave the
    other trainers to closures that need them.
    """
    bound = state.bound_waiting
    free = sorted(state.free, key=bound.__contains__) if bound else trainers
    for_all = Counter(trainers)
    others = list(islice(state.waiting, len(free) + len(state.exhausted_on)))
    own = {t: deque(islice(queue, len(free))) for t, queue in bound.items()}
    for trainer in free:
        mine = own.get(trainer)
        first = exhausted.first_for(state, others, trainer) if for_all[trainer] else None
        candidates = (mine[0] if mine else None, first)
        closure = min((c for c in candidates if c is not None), key=state.rank, default=None)
        if closure is None:
            continue
        if mine and closure == mine[0]:
            mine.popleft()
        else:
            for_all[trainer] -= 1
            others.remove(closure)
        yield ev.ClosureStarted(closure=closure, trainer=trainer, attempt=state.attempts[closure])


def _ahead(
    state: CoordinatorState, started: Sequence[ev.ClosureStarted], ahead: Callable[[int], int]
) -> Iterator[ev.ClosureStarted]:
    """Sends short closures ahead, beyond the slots, each to the trainer that has fewest."""
    loads: dict[int, int] | None = None
    begun = sum(event.closure not in state.bound for event in started)
    for closure in islice(state.waiting, begun, None):
        most = 0 if state.attempts[closure] else ahead(closure)
        if not most:
            return
        if loads is None:
            loads = _loads(state, started)
        trainer = min(loads, key=loads.__getitem__, default=None)
        if trainer is None or loads[trainer] >= most:
            return
        loads[trainer] += 1
        yield ev.ClosureStarted(closure=closure, trainer=trainer, attempt=0)


def _loads(state: CoordinatorState, started: Sequence[ev.ClosureStarted]) -> dict[int, int]:
    """Returns how many closures trainers have, ``started`` included, that may get some ahead.

    Leaves out trainers that closures are bound to and wait for, and those at the end of their data.
    """
    at_end: set[int] = set().union(*state.exhausted_on.values())
    starts = Counter(event.trainer for event in started)
    return {
        index: len(trainer.running) + starts[index]
        for index, trainer in state.trainers.items()
        if _is_warm(trainer) and index not in state.bound_waiting and index not in at_end
    }


def _is_warm(trainer: Trainer) -> bool:
    """True if a trainer is live and has ended as many closures as it takes at a time."""
    return not trainer.is_silenced and trainer.ended >= trainer.slots


def _bound_ahead(
    state: CoordinatorState, started: Sequence[ev.ClosureStarted], ahead: Callable[[int], int]
) -> Iterator[ev.ClosureStarted]:
    """As :func:`_ahead`, for bound closures; stops at those behind a closure for any trainer."""
    if state.exhausted_on:
        return
    begun = {event.closure for event in started}
    others = islice(state.waiting, len(begun) + 1)
    first = next((state.rank(closure) for closure in others if closure not in begun), None)
    starts = Counter(event.trainer for event in started)
    bound = Counter(event.trainer for event in started if event.closure in state.bound)
    for trainer, queue in state.bound_waiting.items():
        known = state.trainers.get(trainer)
        if known is None or not _is_warm(known):
            continue
        load = len(known.running) + starts[trainer]
        for closure in islice(queue, bound[trainer], None):
            most = 0 if state.attempts[closure] else ahead(closure)
            if load >= most or (first is not None and first < state.rank(closure)):
                break
            load += 1
            yield ev.ClosureStarted(closure=closure, trainer=trainer, attempt=0)


def _near_the_slowest(state: CoordinatorState, rule: Ssp) -> list[int]:
    """Returns the trainer of each slot that ``rule`` lets be used, those with fewest first."""
    chosen: list[int] = []
    slowest = exhausted.slowest(state)
    running = {index: len(trainer.running) for index, trainer in state.trainers.items()}
    for trainer in state.free:
        if rule.may_start(state.trainers[trainer].clock, running[trainer], slowest):
            running[trainer] += 1
            chosen.append(trainer)
    return chosen
