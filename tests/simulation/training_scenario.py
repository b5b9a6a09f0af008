"""From a seed to a training cluster, its faults, and a verdict on the training.

Every choice comes from the seed's own generator. Invariant: `play(seed)` has one outcome.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from pstrain.checkpoints import saving
from pstrain.consistency import ASYNC, Consistency
from pstrain.coordinator import (
    applying,
    barrier,
    core,
    deadlines,
    link,
    lost_trainers,
    remote_value,
    restoring,
    rollback,
    scheduler,
    scheduler_stats,
    settling,
    trainer_interface,
    waits,
)
from pstrain.coordinator.remote_value import RemoteValue
from pstrain.errors import CancelledError, InvalidArgumentError
from pstrain.execution import resumption
from pstrain.paramserver import requests
from pstrain.trainer import cancelling as trainer_cancelling
from pstrain.trainer import (
    closure_stream,
    committing,
    flush_timer,
    resources,
    result_queue,
    server_identities,
    server_session,
    trainer_session,
    two_phase_commit,
)
from pstrain.trainer import rounds as trainer_rounds
from pstrain.trainer import service as trainer_service
from pstrain.trainer.committing import Committer
from pstrain.trainer.staging import ClosureRun
from pstrain.trainer.trainer_session import TrainerSession
from tests.scheduler_invariants import check_invariants
from tests.simulation import training_program
from tests.simulation.base_scenario import FAULTS_UNTIL_S, REPLAY, BaseScenario, Outcome
from tests.simulation.consistency_checker import ConsistencyChecker, rule_of
from tests.simulation.fibers import QUEUE, THREADING, TIME, on_one_core, running
from tests.simulation.shadow import Violation
from tests.simulation.training_checker import REFUSED, TrainingChecker
from tests.simulation.training_nodes import DataNode, ServerNode, TrainerNode
from tests.simulation.training_program import CoordinatorNode
from tests.simulation.training_restores import Checkpoints
from tests.simulation.training_values import count_change, step
from tests.simulation.training_wires import Connections, RpcClient
from tests.simulation.world import STAGE

PATIENCE_S = 60.0


class Scenario(BaseScenario):
    """A training cluster and the faults that befall it."""

    # Short, or so long that a node is taken for lost.
    pauses_s = (0.05, 0.5, 2.0, 6.0)
    # Probabilities of losses and doublings; a lost message breaks its connection.
    noises = ((0.0, 0.2), (0.03, 0.0), (0.1, 0.3))
    checkpoints: type[Checkpoints] = Checkpoints

    def __init__(
        self,
        seed: int,
        *,
        verbose: bool = False,
        after_a_loss: tuple[str, ...] = ("ends",),
        rules: str = "",
        is_steady: bool = False,
        fails: bool = False,
        is_loop: bool = False,
    ) -> None:
        """Builds the cluster of a seed.

        ``after_a_loss`` lists what the program may do after a loss of a server, as in
        `CoordinatorNode`. ``rules`` is "sync", "ssp" or "" for asynchronous training. ``fails``:
        some closures fail, even if servers are lost. ``is_loop``: the program trains until a
        closure meets the end of the data.
        """
        super().__init__(seed, verbose=verbose)
        world, dice = self.world, self.dice
        world.checkpoints = self.checkpoints
        world.streams, world.breaks_orders = [], rules == "sync"
        world.compute_s = dice.choice((0.002, 0.02, 0.1))
        world.elements_given = dice.choice((1, 2, 5)) if is_loop else 1
        world.servers_expected = dice.choice((1, 2, 2, 3))
        world.servers = [ServerNode(world, number) for number in range(world.servers_expected)]
        world.checker = TrainingChecker(seed, len(world.servers))
        world.data = DataNode(world, 0 if is_steady else dice.choice((3, 12, 30)))
        nodes = [TrainerNode(world, number) for number in range(dice.choice((1, 2, 2, 3)))]
        rule: Consistency = ASYNC
        if rules:
            rule = rule_of(seed, rules, len(nodes))
            world.checker = ConsistencyChecker(seed, len(world.servers), rule, len(nodes))
        self._rules = rules
        world.trainers = {node.address: node for node in nodes}
        self.trainers = nodes
        for node in nodes:
            node.boot()
            if dice.random() < 0.1:
                self._start_later(node)
        follows = after_a_loss[seed % len(after_a_loss)]
        self._loses_servers = world.loses_servers = follows != "ends"
        ruled = ["failing"] if fails else [rules] * bool(rules)
        ruled = ["loops"] if is_loop else ruled
        kinds = ruled + ["restores"] * self._loses_servers
        kind = "-".join(kinds) or "training"
        self.command = f"{REPLAY} --{kind}"
        self.coordinator = world.coordinator = CoordinatorNode(
            world,
            closures_in_flight=dice.choice((1, 2, 3)),
            fails=(dice.random() < 0.3 and not self._loses_servers and not is_loop) or fails,
            after_a_loss=follows,
            rule=rule,
            is_steady=is_steady,
            is_loop=is_loop,
        )
        world.end_met = self._kill_at_an_end
        self.coordinator.boot()
        self._plan_faults()

    def _start_later(self, node: TrainerNode) -> None:
        node.crash()
        self.world.at(self.dice.random() * FAULTS_UNTIL_S, None, node.restart)

    # Faults

    def _plan_faults(self) -> None:
        for _ in range(self.dice.choice((0, 1, 2, 3, 5))):
            faults = FAULTS + SERVER_FAULTS if self._loses_servers else FAULTS
            fault = self.dice.choice(faults)
            delay_s = self.dice.random() * FAULTS_UNTIL_S * self.dice.random()
            self.world.at(delay_s, None, fault, self)
        self.world.at(FAULTS_UNTIL_S, None, self.heal)

    def _some_trainer(self) -> TrainerNode:
        return self.dice.choice(self.trainers)

    def kill(self) -> None:
        node = self._some_trainer()
        if node.alive:
            self.note("kill", node)
            self._crash(node)

    def kill_all(self) -> None:
        self.note("kill all")
        for node in self.trainers:
            if node.alive:
                self._crash(node)

    def kill_for_good(self) -> None:
        """Kills a trainer that never comes back; spares the first trainer."""
        node = self._some_trainer()
        if node.alive and node is not self.trainers[0]:
            self.note("kill for good", node)
            node.crash()
            self.trainers = [other for other in self.trainers if other is not node]

    def kill_in_commit(self) -> None:
        node = self._some_trainer()
        node.crash_at = (self.dice.choice(("prepared", "decided")), self.dice.choice((1, 2, 5)))
        self.note(f"kill when {node.crash_at[0]}", node)

    def _kill_at_an_end(self) -> None:
        """May kill a busy trainer soon after one met the end, perhaps with its last elements."""
        dice = self.dice
        if self.world.now_s < FAULTS_UNTIL_S and dice.random() < 0.5:
            self.world.at(dice.random() * dice.choice((0.01, 0.05)), None, self._kill_busy)

    def _kill_busy(self) -> None:
        known = self.coordinator.core.state.trainers
        busy = [
            node
            for index, node in enumerate(self.world.trainers.values())
            if index in known and known[index].running and node in self.trainers
        ]
        if busy:
            node = self.dice.choice(busy)
            self.note("kill at an end", node)
            self._crash(node)

    def kill_server(self) -> None:
        """Kills a server, if there is a checkpoint to restore and a program that goes on."""
        node = self.dice.choice(self.world.servers)
        is_saved = self.coordinator.checkpoints.latest_checkpoint is not None
        if node.alive and is_saved and not self.coordinator.is_done:
            self.note("kill", node)
            self._crash(node)

    def _crash(self, node: TrainerNode | ServerNode) -> None:
        node.crash()
        self.world.at(self.pause_s(), None, node.restart)

    def freeze(self) -> None:
        """Freezes a node, most often a trainer, shortly or so long that it is taken for lost."""
        others: list[Any] = [self.coordinator, self.dice.choice(self.world.servers)]
        self.freeze_one(self.dice.choice((*others, *([self._some_trainer()] * 4))))

    def cut(self) -> None:
        nodes = [self.coordinator, self._some_trainer(), self.dice.choice(self.world.servers)]
        self.cut_between(nodes)

    def reset_stream(self) -> None:
        if self.world.streams:
            self.note("reset")
            self.dice.choice(self.world.streams).reset()

    def heal(self) -> None:
        super().heal()
        for node in (*self.trainers, *self.world.servers):
            node.restart()

    # The end

    def run(self) -> None:
        world = self.world
        # After a restore, rounds wait for trainers that may never come back.
        patience_s = PATIENCE_S + (waits.ABSENT_TIMEOUT_S if self._rules == "sync" else 0.0)
        world.run(FAULTS_UNTIL_S + patience_s, lambda: self.coordinator.is_done)
        if not self.coordinator.is_done:
            raise Violation(f"I10: training does not end: {self._stand()}")
        world.run(world.now_s + PATIENCE_S, self._is_settled)
        self._check_end()

    def running(self) -> Iterable[Any]:
        return (self.coordinator, *self.world.trainers.values())

    def _stand(self) -> str:
        data, counts = self.world.data, self.coordinator.scheduler.counts()
        return f"{len(data.used)} of {data.rows} rows are used up; {counts}"

    def _is_settled(self) -> bool:
        """True if no server holds an undecided part, so all decisions have reached all servers."""
        return all(not server.store.commit_counts()["held"] for server in self.world.servers)

    def _check_end(self) -> None:
        world = self.world
        world.checker.over([row for row in range(world.data.rows) if row not in world.data.void])
        check_invariants(self.coordinator.core.state)
        if self._rules == "sync":
            world.checker.rounds_over(self.coordinator.scheduler)
        low_water = self.coordinator.scheduler.trainers.low_water()
        for server in world.servers:
            server.store.advance(low_water)
            counts = server.store.commit_counts()
            if counts["held"] or counts["decided"]:
                raise Violation(f"I9: {server.name} still remembers {counts}")


FAULTS: tuple[Callable[[Scenario], None], ...] = (
    Scenario.kill,
    Scenario.kill,
    Scenario.kill_all,
    Scenario.kill_for_good,
    Scenario.kill_in_commit,
    Scenario.kill_in_commit,
    Scenario.freeze,
    Scenario.freeze,
    Scenario.cut,
    Scenario.cut,
    Scenario.reset_stream,
    Scenario.noise,
    Scenario.noise,
)
SERVER_FAULTS = (Scenario.kill_server,) * 6
RESTORING = ("goes back", "run again")


def play(seed: int, *, verbose: bool = False) -> Outcome:
    """Runs one seed; to be called inside `staged`."""
    return Scenario(seed, verbose=verbose).play()


def play_restores(seed: int, *, verbose: bool = False) -> Outcome:
    """Runs one seed in which servers are lost and checkpoints are restored."""
    return Scenario(seed, verbose=verbose, after_a_loss=RESTORING).play()


def play_failing_restores(seed: int, *, verbose: bool = False) -> Outcome:
    """Runs one seed in which closures run again after a restore, and some of them fail.

    A third of the seeds train in rounds, another third with bounded staleness.
    """
    rules = ("", "sync", "ssp")[seed % 3]
    return Scenario(
        seed, verbose=verbose, after_a_loss=("run again",), rules=rules, fails=True
    ).play()


def play_loops(seed: int, *, verbose: bool = False) -> Outcome:
    """Runs one seed of a loop, which ends by a closure's error when no trainer has data left."""
    rules = ("", "sync", "ssp")[seed % 3]
    return Scenario(seed, verbose=verbose, rules=rules, is_loop=True).play()


def play_sync(seed: int, *, verbose: bool = False) -> Outcome:
    """Runs one seed of training in rounds, with and without backup trainers."""
    return Scenario(seed, verbose=verbose, rules="sync").play()


def play_ssp(seed: int, *, verbose: bool = False) -> Outcome:
    """Runs one seed of training with bounded staleness."""
    return Scenario(seed, verbose=verbose, rules="ssp").play()


def play_sync_restores(seed: int, *, verbose: bool = False) -> Outcome:
    """Runs one seed in rounds that loses servers; every other program is steady."""
    follows, is_steady = (("run again",), True) if seed % 2 else (RESTORING, False)
    return Scenario(
        seed, verbose=verbose, after_a_loss=follows, rules="sync", is_steady=is_steady
    ).play()


def play_ssp_restores(seed: int, *, verbose: bool = False) -> Outcome:
    """Runs one seed with bounded staleness that loses servers."""
    return Scenario(seed, verbose=verbose, after_a_loss=RESTORING, rules="ssp").play()


def _read_changes(store: Any, headers: Any, _body: object) -> list[Callable[[], None]]:
    checker, changes = STAGE.world.checker, []
    for header in headers:
        tag = tuple(header["tag"])
        if tag[0] == REFUSED:
            raise InvalidArgumentError(f"{tag} is refused")
        changes.append(functools.partial(checker.apply, store.ps, tag))
        changes.append(functools.partial(count_change, store, tag))
        if tag[0] == "closure" and STAGE.world.breaks_orders:
            changes.append(step(store, store.ps, tag[1]))
    return changes


def _reached(place: str) -> None:
    running().node.reached(place)


_BLOCKING = (
    scheduler,
    core,
    applying,
    deadlines,
    trainer_interface,
    barrier,
    rollback,
    waits,
    scheduler_stats,
    restoring,
    server_identities,
    settling,
    link,
    remote_value,
    trainer_service,
    trainer_session,
    closure_stream,
    committing,
    trainer_cancelling,
    flush_timer,
    result_queue,
    resources,
)
"""The modules whose threads, queues and waits are simulated."""


@contextmanager
def staged() -> Iterator[None]:
    """Puts the stand-ins in place; several simulations may run one after the other inside."""
    with on_one_core(), pytest.MonkeyPatch.context() as patch:
        for module in _BLOCKING:
            patch.setattr(module, "threading", THREADING, raising=False)
            patch.setattr(module, "queue", QUEUE, raising=False)
            patch.setattr(module, "time", TIME, raising=False)
            if hasattr(module, "logger"):
                patch.setattr(module.logger, "disabled", True)
        for module in (lost_trainers, trainer_rounds, resumption, saving):
            patch.setattr(module.logger, "disabled", True)
        patch.setattr(core, "QuietCondition", THREADING.Condition)
        patch.setattr(link, "RpcClient", RpcClient)
        patch.setattr(
            lost_trainers,
            "dataservice",
            SimpleNamespace(release_readers=training_program.release_readers),
        )
        patch.setattr(server_session, "Connections", Connections)
        patch.setattr(requests, "read_changes", _read_changes)
        patch.setattr(trainer_session, "open_dataset", training_program.open_dataset)
        for module in (two_phase_commit, trainer_rounds):
            patch.setattr(module, "reached", _reached)
        _watch(patch)
        yield


def _watch(patch: pytest.MonkeyPatch) -> None:
    """Has the checker hear what the program is told, and which rows closures take."""
    set_value, failed = RemoteValue._set, TrainerSession._failed
    commit_held, keep = Committer.commit_held, ClosureRun.keep

    def set_and_tell(self: RemoteValue, value: Any, error: Exception | None) -> None:
        set_value(self, value, error)
        STAGE.world.checker.hear(value, error)

    def commit_and_note(self: Any, run: Any, pulls: Any) -> Any:
        answers = commit_held(self, run, pulls)
        run.saw_held = run.held is not None and run.held.is_done
        return answers

    def keep_and_note(self: ClosureRun, origin: Any, element: Any) -> None:
        """Notes the element's rows; one given back by an earlier run comes from no reader."""
        keep(self, origin, element)
        for row in element.element:
            STAGE.world.checker.takes(self.token, row)

    def fail_and_name(self: Any, result: Any, error: Exception) -> Any:
        """Names the run's rows in the error of a refused or cancelled run, as raised errors do."""
        token = self.token(result.id, result.attempt)
        if isinstance(error, InvalidArgumentError):
            error = STAGE.world.checker.named(token)
        elif isinstance(error, CancelledError):
            error = CancelledError(STAGE.world.checker.rows_left(token))
        return failed(self, result, error)

    patch.setattr(RemoteValue, "_set", set_and_tell)
    patch.setattr(Committer, "commit_held", commit_and_note)
    patch.setattr(ClosureRun, "keep", keep_and_note)
    patch.setattr(TrainerSession, "_failed", fail_and_name)
