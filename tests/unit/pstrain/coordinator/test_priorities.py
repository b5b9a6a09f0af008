"""Closures start by priority and, within one priority, by age, whatever happens to trainers."""

from __future__ import annotations

import itertools
import json
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstrain.consistency import Ssp
from pstrain.coordinator import assigning, decide
from pstrain.coordinator import events as ev
from pstrain.coordinator.options import check_options
from pstrain.coordinator.priority_queue import PriorityQueue
from pstrain.coordinator.state import CoordinatorState
from pstrain.errors import InvalidArgumentError, InvalidTypeError, UnimplementedError
from tests.unit.pstrain.coordinator.scheduling_cases import apply, started

PRIORITIES = {0: 0, 1: 0, 2: 3, 3: -1, 4: 3, 5: 0, 6: 7}


@given(st.lists(st.tuples(st.sampled_from("albr"), st.integers(0, 9), st.integers(-2, 2))))
def test_priority_queue_behaves_like_sorted_list(steps: list[tuple[str, int, int]]) -> None:
    """Steps: append, appendleft, put back, remove."""
    line, twin, put_back = PriorityQueue(), list[tuple[int, int]](), list[int]()
    for step, closure, wanted in steps:
        known = dict(twin)
        if (closure in known) != (step == "r"):
            continue
        priority = known.get(closure, wanted)
        if step == "r":
            line.remove(closure, priority)
            twin.remove((closure, priority))
            put_back = [each for each in put_back if each != closure]
        elif step == "a":
            line.append(closure, priority)
            twin.append((closure, priority))
        elif step == "b":
            line.put_back(closure, priority)
            alike = [each for each, of in twin if of == priority]
            before = max((i + 1 for i, each in enumerate(alike) if each in put_back), default=0)
            rest = alike[before:]
            at = twin.index((rest[0], priority)) if rest else len(twin)
            twin.insert(at, (closure, priority))
            put_back.append(closure)
        else:
            line.appendleft(closure, priority)
            twin.insert(0, (closure, priority))
            if any(each in put_back for each, of in twin if of == priority):
                put_back.append(closure)
        twin.sort(key=lambda each: -each[1])
        assert list(line) == [each for each, _ in twin]
        assert (len(line), bool(line)) == (len(twin), bool(twin))
        assert (closure in line) == (closure in dict(twin))
        assert not twin or line.first == twin[0][0]


@given(st.lists(st.integers(0, 9), unique=True), st.integers(10, 20))
def test_inserted_closure_comes_behind_older_closures_at_front(
    closures: list[int], factor: int
) -> None:
    line = PriorityQueue()
    for closure in closures:
        line.append(10 * closure)
    inserted = 4 * factor + 1
    line.insert(inserted)
    earlier = list(itertools.takewhile(lambda each: 10 * each < inserted, closures))
    later = closures[len(earlier) :]
    assert list(line) == [*(10 * c for c in earlier), inserted, *(10 * c for c in later)]


def state_of(trainers: int = 1, bound: int | None = None, **options: Any) -> CoordinatorState:
    state = CoordinatorState(**options)
    for trainer in range(trainers):
        apply(state, decide.join_trainer(trainer, 1))
    for closure, priority in PRIORITIES.items():
        trainer = bound if closure % 2 else None
        apply(state, decide.schedule(state, closure, trainer, priority=priority))
    return state


def order(state: CoordinatorState) -> list[int]:
    """Returns the order in which closures start if each ends before the next one starts."""
    found = []
    while not state.is_idle:
        for closure, trainer, attempt in started(apply(state, assigning.assign(state))):
            found.append(closure)
            apply(state, decide.finish(state, closure, trainer, attempt))
    return found


@pytest.mark.parametrize("options", [{}, {"consistency": Ssp(0)}, {"bound": 0}])
def test_closures_start_by_priority_and_then_by_age(options: dict[str, Any]) -> None:
    assert order(state_of(**options)) == [6, 2, 4, 0, 1, 5, 3]


def test_closure_returned_from_lost_trainer_is_first_of_its_priority() -> None:
    state = state_of(trainers=5)
    apply(state, assigning.assign(state))
    assert list(state.running) == [6, 2, 4, 0, 1]
    for trainer in (1, 3):
        apply(state, decide.lose_trainer(state, trainer, attempts_max=5))
    apply(state, decide.schedule(state, 9, priority=3))
    assert list(state.waiting) == [2, 9, 0, 5, 3]


def test_reopened_closures_keep_their_priorities() -> None:
    state = state_of()
    closures = order(state)
    again = [ev.ClosureReopened(closure=c, priority=PRIORITIES[c]) for c in closures]
    apply(state, decide.reopen(state, again, {}))
    assert order(state) == [6, 2, 4, 0, 1, 5, 3]
    assert not state.queues.priorities


def test_closure_released_by_input_comes_last_in_its_priority() -> None:
    state = state_of()
    apply(state, decide.schedule(state, 8, None, (6,), priority=3))
    assert order(state) == [6, 2, 4, 8, 0, 1, 5, 3]


def test_cancelled_closures_are_removed_from_priority_queue() -> None:
    state = state_of()
    for closure in (2, 6, 4, 0):
        apply(state, decide.cancel(state, closure, ev.Reason.ASKED))
    assert order(state) == [1, 5, 3]
    assert not state.waiting._others


def test_priority_queue_orders_thousands_of_priorities() -> None:
    dice, line = Random(0), PriorityQueue()
    ranks = {closure: dice.randrange(-1_000, 1_000) for closure in range(5_000)}
    for closure, priority in ranks.items():
        line.append(closure, priority)
    assert list(line) == sorted(ranks, key=lambda closure: (-ranks[closure], closure))


def test_numpys_integers_become_pythons_because_traces_have_a_json_form() -> None:
    one: Any = np.int64(1)
    options = check_options(one, -3 * one, 0.5, indices=[0, 1], in_rounds=False)
    assert json.dumps(options) == "[1, -3]"
    assert check_options(None, 0, None, indices=[0], in_rounds=False) == (None, 0)


def test_invalid_or_unsupported_schedule_options_are_refused() -> None:
    with pytest.raises(InvalidTypeError, match=r"priority must be an integer, got 1\.5"):
        check_options(None, 1.5, None, indices=[0], in_rounds=False)  # type: ignore[arg-type]
    with pytest.raises(UnimplementedError, match="got priority=2: leave it out"):
        check_options(None, 2, None, indices=[0], in_rounds=True)
    with pytest.raises(InvalidArgumentError, match="deadline_s"):
        check_options(None, 0, -1.0, indices=[0], in_rounds=False)
    with pytest.raises(UnimplementedError, match="leave out trainer="):
        check_options(0, 0, None, indices=[0], in_rounds=True)
