"""Ordered iterations at the dispatcher: one reader, and leases that do not run too far ahead."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dataservice.dispatcher import decide, leasing, opening, ordering
from dataservice.dispatcher import events as ev
from dataservice.dispatcher.requests import LeaseWindows, RegisterDataset, Sync
from dataservice.dispatcher.state import DispatcherState
from dataservice.errors import FailedPreconditionError
from dataservice.job_options import JobOptions
from dataservice.ranges import RowMark
from tests.unit.dataservice.dispatcher.dispatcher_facts import OPEN, commit, plan_of

WINDOWS = 100
PLAN = plan_of(WINDOWS)


def ordered_state(workers: int = 2) -> DispatcherState:
    state = DispatcherState()
    request = RegisterDataset(plan=b"p", schema=b"s", cardinality=-2, compression="NONE")
    commit(state, decide.register_dataset(state, request))
    for number in range(workers):
        state.apply(
            ev.WorkerRegistered(worker_id=f"w{number}", address=f"w:{number}", host="h", pid=1)
        )
    open_(state, "r")
    return state


def open_(state: DispatcherState, reader: str) -> None:
    request = replace(OPEN, reader_id=reader, iteration_id="i", options=JobOptions(ordered=True))
    commit(state, opening.open_iteration(state, request, PLAN))


def lease(state: DispatcherState, worker: str, count: int = 50) -> tuple[int, ...]:
    request = LeaseWindows(worker_id=worker, iteration_id="i", reader_id="r", count=count)
    answer = commit(state, leasing.lease_windows(state, request))
    return tuple(item.window_index for item in answer.leases)


def test_ordered_leases_are_spread_over_workers_in_small_grants() -> None:
    state = ordered_state()
    assert [lease(state, "w0"), lease(state, "w1"), lease(state, "w0", 1)] == [(0, 1), (2, 3), (4,)]


def test_ordered_leases_stay_within_lookahead_of_first_unfinished_window() -> None:
    state = ordered_state()
    leased: list[int] = []
    while more := lease(state, "w0"):
        leased += more
    assert leased == list(range(2 * ordering.LOOKAHEAD))
    done = Sync(reader_id="r", iteration_id="i", consumed=(RowMark(1, 0, 1, True),))
    commit(state, leasing.sync(state, done))
    assert lease(state, "w1") == (), "the first one is not done"
    done = Sync(reader_id="r", iteration_id="i", consumed=(RowMark(0, 0, 1, True),))
    commit(state, leasing.sync(state, done))
    assert lease(state, "w1") == (16, 17)


def test_window_given_back_is_leased_despite_exhausted_lookahead() -> None:
    state = ordered_state()
    while lease(state, "w0"):
        pass
    commit(state, decide.lose_worker(state, "w0"))
    released = Sync(reader_id="r", iteration_id="i", released=(RowMark(0, 0, 0, False),))
    commit(state, leasing.sync(state, released))
    assert lease(state, "w1") == (0,)


def test_ordered_iteration_has_one_reader() -> None:
    state = ordered_state()
    open_(state, "r")
    with pytest.raises(FailedPreconditionError, match=r"in order .* by r, and a sequence has one"):
        open_(state, "second")
    commit(state, decide.lose_reader(state, "r"))
    open_(state, "second")
