"""The invariants of the scheduler's state, checked after each step of a test.

Every index is compared with the records that it indexes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from pstrain.consistency import Ssp
from pstrain.coordinator.dependencies import Dependencies
from pstrain.coordinator.near_slots import NearSlots
from pstrain.coordinator.state import CoordinatorState


def check_invariants(state: CoordinatorState) -> None:
    """Raises AssertionError if two parts of the state contradict each other."""
    _check_places(state)
    _check_lines(state)
    _check_inputs(state)
    _check_trainers(state)
    _check_ends(state)


def _check_places(state: CoordinatorState) -> None:
    """Checks that each closure is in one place, and that other indexes name only such closures."""
    assert all(state.queues.bound_waiting.values())
    under_way = [state.running, state.round.prepared, state.round.decided]
    places: list[Iterable[int]] = [
        state.waiting,
        state.queues.dependencies,
        *state.queues.bound_waiting.values(),
        *under_way,
    ]
    known = [closure for place in places for closure in place]
    assert len(set(known)) == len(known)
    assert set(state.attempts) == set(known)
    assert set(state.parts) <= set(state.attempts)
    assert set(state.ended_runs) <= set(state.attempts)
    assert set(state.queues.priorities) <= set(state.attempts)
    assert set(state.ends.reads) <= set(state.attempts) - set(state.queues.bound)
    assert set(state.ends._needs) <= set(state.attempts) - set(state.queues.bound)
    assert set(state.queues.bound) <= set(state.attempts)
    assert set(state.round.old_rounds) <= set(state.attempts)
    assert state.reported <= set(state.attempts)
    assert set(state.cancelling) <= set().union(*under_way)


def _check_lines(state: CoordinatorState) -> None:
    for queue in (state.waiting, *state.queues.bound_waiting.values()):
        ranks = [state.queues.rank(closure)[0] for closure in queue]
        assert ranks == sorted(ranks)
        assert len(ranks) == len(queue)
    assert not set(state.queues.bound) & set(state.waiting)
    for index, queue in state.queues.bound_waiting.items():
        assert all(state.queues.bound[closure] == index for closure in queue)


def _check_inputs(state: CoordinatorState) -> None:
    check_dependencies(state.queues.dependencies)
    assert all(
        each in state.attempts
        for closure in state.queues.dependencies
        for each in state.queues.dependencies.of(closure)
    )
    assert +state.queues.bound_blocked == Counter(
        state.queues.bound[c] for c in state.queues.dependencies if c in state.queues.bound
    )


def _check_trainers(state: CoordinatorState) -> None:
    """Checks that running closures and their trainers agree, and that free slots add up."""
    for closure, run in state.running.items():
        assert closure in state.trainers[run.trainer].running
        assert run.trainer == state.queues.bound.get(closure, run.trainer)
    for run in state.round.prepared.values():
        assert not state.trainers[run.trainer].is_silenced
    by_trainer = {(c, i) for i, each in state.trainers.items() for c in each.prepared}
    assert by_trainer == {(c, run.trainer) for c, run in state.round.prepared.items()}
    for index, trainer in state.trainers.items():
        free = state.free.of(index)
        assert list(state.free).count(index) == free
        busy = len(trainer.running) + len(trainer.dropping)
        assert free == (0 if trainer.is_silenced else max(trainer.slots - busy, 0))
        assert all(state.running[c].trainer == index for c in trainer.running)
    assert set(state.free) <= set(state.trainers)
    live = {index for index, trainer in state.trainers.items() if not trainer.is_silenced}
    assert state.unsettled == state.trainers.keys() - live
    assert state.round.trainers.fresh.keys() == live - state.round.trainers.used.keys()
    _check_clocks(state, live)
    in_use = {index: used for used, index in state.free.by_use()}
    trainers = {index: state.trainers[index] for index in live}
    assert in_use == {i: len(each.running) + len(each.dropping) for i, each in trainers.items()}
    assert len(list(state.free)) == len(state.free)
    _check_near(state, live)
    assert state.holds >= 0


def _check_clocks(state: CoordinatorState, live: set[int]) -> None:
    """Checks that the slowest trainer is one that has something to run, or may get it."""
    assert live == {index for index in state.trainers if index in state.clocks}
    idle = {
        index
        for index in live & state.ends.trainers
        if all(closure in state.queues.bound for closure in state.trainers[index].running)
    }
    clocks = [state.clocks[index] for index in live - idle]
    assert state.clocks.slowest == min(clocks, default=state.clocks.slowest)


def _check_ends(state: CoordinatorState) -> None:
    """Checks that what is indexed by needs agrees with what was noted of trainers and closures."""
    ends = state.ends
    assert ends.trainers <= state.trainers.keys()
    assert ends.trainers == set().union(*ends._ended_on.values())
    waiting = {closure for _, closures in ends.waiting() for closure in closures}
    assert waiting == {c for c in ends._needs if c in state.waiting}
    for needs, closures in ends.waiting():
        assert closures
        assert all(ends._needs[closure] == needs for closure in closures)
    for needs, trainers in ends._at_end.items():
        assert trainers == set.intersection(*(ends._ended_on[each] for each in needs))
        elsewhere = [(used, t) for used, t in state.free.by_use() if t not in trainers]
        assert sorted(ends._elsewhere[needs].by_use()) == sorted(elsewhere)
        assert Counter(ends._elsewhere[needs]) == Counter(
            t for t in state.free if t not in trainers
        )


def _check_near(state: CoordinatorState, live: set[int]) -> None:
    """Checks that `ssp` finds all trainers with a free slot that may start a closure."""
    if not isinstance(state.consistency, Ssp):
        return
    slowest = state.clocks.slowest
    for free in (state.free, *state.ends._elsewhere.values()):
        assert isinstance(free, NearSlots)
        near = Counter(free.near)
        for index in live:
            running = len(state.trainers[index].running)
            is_near = state.consistency.may_start(state.clocks[index], running, slowest)
            assert near[index] == (free.of(index) if is_near else 0)


def check_dependencies(dependencies: Dependencies) -> None:
    """Raises AssertionError if the two indexes disagree."""
    missing = dependencies.missing
    pairs = {(c, each) for c, unmade in missing.items() for each in unmade}
    assert all(missing.values())
    assert all(dependencies.dependants.values())
    assert pairs == {(c, each) for each, held in dependencies.dependants.items() for c in held}
    assert all(each < closure for closure, each in pairs)
