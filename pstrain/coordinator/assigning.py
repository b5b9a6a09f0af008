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
from heapq import heapify, heappop, heappush
from itertools import islice

from pstrain.consistency import Ssp, Sync
from pstrain.coordinator import events as ev
from pstrain.coordinator import exhausted, rounds
from pstrain.coordinator.free_slots import FreeSlots
from pstrain.coordinator.near_slots import NearSlots
from pstrain.coordinator.run_times import AHEAD_MAX
from pstrain.coordinator.state import CoordinatorState, Trainer


def _as_slots(closure: int) -> int:  # noqa: ARG001
    return 0


def assign(
    state: CoordinatorState,
    ahead: Callable[[int], int] = _as_slots,
    ahead_max: int = AHEAD_MAX,
) -> ev.Events:
    """Starts waiting closures in queue order.

    While ends of data are known, these are only closures that need the same data as the first: the
    next decision may start more. ``ahead``: how many closures a trainer may hold, this one
    included; 0: only as it has slots; never more than ``ahead_max``.
    """
    if not (state.waiting or state.queues.bound_waiting):
        return ()
    if state.holds and (not isinstance(state.consistency, Sync) or state.is_quiet):
        return ()  # a round that has begun needs its other closures to end
    if state.ends.trainers and exhausted.any_spent(state):
        return ()
    free = exhausted.slots(state)
    match state.consistency:
        case Sync() as rule:
            return _starts(state, rounds.next_trainers(state, rule))
        case Ssp() as rule:
            return _starts(state, _near_the_slowest(state, rule, free))
    started = _starts(state, free)
    is_all = free is state.free
    used = len(started) if is_all else sum(free.has(event.trainer) for event in started)
    more = _ahead(state, free, started, ahead) if used == len(free) else ()
    bound = _bound_ahead(state, started, ahead, ahead_max) if state.queues.bound_waiting else ()
    return (*started, *more, *bound)


def _starts(state: CoordinatorState, trainers: Iterable[int]) -> tuple[ev.ClosureStarted, ...]:
    """Starts the first closures in the queue, one on each of these trainers."""
    if state.queues.bound_waiting:
        return tuple(_starts_one_by_one(state, list(trainers) if state.waiting else []))
    return tuple(
        ev.ClosureStarted(closure=closure, trainer=trainer, attempt=state.attempts[closure])
        for closure, trainer in zip(exhausted.leading(state), trainers, strict=False)
    )


def _starts_one_by_one(
    state: CoordinatorState, trainers: Sequence[int]
) -> Iterator[ev.ClosureStarted]:
    """Starts, on each free slot, the first closure that may run there.

    Closures bound to a trainer may use any of its slots, others only those in ``trainers``.
    Trainers without bound closures come first, so that closures which any trainer may run leave the
    other trainers to closures that need them.
    """
    bound = state.queues.bound_waiting
    free = [*(t for t in trainers if t not in bound), *state.free.among(bound)]
    for_all = Counter(trainers)
    others = deque(islice(exhausted.leading(state), len(trainers)))
    own: dict[int, deque[int]] = {}
    for trainer in free:
        if trainer in bound and trainer not in own:
            own[trainer] = deque(islice(bound[trainer], state.free.of(trainer)))
        mine = own.get(trainer)
        first = others[0] if others and for_all[trainer] else None
        candidates = (mine[0] if mine else None, first)
        closure = min((c for c in candidates if c is not None), key=state.queues.rank, default=None)
        if closure is None:
            continue
        if mine and closure == mine[0]:
            mine.popleft()
        else:
            for_all[trainer] -= 1
            others.popleft()
        yield ev.ClosureStarted(closure=closure, trainer=trainer, attempt=state.attempts[closure])


def _ahead(
    state: CoordinatorState,
    free: FreeSlots,
    started: Sequence[ev.ClosureStarted],
    ahead: Callable[[int], int],
) -> Iterator[ev.ClosureStarted]:
    """Sends short closures ahead, beyond the slots, each to the trainer that has fewest.

    ``free`` has the trainers that they may run on.
    """
    loads: _Loads | None = None
    begun = sum(event.closure not in state.queues.bound for event in started)
    for closure in islice(exhausted.leading(state), begun, None):
        most = 0 if state.attempts[closure] else ahead(closure)
        if not most:
            return
        loads = loads or _Loads(state, free, started)
        trainer = loads.take_below(most)
        if trainer is None:
            return
        yield ev.ClosureStarted(closure=closure, trainer=trainer, attempt=0)


class _Loads:
    """How many closures trainers have, ``started`` included, of those that may get some ahead.

    Leaves out trainers that are not in ``free``, and those that closures are bound to and wait for.
    Looks only at as many trainers as it is asked for: a decision follows each message.
    """

    def __init__(
        self, state: CoordinatorState, free: FreeSlots, started: Sequence[ev.ClosureStarted]
    ) -> None:
        def may_get_more(trainer: int) -> bool:
            is_open = trainer not in state.queues.bound_waiting and free.has(trainer)
            return is_open and _is_warm(state.trainers[trainer])

        starts = Counter(event.trainer for event in started)
        # A heap of the trainers whose loads differ from the state's.
        self._changed = [
            (len(state.trainers[trainer].running) + count, trainer)
            for trainer, count in starts.items()
            if may_get_more(trainer)
        ]
        heapify(self._changed)
        self._others = (
            (load, trainer)
            for load, trainer in free.by_use()
            if trainer not in starts and may_get_more(trainer)
        )
        self._next = next(self._others, None)

    def take_below(self, most: int) -> int | None:
        """Returns the trainer that has fewest, which has one more then; None if it has ``most``."""
        first = self._changed[0] if self._changed else None
        if self._next is None or (first is not None and first <= self._next):
            if first is None or first[0] >= most:
                return None
            load, trainer = heappop(self._changed)
        elif self._next[0] >= most:
            return None
        else:
            load, trainer = self._next
            self._next = next(self._others, None)
        heappush(self._changed, (load + 1, trainer))
        return trainer


def _is_warm(trainer: Trainer) -> bool:
    """True if a trainer is live and has ended as many closures as it takes at a time."""
    return not trainer.is_silenced and trainer.ended >= trainer.slots


def _bound_ahead(
    state: CoordinatorState,
    started: Sequence[ev.ClosureStarted],
    ahead: Callable[[int], int],
    ahead_max: int,
) -> Iterator[ev.ClosureStarted]:
    """As :func:`_ahead`, for bound closures; stops at those behind a closure for any trainer."""
    begun = {event.closure for event in started}
    others = islice(state.waiting, len(begun) + 1)
    first = next((state.queues.rank(closure) for closure in others if closure not in begun), None)
    starts = Counter(event.trainer for event in started)
    bound = Counter(event.trainer for event in started if event.closure in state.queues.bound)
    for trainer in state.free.using_below(ahead_max, state.queues.bound_waiting):
        known = state.trainers[trainer]
        if not _is_warm(known):
            continue
        load = len(known.running) + starts[trainer]
        for closure in islice(state.queues.bound_waiting[trainer], bound[trainer], None):
            most = 0 if state.attempts[closure] else ahead(closure)
            if load >= most or (first is not None and first < state.queues.rank(closure)):
                break
            load += 1
            yield ev.ClosureStarted(closure=closure, trainer=trainer, attempt=0)


def _near_the_slowest(state: CoordinatorState, rule: Ssp, free: FreeSlots) -> Iterator[int]:
    """Yields the trainer of each slot that ``rule`` lets be used, those with fewest first."""
    slowest = state.clocks.slowest
    chosen: Counter[int] = Counter()
    for index in free.near if isinstance(free, NearSlots) else free:
        running = len(state.trainers[index].running) + chosen[index]
        if rule.may_start(state.clocks[index], running, slowest):
            chosen[index] += 1
            yield index
