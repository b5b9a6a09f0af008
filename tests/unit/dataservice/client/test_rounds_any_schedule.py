"""Coordinated reads: the dispatcher and its consumers together, in any schedule."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dataservice.client.rounds import Answer, Block, Report, RoundTracker
from dataservice.dispatcher import decide, rounds
from dataservice.dispatcher.requests import RoundsAnswer
from tests.unit.dataservice.dispatcher.dispatcher_facts import compacted
from tests.unit.dataservice.dispatcher.round_cluster import WINDOW, Cluster


class Giver:
    """A worker that gives a round its next group when the round is first asked for."""

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
    """Consumers die and return, workers come and go, streams are cut, the dispatcher restarts."""

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
    def send_report(self, index: int) -> None:
        consumer = self.consumers.get(index)
        if consumer is not None and consumer.report is None:
            consumer.report = consumer.tracker.report()

    @rule(index=st.integers(0, 2), copies=st.integers(1, 2))
    def deliver_report(self, index: int, copies: int) -> None:
        consumer = self.consumers.get(index)
        if consumer is None or consumer.report is None or consumer.answer is not None:
            return
        broken = tuple(sorted(consumer.broken))
        consumer.broken.clear()
        marks = consumer.report._asdict()
        for _ in range(copies):
            consumer.answer = self.cluster.sync(consumer.reader, broken_worker_ids=broken, **marks)

    @rule(index=st.integers(0, 2))
    def deliver_answer(self, index: int) -> None:
        consumer = self.consumers.get(index)
        if consumer is None or consumer.report is None or consumer.answer is None:
            return
        answer = consumer.answer
        blocks = tuple(Block(*block) for block in answer.blocks)
        consumer.tracker.apply_answer(
            consumer.report,
            Answer(blocks, answer.version, answer.complete, answer.low, answer.begin, answer.roll),
        )
        consumer.report = consumer.answer = None
        self.exchange(consumer)

    def sync(self, index: int) -> None:
        self.send_report(index)
        self.deliver_report(index, 1)
        self.deliver_answer(index)

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
        state = compacted(self.cluster.state)
        assert state == self.cluster.state
        self.cluster.state = state

    @rule(times=st.integers(1, 3), takes=st.integers(0, 3))
    def work(self, times: int, takes: int) -> None:
        """Lets all present consumers go on, so that schedules reach states worth disturbing."""
        for index in list(self.consumers) * times:
            self.sync(index)
            self.receive(index, 12)
            self.take(index, takes)

    def check_progress(self) -> None:
        """Asserts that rounds go on once all consumers and a worker are there."""
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
            self.check_progress()
            self.all_elements_of_a_round_are_of_one_group()

    @invariant()
    def all_elements_of_a_round_are_of_one_group(self) -> None:
        for number, items in self.handed.items():
            assert len(set(items.values())) == 1, (number, items)


Rounds.TestCase.settings = settings(max_examples=80, stateful_step_count=60, deadline=None)
TestAnySchedule = Rounds.TestCase
