"""From a seed to a data service, its faults, and a verdict on the delivery of rows.

Every choice comes from the seed's own generator. Invariant: `play(seed)` has one outcome.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from dataservice import stream_counts
from dataservice.client import (
    cutting,
    joined_iteration,
    read_spec,
    sequence,
    statistics,
    worker_stream,
)
from dataservice.client import reader as client_reader
from dataservice.client.positions import ReaderPosition
from dataservice.dispatcher import (
    endpoint,
    listing_limit,
    ordering,
    service,
    soft_state,
    state_store,
)
from dataservice.dispatcher.plans import WindowPlan
from dataservice.sharding import Split
from dataservice.worker import (
    dispatcher_link,
    leases,
    membership,
    producer,
    producer_factory,
    rebatch,
)
from tests.simulation import stage
from tests.simulation.base_scenario import FAULTS_UNTIL_S, Outcome, ServiceScenario
from tests.simulation.checker import Checker
from tests.simulation.dispatcher_node import DispatcherNode
from tests.simulation.reader_node import ReaderNode
from tests.simulation.shadow import Violation
from tests.simulation.worker_node import Pipeline, Stream, WorkerNode
from tests.simulation.world import Node

# The time for recovery after the last fault: leases and readers time out, calls are retried, rows
# are read again.
PATIENCE_S = 60.0
THOROUGH_EVERY = 16
ORDERED_EVERY = 5
SAVES_EVERY = 8
CHOICE_EVERY = 4
# The share of seeds that have a window which kills its workers.
POISONED = 0.1


class Scenario(ServiceScenario):
    """The readers of one job, and the faults that befall it."""

    # Short, or longer than a lease.
    pauses_s = (0.05, 0.5, 3.0, 6.0)

    def __init__(self, seed: int, *, verbose: bool = False) -> None:
        super().__init__(seed, verbose=verbose)
        self.readers: list[ReaderNode] = []
        plan = self._plan()
        self.world.is_ordered = seed % ORDERED_EVERY == ORDERED_EVERY - 1
        self.world.checker = Checker(plan, thorough=verbose or seed % THOROUGH_EVERY == 0)
        self.world.checker.is_ordered = self.world.is_ordered
        self._saves = seed % SAVES_EVERY < 2
        self.world.poison = self.world.checker.poison = self._poison()
        self.world.checker.is_troubled = self.world.poison is not None
        self.world.workers = {}
        self.dispatcher = self.world.dispatcher = DispatcherNode(
            self.world,
            plan,
            fsync_s=self.dice.choice((0.0005, 0.005, 0.05)),
            shorten_at=self.dice.choice((None, 10, 30)),
        )
        self._pipeline = Pipeline(
            self.dice.choice((None, 1, 3, 5)), is_divisible=self.dice.random() < 0.7
        )
        if self.world.is_ordered:
            # In ordered reads the reader cuts the batches.
            self._pipeline = Pipeline(None, is_divisible=True)
        for _ in range(self.dice.choice((1, 2, 2, 3))):
            self._add_worker()
        for _ in range(self.dice.choice((1, 1, 2, 3))):
            if not (self._saves and self.readers):
                self._add_reader()
        self._plan_faults()

    def _plan(self) -> WindowPlan:
        splits, first = [], 0
        # In some seeds many tiny windows, of which workers ask for growing numbers at once.
        most_splits, most_rows = (40, 1) if self.world.seed % 5 == 4 else (8, 9)
        for _ in range(self.dice.randint(1, most_splits)):
            rows = self.dice.randint(1, most_rows)
            splits.append(Split(start=first, stop=first + rows, rows=rows))
            first += rows
        return WindowPlan(
            splits=tuple(splits),
            target_rows=self.dice.choice((1, 6)),
            tail_rows=(1, 0, 2, 0)[self.world.seed % 4],
            rounds=self.dice.choice((1, 1, 2)),
            shuffle_seed=self.dice.choice((None, 7)),
        )

    def _poison(self) -> int | None:
        """Draws a window that kills its workers, or None; leaves all other draws unchanged."""
        dice = Random(f"poison {self.world.seed}")
        window = dice.randrange(len(self.world.checker.content) or 1)
        return window if dice.random() < POISONED and not self.world.is_ordered else None

    def _add_worker(self) -> None:
        worker = WorkerNode(self.world, len(self.world.workers), self._pipeline)
        self.world.workers[worker.address] = worker
        self._boot(worker, 0.0)

    def _add_reader(self, position: ReaderPosition | None = None) -> None:
        reader = ReaderNode(
            self.world,
            len(self.readers),
            use_s=self.dice.choice((0.001, 0.02, 0.1, 0.3)),
            max_elements=self.dice.choice((1, 4, 16)),
            position=position,
        )
        self.readers.append(reader)
        self._boot(reader, self.dice.choice((0.0, 0.01, 0.5)))

    def _boot(self, node: Any, delay_s: float) -> None:
        self.world.at(delay_s, node, node.boot)

    # Faults

    def _plan_faults(self) -> None:
        for _ in range(self.dice.choice((0, 1, 2, 3, 5))):
            fault = self.dice.choice(FAULTS)
            self.world.at(
                self.dice.random() * FAULTS_UNTIL_S * self.dice.random(), None, fault, self
            )
        for _ in range(self.dice.choice((1, 2, 4)) if self._saves else 0):
            self.world.at(self.dice.random() * FAULTS_UNTIL_S / 2, None, self.save_and_die)
        self.world.at(FAULTS_UNTIL_S, None, self.heal)

    def note(self, what: str, *nodes: Node) -> None:
        self.world.checker.is_troubled = True
        super().note(what, *nodes)

    def _some_reader(self) -> ReaderNode:
        return self.dice.choice(self.readers)

    def kill_all(self) -> None:
        self.kill_dispatcher()
        self.kill_worker()

    def save_and_die(self) -> None:
        """Has a program save, perhaps read further, die, and resume from its position."""
        reader = self.readers[-1]
        if not reader.alive or reader.is_done or reader.reader is None:
            return
        self.note("save", reader)
        position = reader.save()
        self.world.checker.saved(position)
        self.world.at(self.pause_s() / 4, None, self._die_and_go_on, reader, position)

    def _die_and_go_on(self, reader: ReaderNode, position: ReaderPosition) -> None:
        if reader.alive and not reader.is_done and reader is self.readers[-1]:
            reader.crash()
            self.world.has_resumed = True
            self._add_reader(position)

    def kill_reader(self) -> None:
        if self._saves:
            self.save_and_die()
            return
        reader = self._some_reader()
        if reader.alive and not reader.is_done:
            self.note("kill", reader)
            reader.crash()

    def close_reader(self) -> None:
        if self._saves:
            self.save_and_die()
            return
        reader = self._some_reader()
        if reader.alive and not reader.is_done and reader.reader is not None:
            self.note("close", reader)
            self.world.at(0.0, reader, reader.close)

    def freeze(self) -> None:
        nodes: list[Node] = [self.dispatcher, self._some_reader(), self.some_worker()]
        self.freeze_one(self.dice.choice((*nodes, nodes[2])))

    def join(self) -> None:
        self.note("join")
        if self._saves or self.dice.random() < 0.5:
            self._add_worker()
        else:
            self._add_reader()

    def cut(self) -> None:
        self.cut_between([self.dispatcher, self._some_reader(), self.some_worker()])

    def isolate_worker(self) -> None:
        """Cuts a worker from the dispatcher for longer than its lease, but not from readers."""
        worker = self.some_worker()
        self.note("isolate", worker)
        seconds = min(3.5, self.until_heal_s())
        self.world.cut(worker, self.dispatcher, seconds)
        if self.dice.random() < 0.5:
            self.world.cut(self.dispatcher, worker, seconds)

    def reset_stream(self) -> None:
        reader = self._some_reader()
        live = [stream for stream in reader.streams if not stream.is_over]
        if live:
            self.note("reset", reader)
            self.dice.choice(live).reset()

    def corrupt(self) -> None:
        self.note("corrupt")
        # Only one, since a reader gives up after a few damaged streams.
        self.world.corrupt_frames = 1

    def pause_consumer(self) -> None:
        reader = self._some_reader()
        self.note("pause", reader)
        reader.pause_until_s = self.world.now_s + self.pause_s()

    def heal(self) -> None:
        super().heal()
        self.world.corrupt_frames = 0
        if not any(reader.alive and not reader.is_done for reader in self.readers):
            self._add_reader()

    # The end

    def is_over(self) -> bool:
        """True if all readers are gone, and either one saw the end or no further fault comes."""
        for reader in self.readers:
            if reader.alive and not reader.is_done:
                return False
        return self.world.now_s >= FAULTS_UNTIL_S or any(reader.saw_end for reader in self.readers)

    def run(self) -> None:
        self.world.run(FAULTS_UNTIL_S + PATIENCE_S, self.is_over)
        if not self.is_over():
            missing = self.world.checker.missing()
            raise Violation(f"I10: the epoch does not end; missing {missing}")
        self._settle()

    def show(self) -> None:
        for iteration in self.dispatcher.service._state.iterations.values():
            print(iteration)
        for reader in self.readers:
            if reader.alive and reader.reader is not None:
                print(reader.name, reader.reader._session._tracker._windows)

    def _settle(self) -> None:
        """Has late readers take the rows that others left behind, and checks the end."""
        checker = self.world.checker
        # With a poisoned window several are needed: a reader that learns of windows given up fails
        # before it has read everything.
        for _ in range(1 if self.world.poison is None else 4):
            if not checker.missing() and all(
                i.finished for i in checker.shadow.iterations.values()
            ):
                break
            # Waits until readers that are gone have timed out.
            timeout_s = self.dispatcher.service.presence.client_timeout_s
            self.world.run(self.world.now_s + 2 * timeout_s, lambda: False)
            self.heal()
            self._add_reader()
            last = self.readers[-1]
            self.world.run(self.world.now_s + PATIENCE_S, lambda node=last: node.is_done)
            if not last.is_done:
                raise Violation(f"I10: a late reader sees no end; missing {checker.missing()}")
        self.dispatcher.flush()
        checker.replayed(self.dispatcher.service._state)
        checker.finished()


FAULTS: tuple[Callable[[Scenario], None], ...] = (
    Scenario.kill_worker,
    Scenario.kill_worker,
    Scenario.kill_dispatcher,
    Scenario.kill_all,
    Scenario.kill_reader,
    Scenario.close_reader,
    Scenario.freeze,
    Scenario.freeze,
    Scenario.join,
    Scenario.cut,
    Scenario.cut,
    Scenario.isolate_worker,
    Scenario.reset_stream,
    Scenario.reset_stream,
    Scenario.noise,
    Scenario.noise,
    Scenario.corrupt,
    Scenario.slow_disk,
    Scenario.pause_consumer,
)


def play(seed: int, *, verbose: bool = False) -> Outcome:
    """Runs one seed; to be called inside `staged`.

    In some seeds readers choose among the few workers as they otherwise do among many.
    """
    with pytest.MonkeyPatch.context() as patch:
        if seed % CHOICE_EVERY == CHOICE_EVERY - 1:
            patch.setattr(stream_counts, "LEAST_WORKERS", 1)
            patch.setattr(stream_counts, "READERS_PER_WORKER", 1)
        return Scenario(seed, verbose=verbose).play()


@contextmanager
def staged() -> Iterator[None]:
    """Puts the stand-ins in place; several simulations may run one after the other inside."""
    threads = SimpleNamespace(
        Lock=threading.Lock,
        Condition=stage.Condition,
        Event=stage.Flag,
        BoundedSemaphore=threading.BoundedSemaphore,
    )
    clock = SimpleNamespace(monotonic=stage.now_s)
    with pytest.MonkeyPatch.context() as patch:
        for module in (client_reader, listing_limit, state_store, leases, producer):
            patch.setattr(module, "threading", threads)
        for module in (client_reader, leases, producer, membership):
            patch.setattr(module, "StoppableThread", stage.IdleThread)
        for module in (client_reader, statistics, membership, leases, producer):
            patch.setattr(module, "time", clock, raising=False)
        for module in (cutting, rebatch, sequence):
            patch.setattr(module, "concat_batches", stage.join_rows)
        for module in (producer, client_reader, rebatch):
            patch.setattr(module, "encoded_bytes", lambda rows: rows.nbytes)
        for module in (read_spec, endpoint):
            patch.setattr(module, "new_id", stage.next_id)
        # Small limits, so that a few rows and windows reach them.
        patch.setattr(sequence, "_suitable_rows", lambda _batch: 2)
        patch.setattr(ordering, "LOOKAHEAD", 1)
        patch.setattr(client_reader, "ElementBuffer", stage.Buffer)
        patch.setattr(joined_iteration, "DispatcherConnection", stage.Rpc)
        patch.setattr(client_reader, "WorkerStream", Stream)
        patch.setattr(joined_iteration, "decode_schema", lambda schema: schema)
        patch.setattr(worker_stream, "decode_batch", stage.decode_rows)
        patch.setattr(dispatcher_link, "RpcClient", stage.Rpc)
        patch.setattr(producer_factory, "FrameBuffer", stage.Frames)
        patch.setattr(leases, "LONG_POLL_S", stage.LONG_POLL_S)
        quiet = (
            client_reader,
            service,
            state_store,
            soft_state,
            leases,
            membership,
            producer_factory,
        )
        for module in quiet:
            patch.setattr(module.logger, "disabled", True)
        yield
