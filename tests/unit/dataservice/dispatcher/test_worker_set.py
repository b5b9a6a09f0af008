"""Versioned sets of workers: readers are told only the changes, and these add up to the set."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataservice.client.known_workers import KnownWorkers
from dataservice.client.targets import Targets
from dataservice.dispatcher import worker_set as module
from dataservice.dispatcher.events import WorkerRegistered
from dataservice.dispatcher.packed_workers import PackedWorkers
from dataservice.dispatcher.worker_set import WorkerSet, WorkersUpdate
from dataservice.errors import DataLossError
from dataservice.job_options import JobOptions
from dataservice.vocabulary import ShardingPolicy, WorkerId
from dataservice.wire import dispatcher_pb2 as pb
from dataservice.wire.worker_list import unfold

Workers = dict[WorkerId, WorkerRegistered]


def worker(number: int) -> WorkerRegistered:
    return WorkerRegistered(
        worker_id=WorkerId(f"w{number}"),
        address=f"host:{number}",
        host="h",
        pid=number,
        host_id=f"boot-{number % 2}",
    )


def toggle(worker_set: WorkerSet, workers: Workers, number: int) -> None:
    each = worker(number)
    if workers.pop(each.worker_id, None) is None:
        workers[each.worker_id] = each
        worker_set.add(each.worker_id)
    else:
        worker_set.drop(each.worker_id)


def version_of(worker_ids: Iterable[str]) -> int:
    worker_set = WorkerSet()
    for worker_id in worker_ids:
        worker_set.add(WorkerId(worker_id))
    return worker_set.version


def sync_reply_of(update: WorkersUpdate) -> pb.SyncReply:
    return pb.SyncReply(
        workers=[
            pb.WorkerInfo(worker_id=w.worker_id, address=w.address, host_id=w.host_id)
            for w in update.workers
        ],
        lost_worker_ids=update.lost,
        members_version=update.version,
        members_differ=update.is_change,
    )


def test_reader_with_known_version_is_told_changes_only() -> None:
    worker_set, workers = WorkerSet(), dict[WorkerId, WorkerRegistered]()
    for number in range(100):
        toggle(worker_set, workers, number)
    known = worker_set.version
    toggle(worker_set, workers, 7)
    toggle(worker_set, workers, 200)
    update = worker_set.since(known, workers)
    assert update == WorkersUpdate(worker_set.version, (worker(200),), (WorkerId("w7"),), True)
    unchanged = WorkersUpdate(worker_set.version, (), (), True)
    assert worker_set.since(worker_set.version, workers) == unchanged


def test_reader_with_unknown_or_old_version_is_told_whole_set(monkeypatch) -> None:
    monkeypatch.setattr(module, "CHANGES_KEPT", 3)
    worker_set, workers = WorkerSet(), dict[WorkerId, WorkerRegistered]()
    toggle(worker_set, workers, 0)
    old = worker_set.version
    for number in range(1, 5):
        toggle(worker_set, workers, number)
    for known in (0, old, 12345):
        update = worker_set.since(known, workers)
        assert not update.is_change
        assert update.workers == tuple(workers.values())


def test_worker_that_came_and_left_restores_version() -> None:
    worker_set, workers = WorkerSet(), dict[WorkerId, WorkerRegistered]()
    toggle(worker_set, workers, 1)
    known = worker_set.version
    toggle(worker_set, workers, 2)
    toggle(worker_set, workers, 2)
    assert worker_set.version == known
    assert worker_set.since(known, workers) == WorkersUpdate(known, (), (), is_change=True)


def test_repeated_add_or_unknown_drop_keeps_version() -> None:
    worker_set = WorkerSet()
    worker_set.add(WorkerId("w1"))
    version = worker_set.version
    worker_set.add(WorkerId("w1"))
    worker_set.drop(WorkerId("w2"))
    assert worker_set.version == version == version_of(["w1"])


@given(
    st.lists(st.one_of(st.integers(0, 5), st.sampled_from(["ask", "restart"])), max_size=40),
    st.sampled_from(["AUTO", "LOCAL"]),
)
def test_applied_updates_equal_workers_reader_may_read(steps: list[int | str], target: str) -> None:
    worker_set, workers, known = WorkerSet(), dict[WorkerId, WorkerRegistered](), KnownWorkers()
    targets = Targets(JobOptions(target_workers=target), ShardingPolicy.DYNAMIC, "boot-1")
    for step in steps:
        if isinstance(step, int):
            toggle(worker_set, workers, step)
        elif step == "ask":
            reply = sync_reply_of(worker_set.since(known.version, workers))
            targets.narrow(reply)
            known.apply(reply)
            assert known.addresses.keys() == {
                worker.worker_id
                for worker in workers.values()
                if target == "AUTO" or worker.host_id == "boot-1"
            }
            assert known.version == version_of(workers)
        else:
            worker_set = WorkerSet()
            for worker_id in workers:
                worker_set.add(worker_id)


@pytest.mark.parametrize(("target", "readers"), [("AUTO", 40), ("LOCAL", 0)])
def test_reader_count_is_dropped_for_local_workers(target: str, readers: int) -> None:
    reply = pb.SyncReply(readers=40, workers=[pb.WorkerInfo(worker_id="w", host_id="boot-1")])
    Targets(JobOptions(target_workers=target), ShardingPolicy.DYNAMIC, "boot-1").narrow(reply)
    assert reply.readers == readers


def packed_reply(
    packed: PackedWorkers, worker_set: WorkerSet, workers: Workers
) -> pb.OpenIterationReply:
    reply = pb.OpenIterationReply()
    packed.add_to(reply, tuple(workers.values()), worker_set.version)
    # As it arrives over the wire.
    return pb.OpenIterationReply.FromString(reply.SerializeToString())


@given(st.lists(st.integers(0, 12), max_size=60))
def test_unfolded_worker_list_equals_current_workers(steps: list[int]) -> None:
    packed = PackedWorkers(few=3)
    worker_set, workers = WorkerSet(), dict[WorkerId, WorkerRegistered]()
    for number in steps:
        toggle(worker_set, workers, number)
        reply = packed_reply(packed, worker_set, workers)
        unfold(reply)
        told_of = {w.worker_id: w.address for w in reply.workers}
        assert told_of == {w.worker_id: w.address for w in workers.values()}
        assert len(reply.workers) == len(workers)
        assert not reply.lost_worker_ids
        assert not reply.worker_list


def test_worker_list_is_packed_once_while_few_workers_change() -> None:
    packed = PackedWorkers()
    worker_set, workers = WorkerSet(), dict[WorkerId, WorkerRegistered]()
    for number in range(2_000):
        toggle(worker_set, workers, number)
    first = packed_reply(packed, worker_set, workers)
    for number in (5, 2_000):
        toggle(worker_set, workers, number)
    second = packed_reply(packed, worker_set, workers)
    assert len(first.worker_list) < 40_000
    assert second.worker_list == first.worker_list
    assert [w.worker_id for w in second.workers] == ["w2000"]
    assert second.lost_worker_ids == ["w5"]


def test_damaged_worker_list_is_data_loss() -> None:
    with pytest.raises(DataLossError, match="list of workers"):
        unfold(pb.SyncReply(worker_list=b"no list"))
