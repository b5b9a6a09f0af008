"""Single decisions: refused requests, requests that change nothing, and the grants of windows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dataservice.dispatcher import decide, leasing, messages, opening
from dataservice.dispatcher import events as ev
from dataservice.dispatcher.plans import WindowPlan
from dataservice.dispatcher.requests import (
    Decision,
    LeaseAnswer,
    LeaseWindows,
    OpenAnswer,
    RegisterDataset,
    RegisterWorker,
    Sync,
)
from dataservice.dispatcher.state import DispatcherState
from dataservice.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
)
from dataservice.ranges import RowMark
from dataservice.sharding import Split
from dataservice.vocabulary import (
    ALL_WINDOWS,
    INFINITE_CARDINALITY,
    UNKNOWN_CARDINALITY,
    ShardingPolicy,
)
from tests.unit.dataservice.dispatcher.dispatcher_facts import OPEN, apply, opened, plan_of

DATASET = RegisterDataset(plan=b"p", schema=b"s", cardinality=10, compression="AUTO")


def cluster(windows: int = 4, *, workers: int = 1, rounds: int | None = 1) -> DispatcherState:
    """Returns a state with a dataset, workers w1, w2, ... and reader r1 of iteration i1."""
    state = DispatcherState()
    apply(state, decide.register_dataset(state, DATASET))
    for number in range(1, workers + 1):
        request = RegisterWorker(worker_id=f"w{number}", address=f"a:{number}")
        apply(state, decide.register_worker(state, request))
    apply(state, opening.open_iteration(state, OPEN, plan_of(windows, rounds)))
    return state


def lease(
    state: DispatcherState, worker: str = "w1", reader: str = "r1", count: int = 99, **more: object
) -> LeaseAnswer:
    request = LeaseWindows(
        worker_id=worker, iteration_id="i1", reader_id=reader, count=count, **more
    )
    apply(state, leasing.open_round(state, "i1"))
    answer = apply(state, leasing.lease_windows(state, request))
    assert isinstance(answer, LeaseAnswer)
    return answer


def sync(state: DispatcherState, reader: str = "r1", **more: object) -> object:
    request = Sync(reader_id=reader, iteration_id="i1", **more)
    apply(state, leasing.sync(state, request))
    return leasing.answer_sync(state, request)


def indices(answer: LeaseAnswer) -> list[int]:
    return [lease.window_index for lease in answer.leases]


# Datasets


def test_dataset_ids_count_up_from_1000_and_skip_taken_ids() -> None:
    state = DispatcherState()
    assert apply(state, decide.register_dataset(state, DATASET)) == "1000"
    apply(state, decide.register_dataset(state, replace(DATASET, dataset_id="1001")))
    assert apply(state, decide.register_dataset(state, DATASET)) == "1002"


def test_explicit_dataset_id_is_registered_once() -> None:
    state = DispatcherState()
    request = replace(DATASET, dataset_id="mine")
    assert apply(state, decide.register_dataset(state, request)) == "mine"
    again = decide.register_dataset(state, replace(request, plan=b"other"))
    assert again == Decision((), "mine"), "the content is not compared, the structure is"


def test_dataset_id_with_rows_that_were_not_counted_attaches() -> None:
    state = DispatcherState()
    request = replace(DATASET, dataset_id="mine")
    apply(state, decide.register_dataset(state, request))
    again = decide.register_dataset(state, replace(request, cardinality=UNKNOWN_CARDINALITY))
    assert again == Decision((), "mine")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"schema": b"x"}, "schema"),
        ({"cardinality": 3}, "10, now 3"),
        ({"cardinality": INFINITE_CARDINALITY}, "10, now -1"),
        ({"compression": "LZ4"}, "LZ4"),
    ],
)
def test_dataset_id_with_other_structure_is_refused(change: dict[str, object], named: str) -> None:
    state = DispatcherState()
    apply(state, decide.register_dataset(state, replace(DATASET, dataset_id="mine")))
    request = replace(DATASET, dataset_id="mine", **change)
    with pytest.raises(InvalidArgumentError, match="should have the same structure") as caught:
        decide.register_dataset(state, request)
    assert named in str(caught.value)


def test_unknown_dataset_is_not_found() -> None:
    with pytest.raises(NotFoundError, match="Dataset id 7 not found"):
        decide.find_dataset(DispatcherState(), "7")
    with pytest.raises(NotFoundError, match="Dataset id 1000"):
        opening.open_iteration(DispatcherState(), OPEN, plan_of(1))


def test_empty_dataset_id_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="empty"):
        decide.register_dataset(DispatcherState(), replace(DATASET, dataset_id=""))


# Workers


def test_worker_without_address_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="address"):
        decide.register_worker(DispatcherState(), RegisterWorker(worker_id="w1", address=""))


def test_worker_registered_at_free_address_replaces_none() -> None:
    decision = decide.register_worker(cluster(), RegisterWorker(worker_id="w9", address="a:9"))
    assert [type(event) for event in decision.events] == [ev.WorkerRegistered]


def test_registered_worker_and_joined_reader_are_found() -> None:
    state = cluster()
    decide.check_worker(state, "w1")
    assert decide.find_reader(state, "r1", "i1") is state.iterations["i1"]


def test_loss_of_unknown_worker_or_reader_changes_nothing() -> None:
    assert decide.lose_worker(cluster(), "w9") == Decision(())
    assert decide.lose_reader(cluster(), "r9") == Decision(())


def test_worker_registered_at_taken_address_replaces_old_worker() -> None:
    state = cluster()
    lease(state)
    decision = decide.register_worker(state, RegisterWorker(worker_id="w9", address="a:1"))
    assert [type(event) for event in decision.events] == [ev.WorkerRegistered, ev.WorkerLost]
    apply(state, decision)
    assert list(state.workers) == ["w9"]
    with pytest.raises(NotFoundError, match="another worker took its address"):
        decide.check_worker(state, "w1")


@pytest.mark.parametrize("formerly", [None, "w1"])
def test_restarted_worker_keeps_iteration_alive(formerly: str | None) -> None:
    state = DispatcherState()
    apply(state, decide.register_dataset(state, DATASET))
    apply(state, decide.register_worker(state, RegisterWorker(worker_id="w1", address="a:1")))
    off = replace(OPEN, policy=ShardingPolicy.OFF)
    apply(state, opening.open_iteration(state, off, None))
    again = RegisterWorker(worker_id="w2", address="a:1", formerly=formerly)
    decision = decide.register_worker(state, again)
    assert decision.events[-1] == ev.WorkerLost(worker_id="w1", left=formerly == "w1")
    apply(state, decision)
    assert decide.ended_iterations(state, ["i1"]) == ()
    assert not state.iterations["i1"].finished
    assert state.iterations["i1"].tasks == {"w1": True, "w2": False}
    apply(state, decide.finish_task(state, "w2", "i1"))
    assert state.iterations["i1"].finished
    assert decide.finish_task(state, "w2", "i1") == Decision(())
    assert decide.finish_task(state, "w2", "i7") == Decision(())
    assert decide.ended_iterations(state, ["i1", "i7"]) == ("i1", "i7")


# Jobs and iterations


def test_unknown_policy_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="9"):
        messages.sharding_policy(9)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"job_name": ""}, "job_name"),
        ({"repetition": -1}, "-1"),
        ({"delivery": "twice"}, "twice"),
    ],
)
def test_invalid_open_request_is_refused_naming_the_value(
    change: dict[str, object], named: str
) -> None:
    state = cluster()
    with pytest.raises(InvalidArgumentError, match=named):
        opening.open_iteration(state, replace(OPEN, reader_id="r2", **change), plan_of(1))


def test_readers_of_same_job_name_share_iteration() -> None:
    state = cluster()
    second = replace(OPEN, reader_id="r2", job_id="j2", iteration_id="i2")
    assert opening.dataset_to_plan(state, second) is None
    assert opened(state, second, None) == OpenAnswer("j1", "i1", "1000")
    assert set(state.iterations["i1"].readers) == {"r1", "r2"}


def test_dataset_id_with_other_fingerprint_is_not_found() -> None:
    # As after a restart without a journal: ids begin anew.
    state = DispatcherState()
    apply(state, decide.register_dataset(state, replace(DATASET, fingerprint="new")))
    stale = replace(OPEN, fingerprint="old")
    for asked in (
        lambda: opening.dataset_to_plan(state, stale),
        lambda: opening.open_iteration(state, stale, plan_of(1)),
    ):
        with pytest.raises(NotFoundError, match="1000 stands for another dataset"):
            asked()
    for known in ("new", ""):
        assert opening.open_iteration(state, replace(OPEN, fingerprint=known), plan_of(1)).events


def test_repeated_open_joins_once() -> None:
    state = cluster()
    again = opening.open_iteration(state, replace(OPEN, job_id="j2", iteration_id="i2"), None)
    assert again == Decision((), "")
    assert opening.answer_open(state, "r1", "") == OpenAnswer("j1", "i1", "1000")


def test_repeated_anonymous_open_joins_its_own_job() -> None:
    state = cluster()
    anonymous = replace(OPEN, job_name=None, reader_id="r2", job_id="j2", iteration_id="i2")
    apply(state, opening.open_iteration(state, anonymous, plan_of(1)))
    again = opening.open_iteration(state, replace(anonymous, job_id="j3", iteration_id="i3"), None)
    assert again == Decision((), "")
    assert opening.answer_open(state, "r2", "") == OpenAnswer("j2", "i2", "1000")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"policy": ShardingPolicy.OFF}, r"policy \(existing DYNAMIC, got OFF\)"),
        ({"delivery": "at_most_once"}, "delivery"),
        ({"dataset_id": "1001"}, "dataset 1000 has another cardinality"),
    ],
)
def test_job_name_with_other_parameters_is_refused(change: dict[str, object], named: str) -> None:
    state = cluster()
    apply(state, decide.register_dataset(state, replace(DATASET, cardinality=3)))
    request = replace(OPEN, reader_id="r2", **change)
    with pytest.raises(InvalidArgumentError, match=named):
        opening.open_iteration(state, request, None)


def test_trainers_that_each_register_dataset_share_job() -> None:
    state = cluster()
    apply(state, decide.register_dataset(state, replace(DATASET, fingerprint="f")))
    request = replace(OPEN, dataset_id="1001", reader_id="r2")
    answer = opened(state, request, None)
    assert answer == OpenAnswer("j1", "i1", "1000"), "the reader learns which dataset the job reads"
    later = replace(request, repetition=1, reader_id="r3")
    dataset = opening.dataset_to_plan(state, later)
    assert dataset is not None
    assert dataset.dataset_id == "1000"


def test_anonymous_job_is_removed_with_its_reader() -> None:
    state = DispatcherState()
    apply(state, decide.register_dataset(state, DATASET))
    apply(state, opening.open_iteration(state, replace(OPEN, job_name=None), plan_of(2)))
    assert state.job_by_name == {}
    apply(state, decide.release_reader(state, "r1", ()))
    assert (state.jobs, state.iterations) == ({}, {})
    assert decide.release_reader(state, "r1", ()) == Decision(())


def test_deleted_job_frees_its_name_and_fences_its_readers() -> None:
    state = cluster()
    apply(state, decide.delete_job(state, "train"))
    with pytest.raises(FailedPreconditionError, match="fenced: its job train was deleted"):
        decide.find_reader(state, "r1", "i1")
    apply(state, opening.open_iteration(state, replace(OPEN, reader_id="r2"), plan_of(1)))
    with pytest.raises(NotFoundError, match="named jobs: train"):
        decide.delete_job(state, "trian")
    assert decide.delete_job(state, "j1") == Decision((ev.JobDeleted(job_id="j1"),)), "by its id"


def test_dataset_can_be_deleted_only_while_no_job_reads_it() -> None:
    state = cluster()
    with pytest.raises(FailedPreconditionError, match=r"dataset 1000 is read by train; .*delete"):
        decide.delete_dataset(state, "1000")
    other = apply(state, decide.register_dataset(state, replace(DATASET, dataset_id="other")))
    apply(state, decide.delete_dataset(state, other))
    apply(state, decide.delete_job(state, "train"))
    apply(state, decide.delete_dataset(state, "1000"))
    assert state.datasets == {}
    with pytest.raises(NotFoundError, match=r"no dataset is registered as '1000'; .*list"):
        decide.delete_dataset(state, "1000")
    with pytest.raises(FailedPreconditionError, match="'1000' was deleted, and its id stays used"):
        decide.register_dataset(state, replace(DATASET, dataset_id="1000"))
    assert apply(state, decide.register_dataset(state, DATASET)) == "1001"


def test_lost_reader_stays_fenced() -> None:
    state = cluster()
    apply(state, decide.lose_reader(state, "r1"))
    with pytest.raises(FailedPreconditionError, match="fenced"):
        decide.find_reader(state, "r1", "i1")
    with pytest.raises(FailedPreconditionError, match="fenced"):
        opening.open_iteration(state, OPEN, None)
    with pytest.raises(NotFoundError, match="fault_tolerant_mode"):
        decide.find_reader(state, "r7", "i1")


def test_open_of_job_deleted_during_planning_is_unavailable() -> None:
    state = DispatcherState()
    apply(state, decide.register_dataset(state, DATASET))
    with pytest.raises(UnavailableError, match="try again"):
        opening.open_iteration(state, OPEN, None)


# Windows


def test_lease_grant_is_fair_part_of_last_epoch() -> None:
    state = cluster(16, workers=2)
    apply(state, opening.open_iteration(state, replace(OPEN, reader_id="r2"), None))
    sizes = []
    while answer := lease(state).leases:
        sizes.append(len(answer))
    assert sizes == [2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1], "16 windows, 4 streams"
    assert lease(cluster(), count=0).leases == ()


@pytest.mark.parametrize(
    ("readers", "workers", "streams", "most_calls"),
    [(32, 30, 8, 2_300), (4, 30, 30, 1_300), (32, 30, 30, 4_700)],
)
def test_lease_grants_shrink_with_number_of_streams(
    readers: int, workers: int, streams: int, most_calls: int
) -> None:
    """Each reader has so many streams; all of these ask in turn, for as much as they get."""
    windows = 20_000
    state = cluster(windows, workers=workers)
    for number in range(2, readers + 1):
        apply(state, opening.open_iteration(state, replace(OPEN, reader_id=f"r{number}"), None))
    sizes: list[int] = []
    while not sizes or sum(sizes) < windows:
        for reader in range(readers):
            for nth in range(streams):
                worker = f"w{(reader * streams + nth) % workers + 1}"
                answer = lease(state, worker, f"r{reader + 1}", count=1_024)
                sizes += [len(answer.leases)] if answer.leases else []
    assert len(sizes) <= most_calls
    assert sizes[-readers * streams :] == [1] * readers * streams, "the last are shared by all"


def test_lease_grants_before_last_epoch_are_not_limited() -> None:
    state = cluster(6, rounds=None)
    assert lease(state, count=0).leases == ()
    assert indices(lease(state, count=4)) == [0, 1, 2, 3]
    assert indices(lease(state, count=4)) == [4, 5]
    later = lease(state, count=4)
    assert indices(later) == [6, 7, 8, 9]
    assert [(x.epoch, x.window.index) for x in later.leases] == [(1, 0), (1, 1), (1, 2), (1, 3)]


def test_rounds_are_prepared_ahead_as_long_as_there_are_more() -> None:
    state = cluster(1, rounds=2)
    passes = {"policy": ShardingPolicy.OFF, "job_name": "passes", "job_id": "j2"}
    other = replace(OPEN, reader_id="r2", iteration_id="i2", **passes)
    apply(state, opening.open_iteration(state, other, None))
    assert leasing.rounds_ahead(state) == [(plan_of(1, 2), 1)]
    assert indices(lease(state)) == [0]
    assert indices(lease(state)) == [1]
    assert leasing.rounds_ahead(state) == []


def test_epoch_numbers_continue_through_repetitions() -> None:
    state = cluster(1, rounds=2)
    plan = replace(plan_of(1, 2), repetition=3)
    third = replace(OPEN, reader_id="r2", iteration_id="i2", repetition=3)
    apply(state, opening.open_iteration(state, third, plan))
    request = LeaseWindows(worker_id="w1", iteration_id="i2", reader_id="r2", count=1)
    answer = apply(state, leasing.lease_windows(state, request))
    assert isinstance(answer, LeaseAnswer)
    assert answer.leases[0].epoch == 6


def test_repeated_lease_request_gets_same_windows() -> None:
    state = cluster(8)
    first = lease(state, count=2, sequence=1)
    assert lease(state, count=2, sequence=1) == first
    sync(state, consumed=(RowMark(0, 0, 1, True),))
    assert indices(lease(state, count=2, sequence=1)) == [1], "the other one is done"
    assert indices(lease(state, count=1, sequence=2)) == [2]
    assert indices(lease(state, count=1)) == [3], "without a number every request is new"
    assert indices(lease(state, count=1)) == [4]


def test_lease_for_departed_reader_reports_end() -> None:
    state = cluster()
    assert lease(state, reader="r7") == LeaseAnswer((), True)
    apply(state, decide.delete_job(state, "train"))
    assert lease(state) == LeaseAnswer((), True)


def test_lease_reports_no_end_while_windows_are_with_other_readers() -> None:
    state = cluster(1)
    lease(state)
    apply(state, opening.open_iteration(state, replace(OPEN, reader_id="r2"), None))
    assert lease(state, reader="r2") == LeaseAnswer((), False)
    assert sync(state, "r2").ended, "its reader need not wait for the other one"
    apply(state, decide.lose_reader(state, "r1"))
    assert not sync(state, "r2").ended, "unless what the other had comes back"


def test_lease_of_job_without_windows_is_refused() -> None:
    state = DispatcherState()
    apply(state, decide.register_dataset(state, DATASET))
    apply(state, opening.open_iteration(state, replace(OPEN, policy=ShardingPolicy.OFF), None))
    with pytest.raises(FailedPreconditionError, match="no windows"):
        lease(state)
    for iteration, returned in (("i1", (RowMark(0, 0, 0, False),)), ("i7", ()), ("i1", ())):
        request = LeaseWindows(
            worker_id="w1", iteration_id=iteration, reader_id="r1", count=0, returned=returned
        )
        assert leasing.give_back(state, request) == Decision(())


def test_broken_stream_gives_its_windows_back_at_once() -> None:
    state = cluster(20, workers=2)
    assert indices(lease(state, count=2)) == [0, 1]
    received = RowMark(0, 0, 1, False)
    answer = sync(state, broken_worker_ids=("w1",), released=(received,))
    assert answer.fences == (RowMark(1, 0, 0, False),), "of this one nothing is known yet"
    resumed = lease(state, "w2", count=1).leases[0]
    assert (resumed.window_index, resumed.generation, resumed.start_row) == (0, 1, 1)
    assert sync(state, released=(RowMark(1, 0, 0, False),)).fences == ()
    assert indices(lease(state, "w2", count=1)) == [1]


def test_windows_given_back_by_worker_are_fenced() -> None:
    state = cluster(20)
    lease(state, count=2)
    for generation, fenced in ((4, ()), (0, (1,))):
        mark = RowMark(1, generation, 0, False)
        request = LeaseWindows(
            worker_id="w1", iteration_id="i1", reader_id="r1", count=0, returned=(mark,)
        )
        apply(state, leasing.give_back(state, request))
        assert tuple(m.window for m in sync(state).fences) == fenced


def test_stream_to_departed_reader_or_of_finished_iteration_begins_nothing() -> None:
    state = cluster(1)
    begun = {"returned": (RowMark(ALL_WINDOWS, 0, 0, False),), "sequence": 1}
    request = LeaseWindows(worker_id="w1", iteration_id="i1", reader_id="r7", count=0, **begun)
    assert leasing.give_back(state, request) == Decision(())
    lease(state)
    sync(state, consumed=(RowMark(0, 0, 1, True),))
    assert leasing.give_back(state, replace(request, reader_id="r1")) == Decision(())


def test_fence_states_start_row_of_its_lease() -> None:
    state = cluster(1, workers=2)
    lease(state, "w1")
    sync(state, released=(RowMark(0, 0, 5, False),))
    lease(state, "w2")
    apply(state, decide.lose_worker(state, "w2"))
    assert sync(state).fences == (RowMark(0, 1, 5, False),)


def test_last_consumption_finishes_iteration() -> None:
    state = cluster(1)
    lease(state)
    assert not sync(state, consumed=(RowMark(0, 0, 3, False),)).ended
    answer = sync(state, consumed=(RowMark(0, 0, 4, True),))
    assert (answer.ended, answer.iteration_finished) == (True, True)
    assert lease(state) == LeaseAnswer((), True)


def test_sync_is_idle_if_neither_side_tells_anything() -> None:
    state, mark = cluster(), (RowMark(0, 0, 1, False),)
    lease(state)
    request = Sync(reader_id="r1", iteration_id="i1")
    answer = leasing.answer_sync(state, request)
    assert leasing.is_idle(request, answer)
    assert not leasing.is_idle(request, answer._replace(ended=True))
    for told in ({"consumed": mark}, {"released": mark}, {"broken_worker_ids": ("w1",)}):
        assert not leasing.is_idle(replace(request, **told), answer)


def test_known_marks_produce_no_events() -> None:
    state = cluster(1)
    lease(state)
    marks = (RowMark(0, 0, 3, False),)
    sync(state, consumed=marks)
    repeated = Sync(reader_id="r1", iteration_id="i1", consumed=marks)
    assert leasing.sync(state, repeated) == Decision(())


@pytest.mark.parametrize(
    "mark", [RowMark(1, 0, 0, False), RowMark(-1, 0, 0, False), RowMark(0, 0, -1, False)]
)
@pytest.mark.parametrize("kind", ["consumed", "released"])
def test_marks_of_windows_never_leased_are_refused(kind: str, mark: RowMark) -> None:
    state = cluster(3)
    lease(state, count=1)
    with pytest.raises(InvalidArgumentError, match="never leased"):
        sync(state, **{kind: (mark,)})


def test_unconsumed_rows_of_released_reader_are_leased_again() -> None:
    state = cluster(1)
    apply(state, opening.open_iteration(state, replace(OPEN, reader_id="r2"), None))
    lease(state)
    apply(state, decide.release_reader(state, "r1", (RowMark(0, 0, 2, False),)))
    resumed = lease(state, reader="r2").leases[0]
    assert (resumed.generation, resumed.start_row) == (1, 2)


def test_windows_never_leased_take_no_records() -> None:
    state = DispatcherState()
    apply(state, decide.register_dataset(state, DATASET))
    plan = WindowPlan(splits=(Split(stop=1, rows=1),) * 10_000, target_rows=1, rounds=None)
    apply(state, opening.open_iteration(state, OPEN, plan))
    table = state.iterations["i1"].windows
    assert table is not None
    lease(state, count=8)
    assert (table.planned, len(table.records)) == (10_000, 8)
