"""Exactly-once delivery in pure code: real decisions and events, modelled workers and readers.

Workers die, fall silent or come back; readers die; replies get lost and requests are repeated;
the dispatcher is replayed from its journal at any moment. After every step the invariants hold;
at the end every row was acknowledged once, and delivered once by a reader that kept it.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dataservice.dispatcher import decide, leasing, opening, quarantine
from dataservice.dispatcher import events as ev
from dataservice.dispatcher.invariants import check_invariants
from dataservice.dispatcher.journal_frames import decode_frame, encode_frame
from dataservice.dispatcher.plans import WindowPlan
from dataservice.dispatcher.requests import (
    Decision,
    LeaseAnswer,
    LeaseWindows,
    OpenIteration,
    RegisterDataset,
    RegisterWorker,
    Sync,
)
from dataservice.dispatcher.state import DispatcherState
from dataservice.errors import NotFoundError
from dataservice.ranges import RowMark
from dataservice.sharding import Split
from dataservice.vocabulary import ShardingPolicy
from tests.unit.dataservice.dispatcher.dispatcher_facts import compacted

ROWS = 7
ITERATION = "i1"


@dataclass
class SimLease:
    window: int
    generation: int
    next_row: int
    reader: str


@dataclass
class SimWorker:
    worker_id: str
    leases: list[SimLease] = field(default_factory=list)
    sequence: int = 0


@dataclass
class SimReader:
    """A correct reader: accepts in order, releases fenced windows, repeats unanswered requests."""

    reader_id: str
    received: dict[int, int] = field(default_factory=dict)
    consumed: dict[int, int] = field(default_factory=dict)
    generation: dict[int, int] = field(default_factory=dict)
    fenced: dict[int, int] = field(default_factory=dict)
    complete: set[int] = field(default_factory=set)
    told: dict[int, int] = field(default_factory=dict)
    releases: dict[tuple[int, int], RowMark] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    buffer: deque[tuple[int, int]] = field(default_factory=deque)
    delivered: list[tuple[int, int]] = field(default_factory=list)
    ended: bool = False

    def receive(self, window: int, generation: int, first: int, end: int, final: bool) -> None:
        if generation <= self.fenced.get(window, -1) or window in self.complete:
            return
        received = self.received.setdefault(window, first)
        assert first == received, "leases of a window follow each other without gap or overlap"
        assert generation >= self.generation.get(window, 0), "an old lease still produces"
        self.generation[window] = generation
        self.buffer.extend((window, row) for row in range(received, end))
        self.received[window] = max(received, end)
        if final:
            self.complete.add(window)

    def consume(self, count: int) -> None:
        for _ in range(min(count, len(self.buffer))):
            window, row = self.buffer.popleft()
            self.delivered.append((window, row))
            self.consumed[window] = row + 1

    def _mark(self, window: int) -> RowMark:
        row = self.consumed.get(window, 0)
        final = window in self.complete and row == self.received[window]
        return RowMark(window, self.generation[window], row, final)

    def sync_request(self) -> Sync:
        news = [w for w in self.generation if self._mark(w).row != self.told.get(w)]
        return Sync(
            reader_id=self.reader_id,
            iteration_id=ITERATION,
            consumed=tuple(self._mark(w) for w in news),
            released=tuple(self.releases.values()),
            broken_worker_ids=tuple(sorted(self.broken)),
        )

    def answered(self, request: Sync, fences: tuple[RowMark, ...], ended: bool) -> None:
        self.told.update({m.window: m.row for m in request.consumed})
        for mark in request.released:
            self.releases.pop((mark.window, mark.generation), None)
        self.broken -= set(request.broken_worker_ids)
        for fence in fences:
            self._release(fence)
        self.ended = ended

    def _release(self, fence: RowMark) -> None:
        window = fence.window
        self.fenced[window] = max(self.fenced.get(window, -1), fence.generation)
        row = self.received.get(window, 0)
        mark = RowMark(window, fence.generation, row, window in self.complete)
        self.releases[(window, fence.generation)] = mark


class Cluster:
    """A dispatcher made of decisions, and the modelled workers and readers around it."""

    def __init__(self, windows: int, rounds: int = 1) -> None:
        self.state = DispatcherState()
        self.frames: list[bytes] = []
        self.workers: dict[str, SimWorker] = {}
        self.readers: dict[str, SimReader] = {}
        self.gone: dict[str, SimReader] = {}
        self.ended_times = 0
        self.granted: dict[int, int] = {}
        self.total = windows * rounds
        self._names = 0
        splits = tuple(
            Split(start=i * ROWS, stop=(i + 1) * ROWS, rows=ROWS) for i in range(windows)
        )
        self.plan = WindowPlan(splits=splits, target_rows=ROWS, rounds=rounds, shuffle_seed=3)
        request = RegisterDataset(plan=b"p", schema=b"s", cardinality=-2, compression="NONE")
        self.dataset_id = self.commit(decide.register_dataset(self.state, request))

    def commit(self, decision: Decision) -> object:
        before = self._is_finished()
        if decision.events:
            frame = encode_frame(decision.events)
            self.frames.append(frame)
            for event in decode_frame(frame):
                self._watch(event)
                self.state.apply(event)
        check_invariants(self.state)
        self.ended_times += self._is_finished() and not before
        assert before <= self._is_finished(), "an iteration that ended began again"
        return decision.reply

    def _is_finished(self) -> bool:
        iteration = self.state.iterations.get(ITERATION)
        return iteration is not None and iteration.finished

    def _watch(self, event: ev.Event) -> None:
        if isinstance(event, ev.WindowsLeased):
            records = self.state.iterations[ITERATION].windows.records  # type: ignore[union-attr]
            for window in event.windows:
                generation = records[window].generation if window in records else 0
                assert generation > self.granted.get(window, -1), "a lease repeats a generation"
                self.granted[window] = generation

    def name(self, kind: str) -> str:
        self._names += 1
        return f"{kind}{self._names}"

    # Peers come and go

    def add_worker(self, address: str | None = None) -> str:
        worker_id = self.name("w")
        request = RegisterWorker(worker_id=worker_id, address=address or worker_id)
        self.commit(decide.register_worker(self.state, request))
        self.workers[worker_id] = SimWorker(worker_id)
        return worker_id

    def add_reader(self) -> str:
        reader_id = self.name("r")
        request = OpenIteration(
            dataset_id=self.dataset_id,
            policy=ShardingPolicy.DYNAMIC,
            job_name="train",
            repetition=0,
            delivery="exactly_once",
            reader_id=reader_id,
            job_id="j1",
            iteration_id=ITERATION,
        )
        self.commit(opening.open_iteration(self.state, request, self.plan))
        self.commit(opening.open_iteration(self.state, request, self.plan))
        assert list(self.state.iterations[ITERATION].readers).count(reader_id) == 1
        self.readers[reader_id] = SimReader(reader_id)
        return reader_id

    def kill_worker(self, worker_id: str, how: str) -> None:
        """Ends a worker in one of four ways.

        `noticed`: readers see their streams break. `silent`: only the lease expires. `frozen`: the
        worker is declared lost, but lives and goes on sending for a while. `restarted`: another
        worker takes its address.
        """
        if how != "frozen":
            del self.workers[worker_id]
        if how == "noticed":
            for reader in self.readers.values():
                reader.broken.add(worker_id)
        elif how == "restarted":
            self.add_worker(self.state.workers[worker_id].address)
        else:
            self.commit(decide.lose_worker(self.state, worker_id))

    def kill_reader(self, reader_id: str) -> None:
        self.gone[reader_id] = self.readers.pop(reader_id)
        self.commit(decide.lose_reader(self.state, reader_id))

    def restart_dispatcher(self) -> None:
        replayed = DispatcherState()
        for frame in self.frames:
            for event in decode_frame(frame):
                replayed.apply(event)
        assert replayed == self.state
        shortened = compacted(self.state)
        assert shortened == self.state
        self.state = shortened

    # The protocol

    def lease(self, worker_id: str, reader_id: str, count: int, lost: bool = False) -> None:
        worker = self.workers[worker_id]
        try:
            decide.check_worker(self.state, worker_id)
        except NotFoundError:
            del self.workers[worker_id]
            return
        worker.sequence += 1
        request = LeaseWindows(
            worker_id=worker_id,
            iteration_id=ITERATION,
            reader_id=reader_id,
            count=count,
            sequence=worker.sequence,
        )
        for _ in range(1 + lost):
            self.commit(leasing.open_round(self.state, ITERATION))
            answer = self.commit(leasing.lease_windows(self.state, request))
        assert isinstance(answer, LeaseAnswer)
        for lease in answer.leases:
            sim = SimLease(lease.window_index, lease.generation, lease.start_row, reader_id)
            worker.leases.append(sim)

    def produce(self, worker_id: str, which: int, count: int) -> None:
        worker = self.workers[worker_id]
        if not worker.leases:
            return
        lease = worker.leases[which % len(worker.leases)]
        reader = self.readers.get(lease.reader)
        end = min(ROWS, lease.next_row + count)
        if reader is not None and worker_id not in reader.broken:
            reader.receive(lease.window, lease.generation, lease.next_row, end, end == ROWS)
        lease.next_row = end
        if end == ROWS:
            worker.leases.remove(lease)

    def give_back(self, worker_id: str) -> None:
        """Returns all leases of a worker, as an orderly shutdown does."""
        worker = self.workers[worker_id]
        returned = tuple(RowMark(x.window, x.generation, 0, False) for x in worker.leases)
        worker.leases.clear()
        request = LeaseWindows(
            worker_id=worker_id, iteration_id=ITERATION, reader_id="", count=0, returned=returned
        )
        self.commit(leasing.give_back(self.state, request))

    def sync(self, reader_id: str, lost: bool = False) -> None:
        reader = self.readers[reader_id]
        request = reader.sync_request()
        for _ in range(1 + lost):
            self.commit(leasing.sync(self.state, request))
        answer = leasing.answer_sync(self.state, request)
        reader.answered(request, answer.fences, answer.ended)

    # The end

    def play_to_the_end(self) -> None:
        if not self.readers:
            self.add_reader()
        for worker_id in list(self.workers):
            if worker_id not in self.state.workers:
                del self.workers[worker_id]
        for worker_id in set(self.state.workers) - set(self.workers):
            self.commit(decide.lose_worker(self.state, worker_id))
        if not self.workers:
            self.add_worker()
        for _ in range(40 * (self.total + 4)):
            if self._is_finished():
                break
            for worker_id in list(self.workers):
                self.commit(quarantine.acquit(self.state, worker_id))
                for reader_id in self.readers:
                    self.lease(worker_id, reader_id, 2)
                while self.workers[worker_id].leases:
                    self.produce(worker_id, 0, 3)
            for reader_id, reader in self.readers.items():
                reader.consume(5)
                self.sync(reader_id)
        assert self._is_finished(), "the iteration never ends"
        assert self.ended_times == 1

    def check_exactly_once(self) -> None:
        everything = {(window, row): 1 for window in range(self.total) for row in range(ROWS)}
        acknowledged = self._acknowledged()
        kept: Counter[tuple[int, int]] = Counter()
        for reader in self.readers.values():
            kept.update(reader.delivered)
        for reader in self.gone.values():
            mine = acknowledged.get(reader.reader_id, {})
            kept.update(
                (window, row) for window, row in reader.delivered if row < mine.get(window, 0)
            )
        # Workers die so often here that windows that were leased to them may be quarantined.
        table = self.state.iterations[ITERATION].windows
        given_up = {entry.window for entry in table.quarantined}  # type: ignore[union-attr]
        due = {row: 1 for row in everything if row[0] not in given_up}
        assert {row: count for row, count in kept.items() if row[0] not in given_up} == due
        assert all(count == 1 for count in kept.values())

    def _acknowledged(self) -> dict[str, dict[int, int]]:
        rows: dict[str, dict[int, int]] = {}
        for frame in self.frames:
            for event in decode_frame(frame):
                if isinstance(event, ev.RowsConsumed):
                    mine = rows.setdefault(event.reader_id, {})
                    for mark in event.marks:
                        mine[mark.window] = max(mine.get(mark.window, 0), mark.row)
        return rows


DEATHS = ("noticed", "silent", "frozen", "restarted")


def play(seed: int, steps: int) -> Cluster:
    """Plays a random life of a cluster; the test's name contains the seed."""
    dice = random.Random(seed)
    cluster = Cluster(windows=dice.randint(1, 9), rounds=dice.randint(1, 3))
    for _ in range(2):
        cluster.add_worker()
        cluster.add_reader()
    for _ in range(steps):
        workers, readers = list(cluster.workers), list(cluster.readers)
        action = dice.choices(
            ["lease", "produce", "consume", "sync", "worker", "reader", "dispatcher", "back"],
            [6, 12, 6, 6, 1, 0.5, 0.5, 0.5],
        )[0]
        if action == "lease" and workers and readers:
            lost = dice.random() < 0.2
            cluster.lease(dice.choice(workers), dice.choice(readers), dice.randint(1, 3), lost)
        elif action == "produce" and workers:
            cluster.produce(dice.choice(workers), dice.randrange(9), dice.randint(1, ROWS))
        elif action == "consume" and readers:
            cluster.readers[dice.choice(readers)].consume(dice.randint(1, 9))
        elif action == "sync" and readers:
            cluster.sync(dice.choice(readers), dice.random() < 0.2)
        elif action == "worker":
            live = [w for w in workers if w in cluster.state.workers]
            if live and dice.random() < 0.6:
                cluster.kill_worker(dice.choice(live), dice.choice(DEATHS))
            else:
                cluster.add_worker()
        elif action == "reader":
            if readers and dice.random() < 0.5:
                cluster.kill_reader(dice.choice(readers))
            else:
                cluster.add_reader()
        elif action == "dispatcher":
            cluster.restart_dispatcher()
        elif action == "back" and workers and workers[0] in cluster.state.workers:
            cluster.give_back(workers[0])
    return cluster


@pytest.mark.parametrize("seed", range(60))
def test_rows_are_delivered_exactly_once_under_random_failures(seed: int) -> None:
    cluster = play(seed, steps=150)
    cluster.play_to_the_end()
    cluster.check_exactly_once()
    cluster.restart_dispatcher()


def test_exactly_once_check_notices_row_delivered_twice() -> None:
    cluster = Cluster(windows=1)
    cluster.add_reader()
    cluster.play_to_the_end()
    reader = next(iter(cluster.readers.values()))
    reader.delivered.append(reader.delivered[0])
    with pytest.raises(AssertionError):
        cluster.check_exactly_once()


class ClusterMachine(RuleBasedStateMachine):
    """A cluster for which Hypothesis searches the shortest life that goes wrong."""

    @initialize(windows=st.integers(1, 5), rounds=st.integers(1, 2))
    def begin(self, windows: int, rounds: int) -> None:
        self.cluster = Cluster(windows, rounds)
        self.cluster.add_worker()
        self.cluster.add_reader()

    def _worker(self, which: int) -> str:
        return list(self.cluster.workers)[which % len(self.cluster.workers)]

    def _reader(self, which: int) -> str:
        return list(self.cluster.readers)[which % len(self.cluster.readers)]

    @rule()
    def add_worker(self) -> None:
        self.cluster.add_worker()

    @rule()
    def add_reader(self) -> None:
        self.cluster.add_reader()

    @precondition(lambda self: self.cluster.workers and self.cluster.readers)
    @rule(
        worker=st.integers(0, 9),
        reader=st.integers(0, 9),
        count=st.integers(0, 3),
        lost=st.booleans(),
    )
    def lease(self, worker: int, reader: int, count: int, lost: bool) -> None:
        self.cluster.lease(self._worker(worker), self._reader(reader), count, lost)

    @precondition(lambda self: self.cluster.workers)
    @rule(worker=st.integers(0, 9), which=st.integers(0, 9), count=st.integers(1, ROWS))
    def produce(self, worker: int, which: int, count: int) -> None:
        self.cluster.produce(self._worker(worker), which, count)

    @precondition(lambda self: self.cluster.readers)
    @rule(reader=st.integers(0, 9), count=st.integers(1, 9))
    def consume(self, reader: int, count: int) -> None:
        self.cluster.readers[self._reader(reader)].consume(count)

    @precondition(lambda self: self.cluster.readers)
    @rule(reader=st.integers(0, 9), lost=st.booleans())
    def sync(self, reader: int, lost: bool) -> None:
        self.cluster.sync(self._reader(reader), lost)

    @precondition(lambda self: set(self.cluster.workers) & set(self.cluster.state.workers))
    @rule(worker=st.integers(0, 9), how=st.sampled_from(DEATHS))
    def kill_worker(self, worker: int, how: str) -> None:
        live = [w for w in self.cluster.workers if w in self.cluster.state.workers]
        self.cluster.kill_worker(live[worker % len(live)], how)

    @precondition(lambda self: self.cluster.readers)
    @rule(reader=st.integers(0, 9))
    def kill_reader(self, reader: int) -> None:
        self.cluster.kill_reader(self._reader(reader))

    @rule()
    def restart_dispatcher(self) -> None:
        self.cluster.restart_dispatcher()

    @invariant()
    def windows_are_owned_once(self) -> None:
        iteration = self.cluster.state.iterations.get(ITERATION) if self._has_begun() else None
        if iteration is None or iteration.windows is None:
            return
        owned = Counter(w for r in iteration.windows.readers.values() for w in r.owned)
        assert all(times == 1 for times in owned.values())

    def _has_begun(self) -> bool:
        return hasattr(self, "cluster")

    def teardown(self) -> None:
        if self._has_begun():
            self.cluster.play_to_the_end()
            self.cluster.check_exactly_once()


ClusterMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30)
TestCluster = ClusterMachine.TestCase
