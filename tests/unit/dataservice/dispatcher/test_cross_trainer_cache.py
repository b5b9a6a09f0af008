"""The cross-trainer cache's sliding window: what each trainer gets and misses, what is kept."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataservice.dispatcher import decide, leasing, opening
from dataservice.dispatcher.requests import (
    LeaseAnswer,
    LeaseWindows,
    OpenIteration,
    RegisterDataset,
    RegisterWorker,
)
from dataservice.dispatcher.state import DispatcherState
from dataservice.errors import InvalidArgumentError
from dataservice.job_options import JobOptions
from dataservice.vocabulary import ShardingPolicy
from dataservice.worker.cache import MAX_TRAINERS, SlidingWindow
from tests.unit.dataservice.dispatcher.dispatcher_facts import OPEN, commit, opened, plan_of


def filled(items: int, *, max_bytes: int) -> SlidingWindow[int]:
    """Returns a window to which items 0, 1, ... of one byte each were added."""
    window: SlidingWindow[int] = SlidingWindow(max_bytes)
    for item in range(items):
        window.add(item, 1)
    return window


def drain(window: SlidingWindow[int], trainer: str) -> tuple[int, list[int]]:
    """Reads all that is left; returns how many items the trainer misses, and those it gets."""
    missed, got = window.catch_up(trainer), []
    while (item := window.take(trainer)) is not None:
        got.append(item)
    return missed, got


def test_every_trainer_gets_every_item() -> None:
    window = filled(5, max_bytes=10)
    for trainer in ("a", "b"):
        assert drain(window, trainer) == (0, [0, 1, 2, 3, 4])
    window.add(5, 1)
    assert drain(window, "a") == (0, [5])


def test_new_trainer_begins_at_window_start_without_misses() -> None:
    window = filled(5, max_bytes=3)
    assert drain(window, "late") == (0, [2, 3, 4])


def test_slow_trainer_skips_evicted_items_and_learns_their_count() -> None:
    window = filled(3, max_bytes=3)
    assert drain(window, "fast") == (0, [0, 1, 2])
    assert window.catch_up("slow") == 0
    assert window.take("slow") == 0
    for item in range(3, 8):
        window.add(item, 1)
        assert drain(window, "fast") == (0, [item])
    assert drain(window, "slow") == (4, [5, 6, 7])
    assert window.catch_up("slow") == 0, "it is told once"


def test_items_that_no_trainer_took_leave_no_room_ahead() -> None:
    window = filled(3, max_bytes=4)
    assert window.has_room_ahead(1)
    assert not window.has_room_ahead(2)
    assert window.catch_up("a") == 0
    assert window.take("a") == 0
    assert window.has_room_ahead(2), "an item that was taken gives way"


def test_item_larger_than_window_is_refused() -> None:
    window = filled(2, max_bytes=4)
    with pytest.raises(InvalidArgumentError, match=r"5 bytes does not fit .* of 4 bytes"):
        window.add(2, 5)
    window.add(2, 4)
    assert drain(window, "a") == (0, [2])


def test_trainer_that_read_longest_ago_is_forgotten_beyond_limit() -> None:
    window = filled(1, max_bytes=1)
    for number in range(MAX_TRAINERS):
        assert drain(window, str(number)) == (0, [0])
    assert drain(window, "0") == (0, []), "it reads again, so 1 is the one that read longest ago"
    assert drain(window, str(MAX_TRAINERS)) == (0, [0])
    assert drain(window, "0") == (0, [])
    assert drain(window, "1") == (0, [0]), "it begins at the start of the window again"


def test_cleared_window_has_room_and_tells_trainers_what_they_missed() -> None:
    window = filled(3, max_bytes=4)
    window.catch_up("slow")
    assert window.take("slow") == 0
    window.clear()
    assert (window.ahead, window.size_bytes) == (0, 0)
    window.add(3, 1)
    assert window.has_room_ahead(3)
    assert drain(window, "slow") == (2, [3])
    assert drain(window, "new") == (0, [3])


STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "a", "b", "c"]), st.integers(1, 6)), max_size=120
)


@given(STEPS, st.integers(6, 20))
def test_any_history_loses_only_items_reported_missed(
    steps: list[tuple[str, int]], max_bytes: int
) -> None:
    window: SlidingWindow[int] = SlidingWindow(max_bytes)
    produced = 0
    position: dict[str, int] = {}
    for who, amount in steps:
        if who == "add":
            if window.has_room_ahead(amount):
                window.add(produced, amount)
                produced += 1
        else:
            ahead = bool(position) and position.get(who, -1) == max(position.values())
            for _ in range(amount):
                missed = window.catch_up(who)
                assert not (missed and ahead), "the trainer ahead misses nothing"
                expected = position.get(who, window.first) + missed
                item = window.take(who)
                assert item == (expected if expected < produced else None)
                position[who] = expected if item is None else expected + 1
        assert window.size_bytes <= max_bytes
        assert window.end == produced
        assert window.ahead == produced - max(position.values(), default=0)


# The dispatcher's part


def cached_job(policy: ShardingPolicy = ShardingPolicy.DYNAMIC, **more: object) -> OpenIteration:
    options = JobOptions(cross_trainer_cache=True)
    return replace(OPEN, **{"policy": policy, "options": options, **more})


def state_of(cardinality: int = -1) -> DispatcherState:
    state = DispatcherState()
    dataset = RegisterDataset(plan=b"p", schema=b"s", cardinality=cardinality, compression="AUTO")
    commit(state, decide.register_dataset(state, dataset))
    commit(state, decide.register_worker(state, RegisterWorker(worker_id="w1", address="a:1")))
    return state


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"job_name": None}, "requires named jobs"),
        ({"repetition": 1}, "one repetition without an end"),
        ({"options": JobOptions(cross_trainer_cache=True, ordered=True)}, "excludes"),
    ],
)
def test_uncacheable_job_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        opening.dataset_to_plan(state_of(), cached_job(**change))


def test_cached_job_over_finite_dataset_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="to be infinite, got cardinality 10"):
        opening.dataset_to_plan(state_of(10), cached_job())


def test_cached_job_leases_windows_for_all_trainers_as_done() -> None:
    state = state_of()
    commit(state, opening.open_iteration(state, cached_job(), plan_of(3, rounds=None)))
    got: list[int] = []
    for sequence in range(1, 7):
        commit(state, leasing.open_round(state, "i1"))
        request = LeaseWindows(
            worker_id="w1", iteration_id="i1", reader_id="", count=2, sequence=sequence
        )
        answer = commit(state, leasing.lease_windows(state, request))
        assert isinstance(answer, LeaseAnswer)
        assert not answer.ended
        got += [lease.window_index for lease in answer.leases]
    table = state.iterations["i1"].windows
    assert table is not None
    assert got == list(range(9)), "two windows and then one of each round"
    assert (table.done, table.records) == (9, {})
    commit(state, decide.lose_worker(state, "w1"))
    assert not state.iterations["i1"].finished
    commit(state, decide.release_reader(state, "r1", ()))
    commit(state, leasing.open_round(state, "i1"))
    request = LeaseWindows(worker_id="w1", iteration_id="i1", reader_id="", count=2, sequence=9)
    assert leasing.lease_windows(state, request).reply == LeaseAnswer((), False), "for nobody"


def test_later_trainer_of_cached_job_gets_no_notice() -> None:
    state = state_of()
    for reader in ("r1", "r2"):
        request = cached_job(ShardingPolicy.OFF, reader_id=reader, reader_pid=7)
        assert opened(state, request, None).notice == ""
        commit(state, decide.release_reader(state, reader, ()))


def test_endless_cached_pass_continues_after_worker_is_lost() -> None:
    state = state_of()
    commit(state, opening.open_iteration(state, cached_job(ShardingPolicy.OFF), None))
    commit(state, decide.lose_worker(state, "w1"))
    assert (state.iterations["i1"].tasks, state.iterations["i1"].finished) == ({}, False)
    commit(state, decide.register_worker(state, RegisterWorker(worker_id="w2", address="a:2")))
    assert state.iterations["i1"].tasks == {"w2": False}
