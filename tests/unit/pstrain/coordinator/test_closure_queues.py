"""The queues of closures: where each waits, and in which order they start."""

from __future__ import annotations

import pytest

from pstrain.coordinator.closure_queues import ClosureQueues


def queues_of(*closures: tuple[int | None, int], inputs: dict[int, list[int]]) -> ClosureQueues:
    """Adds closures from 0 on, each given by (its only trainer, its priority)."""
    queues = ClosureQueues()
    for closure, (trainer, priority) in enumerate(closures):
        queues.note_options(closure, trainer, priority)
        queues.add(closure, inputs.get(closure, ()))
    return queues


@pytest.fixture
def queues() -> ClosureQueues:
    closures = [(None, 0), (7, 0), (None, 2), (7, 1), (7, 0), (None, 0)]
    return queues_of(*closures, inputs={4: [1], 5: [0]})


def test_closures_wait_for_any_trainer_for_theirs_or_for_their_inputs(
    queues: ClosureQueues,
) -> None:
    assert list(queues.waiting) == [2, 0]
    assert {trainer: list(queue) for trainer, queue in queues.bound_waiting.items()} == {7: [3, 1]}
    assert list(queues.dependencies) == [4, 5]
    assert sorted(queues) == [0, 1, 2, 3, 4, 5]
    assert len(queues) == 6


def test_closure_that_lacks_an_input_counts_for_its_trainer(queues: ClosureQueues) -> None:
    assert queues.count_bound(7) == 3
    queues.release(1, in_order=False)
    assert queues.count_bound(7) == 3
    assert list(queues.bound_waiting[7]) == [3, 1, 4]
    assert queues.count_bound(8) == 0


def test_no_queue_of_a_trainer_and_no_closure_is_left_once_all_are_removed(
    queues: ClosureQueues,
) -> None:
    for closure in range(6):
        assert queues
        queues.remove(closure)
        queues.forget(closure)
    assert not queues
    assert (queues.bound_waiting, queues.bound, queues.priorities) == ({}, {}, {})
    assert queues.count_bound(7) == 0


def test_released_closures_come_last_or_by_their_numbers() -> None:
    for in_order, expected in ((False, [0, 2, 1]), (True, [0, 1, 2])):
        queues = queues_of((None, 0), (None, 0), (None, 0), inputs={1: [9]})
        queues.release(9, in_order=in_order)
        assert list(queues.waiting) == expected


def test_closures_that_return_come_before_others_of_their_priority(queues: ClosureQueues) -> None:
    queues.remove(0)
    queues.add(8)
    queues.add_first(0)
    assert list(queues.waiting) == [2, 0, 8]
    for closure in (8, 0):
        queues.remove(closure)
    queues.add(9)
    queues.note_options(10, None, 1)
    queues.add(10)
    for closure in (8, 0):
        queues.put_back(closure)
    assert list(queues.waiting) == [2, 10, 8, 0, 9]


def test_rank_is_by_priority_then_by_age(queues: ClosureQueues) -> None:
    assert sorted(range(6), key=queues.rank) == [2, 3, 0, 1, 4, 5]
