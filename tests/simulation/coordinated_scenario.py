"""From a seed to coordinated reads, their faults, and a verdict.

Every choice comes from the seed's own generator. Invariant: `play(seed)` has one outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dataservice.client import (
    joined_iteration,
    round_reader,
    round_stream,
    wait_limits,
    worker_stream,
)
from dataservice.dispatcher.plans import WindowPlan
from dataservice.errors import UnavailableError
from dataservice.runtime.frames import decode_batch
from dataservice.vocabulary import INFINITE_CARDINALITY
from dataservice.worker import plan_thread, production
from dataservice.worker import rounds as worker_rounds
from tests.simulation import coordinated_nodes as nodes
from tests.simulation import scenario
from tests.simulation.base_scenario import FAULTS_UNTIL_S, REPLAY, Outcome, ServiceScenario
from tests.simulation.coordinated_checker import RoundsChecker
from tests.simulation.coordinated_nodes import ConsumerNode, Elements, GivingNode
from tests.simulation.dispatcher_node import DispatcherNode
from tests.simulation.fibers import THREADING, TIME, on_one_core
from tests.simulation.shadow import Violation
from tests.simulation.world import Node

SILENCE_S = 2.0
PATIENCE_S = 40.0
# This many steps of every consumer after the last fault show that nothing hangs.
STEPS_AFTERWARDS = 8
COMMAND = f"{REPLAY} --coordinated"


class Scenario(ServiceScenario):
    """Consumers that step together, and the faults that befall them."""

    # Short, or longer than a lease.
    pauses_s = (0.01, 0.1, 1.0, 3.0, 6.0)
    command = COMMAND

    def __init__(self, seed: int, *, verbose: bool = False) -> None:
        super().__init__(seed, verbose=verbose)
        world, dice = self.world, self.dice
        world.wires, world.poison = [], None
        world.consumers = dice.choice((1, 2, 2, 3))
        world.restart_consumer = self._restart_consumer
        world.checker = RoundsChecker(world.consumers)
        self.dispatcher = world.dispatcher = DispatcherNode(
            world,
            WindowPlan(splits=(), target_rows=1),
            fsync_s=dice.choice((0.0005, 0.005, 0.05)),
            shorten_at=dice.choice((None, 10, 30)),
            cardinality=INFINITE_CARDINALITY,
        )
        for _ in range(dice.choice((1, 2, 2, 3))):
            self._add_worker()
        self._settings = {
            "use_s": dice.choice((0.02, 0.1, 0.3)),
            "window": dice.choice((1, 4, 16)),
            # Programs that step together, or that wait only when the service makes them wait.
            "in_step": dice.random() < 0.7,
        }
        self._programs: list[ConsumerNode] = []
        self.consumers: dict[int, ConsumerNode] = {}
        for index in range(world.consumers):
            self._begin(index, dice.choice((0.0, 0.01, 0.5)))
        self._plan_faults()

    def _add_worker(self) -> None:
        pipeline: Any = Elements()
        worker = GivingNode(self.world, len(self.world.workers), pipeline)
        self.world.workers[worker.address] = worker
        self.world.at(0.0, worker, worker.boot)

    def _begin(self, index: int, delay_s: float) -> None:
        """Starts another process as this consumer, in whatever state the one before is."""
        node = ConsumerNode(self.world, index, len(self._programs), **self._settings)
        self._programs.append(node)
        self.consumers[index] = node
        self.world.at(delay_s, node, node.boot)

    def _restart_consumer(self, index: int, pause_s: float) -> None:
        """Starts an ended program again after a while, unless another has taken its place."""
        self.world.at(pause_s, None, self._return, index)

    def _return(self, index: int) -> None:
        if not self.consumers[index].alive or self.consumers[index].is_gone:
            self._begin(index, 0.0)

    # Faults

    def _plan_faults(self) -> None:
        for _ in range(self.dice.choice((0, 1, 2, 3, 5))):
            delay_s = self.dice.random() * FAULTS_UNTIL_S
            self.world.at(delay_s, None, self.dice.choice(FAULTS), self)
        self.world.at(FAULTS_UNTIL_S, None, self.heal)

    def _some_consumer(self) -> ConsumerNode:
        return self.dice.choice(list(self.consumers.values()))

    def kill_consumer(self) -> None:
        """Kills a consumer, which comes back soon or after the others have noticed."""
        node = self._some_consumer()
        if node.alive:
            self.note("kill", node)
            node.crash()
            self.world.at(self.pause_s(), None, self._return, node.index)

    def close_consumer(self) -> None:
        node = self._some_consumer()
        if node.alive and not node.is_gone:
            self.note("close", node)
            self.world.at(0.0, node, node.close, self.pause_s())

    def replace_consumer(self) -> None:
        """Starts a second process as a consumer; the first learns later that it was replaced."""
        node = self._some_consumer()
        self.note("replace", node)
        self._begin(node.index, 0.0)

    def kill_both(self) -> None:
        self.kill_consumer()
        self.kill_worker()

    def join(self) -> None:
        self.note("join")
        self._add_worker()

    def _nodes(self) -> list[Node]:
        return [self.dispatcher, self._some_consumer(), self.some_worker()]

    def freeze(self) -> None:
        self.freeze_one(self.dice.choice(self._nodes()))

    def cut(self) -> None:
        self.cut_between(self._nodes())

    def reset_stream(self) -> None:
        if self.world.wires:
            self.note("reset")
            self.dice.choice(self.world.wires).end(UnavailableError("connection reset"))

    def heal(self) -> None:
        super().heal()
        for index in self.consumers:
            self._return(index)
        self.world.checker.taken.clear()

    # The end

    def run(self) -> None:
        world = self.world
        world.run(FAULTS_UNTIL_S + PATIENCE_S, self._is_over)
        if not self._is_over():
            stand = f"{dict(world.checker.taken)}, {world.checker.table()}"
            raise Violation(f"C5: the steps do not go on: {stand}")
        self.dispatcher.flush()
        world.checker.replayed(self.dispatcher.service._state)

    def running(self) -> Iterable[Any]:
        return (*self._programs, *self.world.workers.values())

    def _is_over(self) -> bool:
        taken = self.world.checker.taken
        return self.world.now_s > FAULTS_UNTIL_S and all(
            taken[index] >= STEPS_AFTERWARDS for index in self.consumers
        )


FAULTS: tuple[Callable[[Scenario], None], ...] = (
    Scenario.kill_consumer,
    Scenario.kill_consumer,
    Scenario.kill_consumer,
    Scenario.close_consumer,
    Scenario.replace_consumer,
    Scenario.kill_worker,
    Scenario.kill_worker,
    Scenario.kill_both,
    Scenario.join,
    Scenario.kill_dispatcher,
    Scenario.freeze,
    Scenario.freeze,
    Scenario.cut,
    Scenario.reset_stream,
    Scenario.noise,
    Scenario.noise,
    Scenario.slow_disk,
)


def play(seed: int, *, verbose: bool = False) -> Outcome:
    """Runs one seed; to be called inside `staged`."""
    return Scenario(seed, verbose=verbose).play()


@contextmanager
def staged() -> Iterator[None]:
    """Puts the stand-ins in place; several simulations may run one after the other inside."""
    with scenario.staged(), on_one_core(), pytest.MonkeyPatch.context() as patch:
        for module in (round_reader, round_stream, worker_stream, worker_rounds, plan_thread):
            patch.setattr(module, "threading", THREADING)
            patch.setattr(module, "time", TIME, raising=False)
        patch.setattr(production, "time", TIME)
        for module in (round_reader, worker_stream, plan_thread):
            patch.setattr(module, "StoppableThread", nodes.Thread)
        patch.setattr(joined_iteration, "DispatcherConnection", nodes.Connection)
        patch.setattr(joined_iteration, "decode_schema", lambda _schema: nodes.SCHEMA)
        patch.setattr(worker_stream, "SILENCE_S", SILENCE_S)
        for module in (round_reader, wait_limits):
            patch.setattr(module.logger, "disabled", True)
        patch.setattr(worker_stream, "open_exchange", nodes.open_exchange)
        patch.setattr(worker_stream, "decode_batch", decode_batch)
        yield
