"""The dispatcher's decisions for coordinated reads, without threads or network."""

from __future__ import annotations

from typing import Any

import pytest

from dataservice.dispatcher import decide, rounds
from dataservice.dispatcher.requests import SyncRounds
from dataservice.errors import FailedPreconditionError, InvalidArgumentError, UnimplementedError
from dataservice.job_options import JobOptions
from dataservice.vocabulary import ShardingPolicy
from tests.unit.dataservice.dispatcher.round_cluster import Cluster


def test_all_consumers_get_same_blocks_from_workers_in_turn() -> None:
    cluster = Cluster(workers=2)
    first, second = cluster.join(0), cluster.join(1)
    answer = cluster.sync(first, window=20)
    assert [(b.first, b.end) for b in answer.blocks] == [(0, 8), (8, 16), (16, 24)]
    givers = [block.worker_id for block in answer.blocks]
    assert givers[0] != givers[1]
    assert givers[0] == givers[2]
    assert cluster.sync(second, window=20).blocks == answer.blocks


def test_round_is_complete_once_all_consumers_received_it() -> None:
    cluster = Cluster()
    first, second = cluster.join(0), cluster.join(1)
    cluster.meet(first, second)
    assert cluster.sync(first, received=5).complete == 0
    answer = cluster.sync(second, received=3)
    assert (answer.complete, answer.late) == (3, ())
    assert cluster.sync(first, received=5, consumed=2).late == (1,)
    assert cluster.sync(second, received=5, consumed=1).low == 1


def test_only_incomplete_rounds_of_lost_worker_are_reassigned() -> None:
    cluster = Cluster()
    first, second = cluster.join(0), cluster.join(1)
    lost = cluster.sync(first).blocks[0].worker_id
    cluster.sync(first, received=5)
    cluster.sync(second, received=3)
    cluster.lose_worker(lost)
    answer = cluster.sync(first, received=6)
    kept, moved = answer.blocks
    assert (kept.first, kept.end, kept.worker_id, kept.generation) == (0, 3, lost, 0)
    assert (moved.first, moved.end, moved.generation) == (3, 8, 1)
    assert moved.worker_id != lost
    assert cluster.table.received == [3, 3]
    cluster.sync(first, received=8)
    assert cluster.table.received == [3, 3], "what was received under the old version is void"
    cluster.sync(first, received=8, version=1)
    assert cluster.table.received == [8, 3]


def test_unreachable_worker_gets_no_rounds_until_trusted() -> None:
    cluster = Cluster()
    reader = cluster.join(0)
    cluster.join(1)
    doubtful = cluster.sync(reader).blocks[0].worker_id
    answer = cluster.sync(reader, broken_worker_ids=(doubtful,), window=30)
    assert doubtful not in {block.worker_id for block in answer.blocks}
    again = cluster.sync(reader, broken_worker_ids=(doubtful,), window=30, version=1)
    assert again.version == answer.version, "nothing is left to give away"
    cluster.commit(rounds.trust(cluster.state, doubtful, ["i", "unknown"]))
    answer = cluster.sync(reader, window=60, version=1)
    assert doubtful in {block.worker_id for block in answer.blocks}
    cluster.sync(reader, broken_worker_ids=(doubtful,), window=90, version=1)
    cluster.lose_worker(doubtful)
    assert not cluster.table.suspects


def test_single_worker_keeps_its_rounds_although_unreachable() -> None:
    cluster = Cluster(workers=1)
    reader = cluster.join(0)
    (block,) = cluster.sync(reader).blocks
    answer = cluster.sync(reader, broken_worker_ids=(block.worker_id,))
    assert answer.blocks == (block,)


def test_rounds_of_unreachable_workers_move_only_to_reachable_worker() -> None:
    cluster = Cluster(workers=3)
    reader = cluster.join(0)
    workers = sorted(cluster.state.workers)
    before = cluster.sync(reader, window=30)
    request = SyncRounds(
        reader_id=reader, iteration_id="i", window=30, version=0, broken_worker_ids=tuple(workers)
    )
    for count, decision in enumerate(rounds.sync(cluster.state, request)):
        assert count < 20, "it ends"
        cluster.commit(decision)
    assert [b.worker_id for b in cluster.sync(reader, window=30).blocks] == [
        b.worker_id for b in before.blocks
    ]
    cluster.lose_worker(workers[0])
    came = cluster.add_worker()
    answer = cluster.sync(reader, window=30, broken_worker_ids=tuple(workers[1:]), version=1)
    assert {block.worker_id for block in answer.blocks} == {came}


def test_rounds_wait_for_first_worker() -> None:
    cluster = Cluster(workers=0)
    reader = cluster.join(0)
    assert cluster.sync(reader).blocks == ()
    cluster.add_worker()
    assert cluster.sync(reader).blocks


def test_rejoined_consumer_begins_with_others_and_fences_its_predecessor() -> None:
    cluster = Cluster()
    first, second = cluster.join(0), cluster.join(1)
    cluster.meet(first, second)
    for reader in (first, second):
        cluster.sync(reader, received=6)
    cluster.sync(first, received=6, consumed=4)
    cluster.sync(second, received=6, consumed=6)
    third = cluster.join(1)
    answer = cluster.sync(third)
    assert (answer.begin, answer.complete, answer.late) == (4, 4, (0,))
    assert answer.blocks[0].first <= 4
    with pytest.raises(FailedPreconditionError, match="joined as consumer_index 1 of 2"):
        cluster.sync(second)
    cluster.sync(third)
    # What a consumer says before it knows of the roll call may be outdated when it learns of it.
    assert cluster.sync(first, received=6, consumed=4).complete == 4
    assert cluster.sync(third).late == (0,)
    assert cluster.sync(first, received=6, consumed=5).complete == 5
    assert cluster.sync(third).begin == 5


def test_consumer_ahead_stays_ahead_when_another_rejoins() -> None:
    cluster = Cluster(consumers=3)
    readers = [cluster.join(index) for index in range(3)]
    cluster.meet(*readers)
    for reader in readers * 2:
        answer = cluster.sync(reader, received=6)
    assert answer.complete == 6
    fourth = cluster.join(2)
    for consumed, reader in ((4, readers[0]), (3, readers[1]), (0, fourth)):
        cluster.meet(reader, received=6 if consumed else 0, consumed=consumed)
    begins = [cluster.sync(reader).begin for reader in (readers[0], readers[1], fourth)]
    assert begins == [4, 3, 3]


def test_consumers_that_all_rejoin_begin_at_furthest_round() -> None:
    cluster = Cluster(consumers=3)
    readers = [cluster.join(index) for index in range(3)]
    cluster.meet(*readers)
    for reader in readers:
        cluster.sync(reader, received=6)
    for consumed, reader in enumerate(readers, 2):
        cluster.sync(reader, received=6, consumed=consumed)
        cluster.commit(decide.lose_reader(cluster.state, reader))
    again = [cluster.join(index) for index in range(3)]
    cluster.meet(*again)
    assert [cluster.sync(reader).begin for reader in again] == [4, 4, 4]


def test_rounds_stay_incomplete_while_consumer_is_missing_or_behind() -> None:
    cluster = Cluster()
    first, second = cluster.join(0), cluster.join(1)
    cluster.meet(first, second)
    for reader in (first, second):
        cluster.sync(reader, received=6)
    assert cluster.sync(first, received=6, consumed=4).complete == 6
    cluster.commit(decide.lose_reader(cluster.state, second))
    assert cluster.sync(first, received=6, consumed=4).complete == 4
    third = cluster.join(1)
    assert cluster.sync(first, received=6, consumed=4).complete == 4
    cluster.meet(first, third)
    assert cluster.sync(third, received=5, consumed=4).complete == 5
    assert cluster.sync(first, received=6, consumed=4).complete == 5
    assert cluster.sync(third, received=6, consumed=4).complete == 6


def test_remaining_consumers_get_as_far_as_departed_consumer() -> None:
    cluster = Cluster()
    first, second = cluster.join(0), cluster.join(1)
    cluster.meet(first, second)
    for reader in (first, second):
        cluster.sync(reader, received=6)
    cluster.sync(second, received=6, consumed=5)
    cluster.commit(decide.lose_reader(cluster.state, second))
    assert cluster.sync(first, received=6, consumed=2).complete == 5
    third = cluster.join(1)
    cluster.meet(first, third, received=6, consumed=2)
    assert cluster.sync(third).begin == 2


def test_rounds_lost_to_rejoined_consumer_are_skipped_by_all() -> None:
    cluster = Cluster()
    first, second = cluster.join(0), cluster.join(1)
    giver = cluster.sync(first).blocks[0].worker_id
    cluster.meet(first, second)
    for reader in (first, second):
        cluster.sync(reader, received=6)
    cluster.sync(first, received=6, consumed=4)
    cluster.lose_worker(giver)
    third = cluster.join(1)
    cluster.meet(first, third, version=1)
    assert cluster.sync(third, version=1).begin == 6
    assert cluster.sync(first, received=6, consumed=6, version=1).begin == 6


def test_lost_rounds_are_skipped_equally_by_consumer_ahead() -> None:
    """The consumer ahead leaves out as many more, so that it stays as many steps ahead."""
    cluster = Cluster(consumers=3)
    first, second, third = (cluster.join(index) for index in range(3))
    giver = cluster.sync(first).blocks[0].worker_id
    cluster.meet(first, second, third)
    for reader in (first, second, third):
        cluster.sync(reader, received=6)
    fourth = cluster.join(2)
    cluster.meet(fourth)
    cluster.meet(first, received=6, consumed=1)
    cluster.meet(second, received=6)
    cluster.lose_worker(giver)
    assert cluster.sync(second, received=6).roll == 5, "what it lacks was lost afterwards"
    for consumed, reader in ((1, first), (0, second), (0, fourth)):
        cluster.meet(reader, version=1, consumed=consumed)
    begins = [cluster.sync(reader, version=1).begin for reader in (first, second, fourth)]
    assert begins == [7, 6, 6]


def test_missing_consumers_are_named() -> None:
    cluster = Cluster(consumers=3)
    reader = cluster.join(1)
    assert cluster.sync(reader).missing == (0, 2)
    cluster.commit(decide.release_reader(cluster.state, reader, ()))
    assert cluster.table.missing() == (0, 1, 2)


def test_consumer_marks_out_of_range_are_refused() -> None:
    cluster = Cluster()
    reader = cluster.join(0)
    for marks in ({"consumed": 1}, {"received": 99}, {"consumed": -1}):
        with pytest.raises(InvalidArgumentError, match="consumer 0 says"):
            cluster.sync(reader, **marks)
    assert cluster.sync(reader, consumed=7, sought=7).begin == 7


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"job_name": None}, InvalidArgumentError, "need a job_name"),
        ({"consumer_index": 2}, FailedPreconditionError, "got 2 of 2"),
        ({"policy": ShardingPolicy.DYNAMIC}, UnimplementedError, r"use ShardingPolicy\.OFF"),
        (
            {"options": JobOptions(num_consumers=2, target_workers="LOCAL")},
            InvalidArgumentError,
            "non-local workers",
        ),
        (
            {"options": JobOptions(num_consumers=2, cross_trainer_cache=True)},
            InvalidArgumentError,
            "cross-trainer cache excludes coordinated reads",
        ),
        ({"options": JobOptions(num_consumers=2, ordered=True)}, InvalidArgumentError, "ordered"),
        ({"options": JobOptions(num_consumers=2, on_error="skip")}, InvalidArgumentError, "skip"),
    ],
)
def test_options_incompatible_with_coordinated_reads_are_refused(
    changed: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Cluster().join(0, **changed)


def test_coordinated_reads_of_finite_dataset_are_refused() -> None:
    with pytest.raises(FailedPreconditionError, match=r"infinite cardinality.*cardinality 9"):
        Cluster(cardinality=9).join(0)
