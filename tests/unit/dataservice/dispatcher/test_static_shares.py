"""Static shares in the dispatcher: binding, due shards, who is missing, restarts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dataservice.dispatcher import decide, leasing, opening, shares
from dataservice.dispatcher import events as ev
from dataservice.dispatcher.requests import (
    Decision,
    RegisterDataset,
    RegisterWorker,
    Sync,
    WorkerPlace,
)
from dataservice.dispatcher.state import DispatcherState
from dataservice.dispatcher.worker_set import WorkerSet
from dataservice.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from dataservice.vocabulary import ShardingPolicy
from tests.unit.dataservice.dispatcher import dispatcher_facts as facts
from tests.unit.dataservice.dispatcher.dispatcher_facts import commit, compacted, opened

LIST = ("a:%port%", "b:7")
STATIC = [policy for policy in ShardingPolicy if policy.is_static]
OPEN = replace(facts.OPEN, policy=ShardingPolicy.DATA)


def add_worker(state: DispatcherState, name: str, address: str) -> None:
    commit(state, decide.register_worker(state, RegisterWorker(worker_id=name, address=address)))


def state_with_worker_list(addresses: tuple[str, ...] = LIST) -> DispatcherState:
    """Returns a state with a dataset and a list of workers, none of which has registered."""
    state = DispatcherState()
    commit(state, shares.set_worker_list(state, addresses))
    dataset = RegisterDataset(plan=b"p", schema=b"s", cardinality=10, compression="AUTO")
    commit(state, decide.register_dataset(state, dataset))
    return state


def state_with_iteration() -> DispatcherState:
    """Returns a state with both workers and reader r1 of iteration i1."""
    state = state_with_worker_list()
    add_worker(state, "w0", "a:1")
    add_worker(state, "w1", "b:7")
    commit(state, opening.open_iteration(state, OPEN, None))
    return state


def answer_of(state: DispatcherState) -> tuple[bool, bool, tuple[str, ...]]:
    answer = leasing.answer_sync(state, Sync(reader_id="r1", iteration_id="i1"))
    return answer.ended, answer.iteration_finished, answer.missing


def member_ids(state: DispatcherState) -> list[str]:
    update = shares.workers_to_read(state, state.iterations["i1"], WorkerSet(), 0)
    return [worker.worker_id for worker in update.workers]


def test_worker_index_is_its_place_in_list_not_order_of_arrival() -> None:
    state = state_with_worker_list()
    add_worker(state, "late", "b:7")
    add_worker(state, "later", "a:9")
    assert shares.place_of(state, "late") == WorkerPlace(1, 2)
    assert shares.place_of(state, "later") == WorkerPlace(0, 2)
    assert shares.place_of(DispatcherState(), "late") == WorkerPlace(0, 0)


def test_unlisted_worker_address_is_refused_without_trace() -> None:
    state = state_with_worker_list()
    with pytest.raises(FailedPreconditionError, match=r"c:1 is not configured"):
        decide.register_worker(state, RegisterWorker(worker_id="w", address="c:1"))
    assert not state.workers


@pytest.mark.parametrize("policy", STATIC)
def test_static_policy_without_worker_list_is_refused_naming_option(policy: ShardingPolicy) -> None:
    state = state_with_worker_list(())
    request = replace(OPEN, policy=policy)
    for ask in (
        lambda: opening.dataset_to_plan(state, request),
        lambda: opening.open_iteration(state, request, None),
    ):
        with pytest.raises(NotFoundError, match=r"registered workers: none yet.*worker_addresses"):
            ask()
    add_worker(state, "w2", "b:2")
    add_worker(state, "w1", "a:1")
    with pytest.raises(NotFoundError, match=r"in the workers list.*registered workers: a:1, b:2"):
        opening.dataset_to_plan(state, request)


@pytest.mark.parametrize("policy", STATIC)
def test_only_file_policies_list_sources(policy: ShardingPolicy) -> None:
    needed = opening.dataset_to_plan(state_with_worker_list(), replace(OPEN, policy=policy))
    expects = policy in (ShardingPolicy.FILE, ShardingPolicy.FILE_OR_DATA)
    assert (needed is not None) == expects


def test_iteration_ends_when_all_shards_are_finished() -> None:
    state = state_with_iteration()
    assert answer_of(state) == (True, False, ()), "nothing beyond what the streams bring"
    commit(state, decide.finish_task(state, "w0", "i1"))
    assert member_ids(state) == ["w1"]
    assert decide.finish_task(state, "w0", "i1") == Decision(()), "reported once"
    assert decide.finish_task(state, "gone", "i1") == Decision(())
    commit(state, decide.finish_task(state, "w1", "i1"))
    assert answer_of(state) == (True, True, ())
    assert member_ids(state) == []


def test_listed_worker_that_never_registered_is_missing() -> None:
    state = state_with_worker_list()
    add_worker(state, "w1", "b:7")
    answer = opened(state, OPEN, "files")
    assert (answer.num_shards, answer.listing) == (2, "files")
    again = opened(state, replace(OPEN, reader_id="r2"), None)
    assert (again.num_shards, again.listing) == (2, "files"), "also for who joins later"
    commit(state, decide.finish_task(state, "w1", "i1"))
    assert answer_of(state) == (False, False, ("worker 0 of 2 at a:%port%",))
    add_worker(state, "w0", "a:3")
    assert answer_of(state) == (True, False, ())
    assert member_ids(state) == ["w0"]


def test_shard_of_lost_worker_stays_due_for_its_address_only() -> None:
    state = state_with_iteration()
    commit(state, decide.lose_worker(state, "w0"))
    assert answer_of(state) == (False, False, ("worker 0 of 2 at a:%port% (bound to a:1)",))
    assert member_ids(state) == ["w1"]
    with pytest.raises(FailedPreconditionError):
        decide.register_worker(state, RegisterWorker(worker_id="w2", address="a:2"))
    add_worker(state, "w3", "a:1")
    assert member_ids(state) == ["w3", "w1"]


def test_worker_lost_after_finishing_its_shard_is_not_missing() -> None:
    state = state_with_iteration()
    commit(state, decide.finish_task(state, "w0", "i1"))
    commit(state, decide.lose_worker(state, "w0"))
    assert answer_of(state) == (True, False, ())
    add_worker(state, "w3", "a:1")
    assert member_ids(state) == ["w1"], "what is finished does not begin again"


def test_restarted_worker_takes_over_shard_of_its_address() -> None:
    state = state_with_iteration()
    add_worker(state, "w2", "a:1")
    assert member_ids(state) == ["w2", "w1"]
    assert not state.iterations["i1"].shards[0]


def test_bindings_and_shards_survive_journal_compaction() -> None:
    state = state_with_iteration()
    commit(state, decide.finish_task(state, "w1", "i1"))
    assert compacted(state) == state


def test_changed_worker_list_is_refused_until_iteration_ends() -> None:
    state = state_with_iteration()
    assert shares.set_worker_list(state, list(LIST)) == Decision(())
    with pytest.raises(InvalidArgumentError, match="names a:1 twice"):
        shares.set_worker_list(state, ("a:1", "a:1"))
    with pytest.raises(FailedPreconditionError, match=r"worker_addresses changed.*old list"):
        shares.set_worker_list(state, ("a:%port%",))
    for worker in ("w0", "w1"):
        commit(state, decide.finish_task(state, worker, "i1"))
    changed = shares.set_worker_list(state, ("c",))
    lost = [event for event in changed.events if isinstance(event, ev.WorkerLost)]
    assert [event.left for event in lost] == [True, True], "no window has killed them"
    commit(state, changed)
    assert not state.workers
    assert not state.bound
    add_worker(state, "w9", "c:4")


def test_worker_list_may_change_while_data_are_divided_window_by_window() -> None:
    state = state_with_worker_list()
    commit(state, opening.open_iteration(state, facts.OPEN, facts.plan_of(2)))
    commit(state, shares.set_worker_list(state, ("c",)))
    assert state.worker_list == ("c",)


def test_named_job_refuses_dataset_with_other_plan() -> None:
    state = state_with_iteration()
    for number, fingerprint in ((1001, "a"), (1002, "a"), (1003, "b")):
        dataset = RegisterDataset(
            plan=b"p", schema=b"s", cardinality=10, compression="AUTO", fingerprint=fingerprint
        )
        assert commit(state, decide.register_dataset(state, dataset)) == str(number)
    first = replace(OPEN, job_name="p", dataset_id="1001", reader_id="r5", job_id="j5")
    commit(state, opening.open_iteration(state, replace(first, iteration_id="i5"), None))
    same = replace(first, dataset_id="1002", reader_id="r6")
    commit(state, opening.open_iteration(state, same, None))
    assert state.iteration_of_reader["r6"] == "i5"
    with pytest.raises(InvalidArgumentError, match="dataset 1001 has another plan"):
        opening.open_iteration(state, replace(same, dataset_id="1003", reader_id="r7"), None)


def test_named_job_refuses_other_policy() -> None:
    state = state_with_iteration()
    with pytest.raises(InvalidArgumentError, match="existing DATA, got FILE"):
        opening.open_iteration(
            state, replace(OPEN, policy=ShardingPolicy.FILE, reader_id="r2"), None
        )
