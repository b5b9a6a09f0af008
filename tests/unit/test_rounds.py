"""Coordinated reads without threads or network: decisions, trackers, both in any schedule."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dataservice.client.rounds import (
    Answer,
    Block,
    Report,
    RoundTracker,
)
from dataservice.dispatcher import decide, opening, rounds
from dataservice.dispatcher.compaction import facts_of
from dataservice.dispatcher.invariants import check_invariants
from dataservice.dispatcher.journal_frames import decode_frame, encode_frame
from dataservice.dispatcher.requests import (
    Decision,
    OpenIteration,
    RegisterDataset,
    RegisterWorker,
    RoundsAnswer,
    SyncRounds,
)
from dataservice.dispatcher.round_table import RoundTable
from dataservice.dispatcher.state import DispatcherState
from dataservice.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    UnimplementedError,
)
from dataservice.job_options import JobOptions
from dataservice.vocabulary import ShardingPolicy

WINDOW = 6


class Cluster:
    """A dispatcher's state and what is asked of it, each change by facts that went through JSON."""

    def __init__(self, consumers: int = 2, workers: int = 2, cardinality: int = -1) -> None:
        self.state = DispatcherState()
        self.consumers = consumers
        self._ids = 0
        self._rolls: dict[str, int] = {}
        self.commit(
            decide.register_dataset(
                self.state,
                RegisterDataset(plan=b"", schema=b"", cardinality=cardinality, compression="AUTO"),
            )
        )
        for _ in range(workers):
            self.add_worker()

    def commit(self, decision: Decision) -> None:
        for event in decode_frame(encode_frame(decision.events)):
            self.state.apply(event)
        check_invariants(self.state)

    def new_id(self, kind: str) -> str:
        self._ids += 1
        return f"{kind}{self._ids}"

    def add_worker(self) -> str:
        worker = self.new_id("w")
        self.commit(
            decide.register_worker(self.state, RegisterWorker(worker_id=worker, address=worker))
        )
        return worker

    def lose_worker(self, worker: str) -> None:
        self.commit(decide.lose_worker(self.state, worker))

    def join(self, index: int, **changed: Any) -> str:
        reader = self.new_id("r")
        fields: dict[str, Any] = {
            "dataset_id": "1000",
            "policy": ShardingPolicy.OFF,
            "job_name": "steps",
            "repetition": 0,
            "delivery": "exactly_once",
            "options": JobOptions(num_consumers=self.consumers),
            "reader_id": reader,
            "job_id": "j",
            "iteration_id": "i",
            "consumer_index": index,
        }
        request = OpenIteration(**{**fields, **changed})
        self.commit(opening.open_iteration(self.state, request, None))
        return reader

    def sync(self, reader: str, **marks: Any) -> RoundsAnswer:
        known = {"window": WINDOW, "version": 0, "roll": self._rolls.get(reader, 0)}
        request = SyncRounds(reader_id=reader, iteration_id="i", **{**known, **marks})
        decide.find_reader(self.state, reader, "i")
        for decision in rounds.sync(self.state, request):
            self.commit(decision)
        answer = rounds.answer(self.state, request)
        self._rolls[reader] = answer.roll
        return answer

    def meet(self, *readers: str, **marks: Any) -> None:
        """They learn of a roll call, and stop for it."""
        for reader in readers * 2:
            self.sync(reader, **marks)

    @property
    def table(self) -> RoundTable:
        table = self.state.iterations["i"].rounds
        assert table is not None
        return table


def test_everyone_gets_the_same_blocks_from_workers_in_turn() -> None:
    cluster = Cluster(workers=2)
    first, second = cluster.join(0), cluster.join(1)
    answer = cluster.sync(first, window=20)
    assert [(b.first, b.end) for b in answer.blocks] == [(0, 8), (8, 16), (16, 24)]
    givers = [block.worker_id for block in answer.blocks]
    assert givers[0] != givers[1]
    assert givers[0] == givers[2]
    assert cluster.sync(second, window=20).blocks == answer.blocks


def test_a_round_is_complete_when_all_have_it() -> None:
    cluster = Cluster()
    first, second = cluster.join(0), cluster.join(1)
    cluster.meet(first, second)
    assert cluster.sync(first, received=5).complete == 0
    answer = cluster.sync(second, received=3)
    assert (answer.complete, answer.late) == (3, ())
    assert cluster.sync(first, received=5, consumed=2).late == (1,)
    assert cluster.sync(second, received=5, consumed=1).low == 1


def test_only_incomplete_rounds_of_a_lost_worker_move() -> None:
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


def test_a_worker_out_of_reach_gets_no_rounds_until_it_is_trusted() -> None:
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


def test_the_only_worker_keeps_its_rounds() -> None:
    cluster = Cluster(workers=1)
    reader = cluster.join(0)
    (block,) = cluster.sync(reader).blocks
    answer = cluster.sync(reader, broken_worker_ids=(block.worker_id,))
    assert answer.blocks == (block,)


def test_workers_that_are_all_out_of_reach_do_not_hand_rounds_to_each_other() -> None:
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


def test_without_workers_rounds_wait() -> None:
    cluster = Cluster(workers=0)
    reader = cluster.join(0)
    assert cluster.sync(reader).blocks == ()
    cluster.add_worker()
    assert cluster.sync(reader).blocks


def test_who_comes_back_begins_where_the_others_stand_and_fences_who_was_there() -> None:
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
    # What it says before it knows of the roll call may be old by the time it hears of it.
    assert cluster.sync(first, received=6, consumed=4).complete == 4
    assert cluster.sync(third).late == (0,)
    assert cluster.sync(first, received=6, consumed=5).complete == 5
    assert cluster.sync(third).begin == 5


def test_one_that_is_ahead_stays_ahead() -> None:
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


def test_where_nobody_has_stayed_all_begin_where_the_furthest_was() -> None:
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


def test_nobody_goes_on_without_one_that_is_missing_or_has_less() -> None:
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


def test_the_others_get_as_far_as_one_was_that_left() -> None:
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


def test_rounds_that_who_comes_back_cannot_get_are_left_out_by_all() -> None:
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


def test_rounds_that_are_lost_while_one_that_is_ahead_has_handed_them_out() -> None:
    """It leaves out as many more, so that it stays as many steps ahead as it was."""
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


def test_missing_consumers_are_told() -> None:
    cluster = Cluster(consumers=3)
    reader = cluster.join(1)
    assert cluster.sync(reader).missing == (0, 2)
    cluster.commit(decide.release_reader(cluster.state, reader, ()))
    assert cluster.table.missing() == (0, 1, 2)


def test_marks_out_of_range_are_refused() -> None:
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
def test_what_cannot_be_coordinated(
    changed: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Cluster().join(0, **changed)


def test_the_dataset_must_not_end() -> None:
    with pytest.raises(FailedPreconditionError, match=r"infinite cardinality.*cardinality 9"):
        Cluster(cardinality=9).join(0)


# All of it, under any schedule


class Giver:
    """A worker: a round gets the next of its groups when it is first asked for."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.given: dict[int, tuple[int, int]] = {}
        self.groups = 0
        self.low = 0

    def give(self, number: int, generation: int) -> str | None:
        known, group = self.given.get(number, (-1, 0))
        if number < self.low or generation < known:
            return None
        if generation > known:
            group, self.groups = self.groups, self.groups + 1
            self.given[number] = (generation, group)
        return f"{self.name}/{group}"


class Consumer:
    def __init__(self, reader: str) -> None:
        self.reader = reader
        self.tracker: RoundTracker[str] = RoundTracker(WINDOW, 1_000)
        self.frames: dict[str, list[tuple[int, int, str | None]]] = {}
        self.broken: set[str] = set()
        self.report: Report | None = None
        self.answer: RoundsAnswer | None = None


class Rounds(RuleBasedStateMachine):
    """Consumers die and come back, workers come and go, frames and journals are cut anywhere."""

    @initialize(count=st.integers(1, 3))
    def begin(self, count: int) -> None:
        self.count = count
        self.cluster = Cluster(count, workers=0)
        self.givers: dict[str, Giver] = {}
        self.consumers: dict[int, Consumer] = {}
        self.handed: dict[int, dict[int, str]] = {}
        self.last: dict[int, int] = {}
        self.add_worker()

    @rule()
    def add_worker(self) -> None:
        if len(self.givers) < 3:
            name = self.cluster.add_worker()
            self.givers[name] = Giver(name)

    @rule(pick=st.integers(0, 2))
    def lose_worker(self, pick: int) -> None:
        if self.givers:
            name = sorted(self.givers)[pick % len(self.givers)]
            self.cluster.lose_worker(name)
            del self.givers[name]

    @rule(index=st.integers(0, 2))
    def join(self, index: int) -> None:
        index %= self.count
        self.consumers[index] = Consumer(self.cluster.join(index))

    @rule(index=st.integers(0, 2))
    def die_and_be_noticed(self, index: int) -> None:
        if index in self.consumers:
            reader = self.consumers.pop(index).reader
            self.cluster.commit(decide.lose_reader(self.cluster.state, reader))

    @rule(index=st.integers(0, 2))
    def call(self, index: int) -> None:
        consumer = self.consumers.get(index)
        if consumer is not None and consumer.report is None:
            consumer.report = consumer.tracker.report()

    @rule(index=st.integers(0, 2), copies=st.integers(1, 2))
    def arrive(self, index: int, copies: int) -> None:
        consumer = self.consumers.get(index)
        if consumer is None or consumer.report is None or consumer.answer is not None:
            return
        broken = tuple(sorted(consumer.broken))
        consumer.broken.clear()
        marks = consumer.report._asdict()
        for _ in range(copies):
            consumer.answer = self.cluster.sync(consumer.reader, broken_worker_ids=broken, **marks)

    @rule(index=st.integers(0, 2))
    def hear(self, index: int) -> None:
        consumer = self.consumers.get(index)
        if consumer is None or consumer.report is None or consumer.answer is None:
            return
        answer = consumer.answer
        blocks = tuple(Block(*block) for block in answer.blocks)
        consumer.tracker.digest(
            consumer.report,
            Answer(blocks, answer.version, answer.complete, answer.low, answer.begin, answer.roll),
        )
        consumer.report = consumer.answer = None
        self.exchange(consumer)

    def sync(self, index: int) -> None:
        self.call(index)
        self.arrive(index, 1)
        self.hear(index)

    def exchange(self, consumer: Consumer) -> None:
        for name, asks in consumer.tracker.asks(set(self.givers)).items():
            giver = self.givers[name]
            giver.low = max(giver.low, consumer.tracker.low)
            frames = consumer.frames.setdefault(name, [])
            for ask in asks:
                numbers = range(ask.first, ask.end)
                frames += [(n, ask.generation, giver.give(n, ask.generation)) for n in numbers]

    @rule(index=st.integers(0, 2), count=st.integers(1, 12))
    def receive(self, index: int, count: int) -> None:
        consumer = self.consumers.get(index)
        if consumer is None:
            return
        for name, frames in consumer.frames.items():
            for number, generation, item in frames[:count]:
                consumer.tracker.receive(name, number, generation, item, 1)
            del frames[:count]

    @rule(index=st.integers(0, 2), pick=st.integers(0, 2))
    def cut(self, index: int, pick: int) -> None:
        consumer = self.consumers.get(index)
        if consumer is not None and self.givers:
            name = sorted(self.givers)[pick % len(self.givers)]
            consumer.frames.pop(name, None)
            consumer.tracker.forget_worker(name)
            consumer.broken.add(name)

    @rule(index=st.integers(0, 2), count=st.integers(1, 5))
    def take(self, index: int, count: int) -> None:
        consumer = self.consumers.get(index)
        for _ in range(count if consumer is not None else 0):
            assert consumer is not None
            item = consumer.tracker.take()
            if item is None:
                return
            number = consumer.tracker.next_round - 1
            self.handed.setdefault(number, {})[index] = item

    @rule()
    def trust(self) -> None:
        for name in self.givers:
            self.cluster.commit(rounds.trust(self.cluster.state, name, ["i"]))

    @rule()
    def restart_dispatcher(self) -> None:
        frames = [encode_frame([fact]) for fact in facts_of(self.cluster.state)]
        state = DispatcherState()
        for frame in frames:
            for event in decode_frame(frame):
                state.apply(event)
        assert state == self.cluster.state
        self.cluster.state = state

    @rule(times=st.integers(1, 3), takes=st.integers(0, 3))
    def work(self, times: int, takes: int) -> None:
        """Whoever is there goes on, so that schedules reach states worth disturbing."""
        for index in list(self.consumers) * times:
            self.sync(index)
            self.receive(index, 12)
            self.take(index, takes)

    def get_on(self) -> None:
        """Once everybody is there, rounds go on."""
        self.add_worker()
        for index in range(self.count):
            if index not in self.consumers:
                self.join(index)
        before = max(self.handed, default=0)
        for _ in range(40):
            for index in range(self.count):
                self.sync(index)
                self.receive(index, 12)
                self.take(index, 5)
        assert max(self.handed) > before + 10
        newest = self.handed[before + 10]
        assert len(newest) == self.count, "from some round on all are in step"

    def teardown(self) -> None:
        if hasattr(self, "cluster"):
            self.get_on()
            self.all_elements_of_a_round_are_of_one_group()

    @invariant()
    def all_elements_of_a_round_are_of_one_group(self) -> None:
        for number, items in self.handed.items():
            assert len(set(items.values())) == 1, (number, items)


Rounds.TestCase.settings = settings(max_examples=80, stateful_step_count=60, deadline=None)
TestAnySchedule = Rounds.TestCase
