"""The coordinator of a simulated cluster, and the training program that runs in it.

Real: the scheduler with its decisions and state, the links to trainers, the recovery of lost
trainers. Modelled: the pickling and resources that `ClusterCoordinator` adds.
"""

from __future__ import annotations

import contextlib
import itertools
import pickle
import weakref
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

from pstrain.consistency import ASYNC, Consistency, Sync
from pstrain.coordinator.applying import RoundApplier
from pstrain.coordinator.functions import PickledFunction
from pstrain.coordinator.link import TrainerLink
from pstrain.coordinator.remote_value import RemoteValue
from pstrain.coordinator.scheduler import Scheduler
from pstrain.coordinator.settling import SettlingTurns
from pstrain.errors import (
    CancelledError,
    DataServiceError,
    DeadlineExceededError,
    OutOfRangeError,
    RolledBackError,
)
from pstrain.execution.resumption import Recovery
from pstrain.serialization import pickling
from pstrain.trainer.client import RemoteParameters
from pstrain.wire import trainer_pb2 as pb
from tests.simulation.consistency_checker import WatchedCore, WatchedScheduler
from tests.simulation.fibers import Process, wait
from tests.simulation.shadow import Violation
from tests.simulation.training_cancels import ChangesOfMind, Needs, OrderedCore
from tests.simulation.training_closures import (
    FAILING,
    FAILURES,
    LOOP,
    ONE_STEP,
    PROGRAMS,
    STEADY,
    count,
    count_twice,
    evaluate,
    fail_alone,
    fit,
    train,
    train_to_the_end,
)
from tests.simulation.training_nodes import FIRST_SESSION, SERVICE, Reader, ask
from tests.simulation.training_restores import (
    PreemptedRecovery,
    Progress,
)
from tests.simulation.world import STAGE

ATTEMPTS_MAX = 50
_ITERATOR = "iterator"


class _Iterator:
    """Stands for the trainer's own iterator."""


class _Parameters:
    """Stands for the trainer's own parameters."""


def _reference(value: object) -> tuple[str, ...] | None:
    match value:
        case _Iterator():
            return ("resource", _ITERATOR)
        case _Parameters():
            return ("parameters",)
    return None


class CoordinatorNode(Process):
    """The training program's process."""

    def __init__(
        self,
        world: Any,
        *,
        closures_in_flight: int,
        fails: bool,
        after_a_loss: str = "ends",
        rule: Consistency = ASYNC,
        is_steady: bool = False,
        is_loop: bool = False,
    ) -> None:
        """Makes a program that has yet to boot.

        ``fails``: some of its closures fail. ``is_steady``: its closures follow from the seed alone
        and all change something. ``is_loop``: it trains until a closure meets the end of the data.
        ``after_a_loss`` of a server the program "ends" (no server is lost then), "goes back" with
        everything else, or hears nothing, as closures "run again".
        """
        super().__init__(world, "coordinator")
        self._after_a_loss = after_a_loss
        self.recovery: Any = SimpleNamespace(is_restoring=False)  # until the program has begun
        self.is_done = False
        self.is_steady = is_steady
        # A generator of its own, so that the program does not depend on the network's draws.
        self._own = Random(f"program {world.seed}")
        self.closures_in_flight, self._is_loop = closures_in_flight, is_loop
        self._fails = fails
        # Some programs bind closures to the first trainer, which always comes back.
        self._binding = Random(f"bound {world.seed}")
        self._binds = self._binding.random() < 0.3 and rule == ASYNC
        # Some programs fit: what their closures note must be reported although trainers are lost.
        self._fitting = Random(f"noting {world.seed}")
        self._fits = self._fitting.random() < 0.2 and rule == ASYNC and not is_steady
        self._mind = ChangesOfMind(self, is_steady=is_steady)
        self._needs = Needs(world.seed, is_steady=is_steady)
        self._rule, self._in_rounds = rule, isinstance(rule, Sync)
        self._functions: Any = weakref.WeakValueDictionary()
        self._keep = {
            function: PickledFunction(function.__name__, pickle.dumps(function), function.__name__)
            for function in (*PROGRAMS, *LOOP, fail_alone, fit)
        }
        self._functions.update((each.id, each) for each in self._keep.values())
        self._arguments = pickling.dumps(((_Iterator(), _Parameters()), {}), _reference)
        self.links: list[TrainerLink] = []

    def boot(self) -> None:
        self.spawn(self._run)

    @property
    def is_losing_server(self) -> bool:
        """True if a server is lost, or while everything is restored because of that."""
        return self.recovery.is_restoring or not all(s.alive for s in self.world.servers)

    def _start(self) -> None:
        world = self.world
        addresses = [server.name for server in world.servers]
        self.parameters = RemoteParameters(addresses, session=FIRST_SESSION, token="-")
        is_async = self._rule == ASYNC
        self.core = (OrderedCore if is_async else WatchedCore)(
            attempts_max=ATTEMPTS_MAX,
            consistency=self._rule,
            trainer_indices=range(len(world.trainers)),
        )
        self.scheduler = (Scheduler if is_async else WatchedScheduler)(
            self.core, ids=itertools.count(), capacity=64, trainer_timeout_s=300.0
        )
        self.recovery = PreemptedRecovery(self, self._leave)
        if self._in_rounds:
            RoundApplier(self.scheduler, self.parameters, self.recovery).start()
        self.scheduler.add_resource(_ITERATOR, pickling.dumps((_source, 0, {}), _reference))
        incarnations, settling = itertools.count(1), SettlingTurns()
        for index, address in enumerate(world.trainers):
            link = TrainerLink(
                index,
                address,
                configuration=pb.ConfigureRequest(
                    session=FIRST_SESSION,
                    trainer_index=index,
                    trainer_count=len(world.trainers),
                    input_pipeline_id=index,
                    ps_addresses=addresses,
                    closures_in_flight=1 if self._in_rounds else self.closures_in_flight,
                    in_rounds=self._in_rounds,
                    keeps_elements=isinstance(self._rule, Sync) and self._rule.backup_workers > 0,
                ),
                scheduler=self.scheduler,
                functions=self._functions,
                servers=self.parameters,
                incarnations=incarnations,
                slots=1 if self._in_rounds else 2 * self.closures_in_flight,
                recovery=self.recovery,
                settling=settling,
                token="-",
            )
            self.links.append(link)
            link.start()
        gives_up = self._after_a_loss == "goes back"
        self.checkpoints = self.world.checkpoints(self, gives_up=gives_up)

    def _leave(self) -> None:
        for link in self.links:
            link.leave()

    def _run(self) -> None:
        self._start()
        match self._after_a_loss:
            case "ends" if self._is_loop:
                self._loop()
            case "ends":
                self._train()
            case "goes back":
                with self.recovery.rolling_back(self.checkpoints):
                    self._fit()
            case _:
                self.recovery.recover_from(self.checkpoints)
                self._train_on()
        self.recovery.stop()
        self.is_done = True

    def _fit(self) -> None:
        progress = Progress(self)
        self.checkpoints.attached.append(progress)
        recovery: Any = Recovery(self.recovery, progress, [self.checkpoints])  # type: ignore[arg-type]
        self._save()
        recovery.train(self._train)
        wait(1.5)
        if self.recovery.is_restoring or progress.is_behind:
            raise Violation("I11: the program goes on while everything goes back")

    def _train_on(self) -> None:
        """Trains until training has ended with no server lost, whatever is lost meanwhile."""
        self._save()
        while True:
            restores = self.recovery.restores
            try:
                self._train()
                self.recovery.check_intact()
                # The data may seem used up only by the state before a restore that began meanwhile.
                is_back = self.recovery.is_restoring or self.recovery.restores > restores
                if self.world.data.is_over and not is_back:
                    return
            except DataServiceError as error:
                # A request made during the restore fails, as its session is over.
                is_back = self.recovery.restores > restores
                if not is_back and not self.recovery.wait_rolled_back(error):
                    raise

    def _save(self) -> None:
        """Saves a checkpoint; ignores the failure of a save because of a lost server."""
        try:
            self.checkpoints.save()
        except RolledBackError:
            raise
        except DataServiceError as error:
            self.world.note(f"not saved: {type(error).__name__}", self)

    def _train(self) -> None:
        """Schedules closures until the data are used up, with barriers at random."""
        world, dice = self.world, self.world.dice
        for _ in range(self._own.choice((3, 8, 12)) if self.is_steady else 0):
            self._round(self._own.choice((1, 4, 5, 12)))
            wait(0.1)
        while not world.data.is_over:
            self._round(dice.choice((1, 4, 12)))
            if dice.random() < 0.3:
                self._barrier()
            if dice.random() < 0.2:
                wait(0.2)
            if self._after_a_loss != "ends" and dice.random() < 0.4:
                self._save()
        self._round(4)
        self._barrier()

    def _loop(self) -> None:
        """Trains as a user's own loop does: rows that are not trained when it ends never are."""
        dice, scheduled = self.world.dice, []
        with contextlib.suppress(OutOfRangeError):
            while True:
                for _ in range(dice.choice((1, 4, 12))):
                    program = train_to_the_end if dice.random() < 0.8 else count
                    scheduled.append(self._submit(program))
                    self._mind.consider(scheduled[-1])
                if dice.random() < 0.7:
                    self.scheduler.wait_idle(None)
        for value in scheduled:
            tags = (("closure", value.closure, 0),)
            try:
                value.fetch()
                self.world.checker.finished[value.closure] = tags
            except (CancelledError, DeadlineExceededError, OutOfRangeError):
                self.world.checker.unfinished[value.closure] = tags
        self._barrier()

    def _round(self, closures: int) -> None:
        dice, checker = self.world.dice, self.world.checker
        known = STEADY if self.is_steady else ONE_STEP if self._in_rounds else PROGRAMS
        programs = [program for program in known if self._fails or program not in FAILING]
        if self._after_a_loss == "run again" and not self.is_steady:
            # The value of `evaluate` is heard once, but it takes other rows when it runs again.
            programs.remove(evaluate)
            if self._fails:
                programs = [*(p for p in programs if p not in FAILING), fail_alone]
        scheduled = []
        for _ in range(closures):
            program = dice.choice(programs)
            if self._fits and self._fitting.random() < 0.5:
                program = fit
            try:
                value = self._submit(program)
            except FAILURES:
                break
            scheduled.append((program, value))
            self._mind.consider(value)
            self._needs.note(value)
            if self.is_steady and self._own.random() < 0.2:
                # Perhaps in the middle of a round, or when trainers have nothing left to do.
                wait(self._own.choice((0.0, 1.0)))
                self._save()
        if self._after_a_loss != "ends" and dice.random() < 0.3:
            self._save()
        with contextlib.suppress(*FAILURES):
            self.scheduler.wait_idle(None)
        for program, value in scheduled:
            tags = tuple(
                ("closure", value.closure, part) for part in range(PROGRAMS.get(program, 0))
            )
            try:
                # A closure that runs again may find no row, and then changes nothing. What has
                # ended before a restore that undoes it may be seen only during the restore.
                is_sure = program is not train or self._after_a_loss != "run again"
                is_sure &= self._after_a_loss != "goes back" or not self.recovery.is_restoring
                if is_sure and (value.fetch() is not None or program is not train):
                    checker.finished[value.closure] = tags
            except (CancelledError, DeadlineExceededError, *FAILURES):
                if program is not count_twice:
                    checker.unfinished[value.closure] = tags

    def _submit(self, program: Callable[..., Any]) -> RemoteValue:
        inputs = self._needs.inputs()
        # A bound closure meets the end of the data of its trainer alone.
        may_bind = self._binds and program is not train_to_the_end
        trainer = 0 if may_bind and self._binding.random() < 0.4 else None
        value = self.scheduler.submit(
            self._keep[program].id,
            self._arguments,
            None,
            trainer,
            deadline_s=self._mind.deadline_s(),
            inputs=inputs,
            priority=self._mind.priority() if not self._in_rounds else 0,
            iterators=frozenset({_ITERATOR}),
        )
        self.world.checker.needs(value.closure, inputs)
        if trainer is not None:
            self.world.checker.bound[value.closure] = f"trainer{trainer}"
        return value

    def _barrier(self) -> None:
        """Waits until all closures have ended, as a checkpoint does, and checks the state."""
        world = self.world
        self.scheduler.wait_idle(None)
        if self.recovery.is_restoring:
            return  # the wait ended by another closure's error, before the restore was over
        world.checker.barrier()
        for server in world.servers:
            if world.dice.random() < 0.5 and server.alive:
                server.restore_ledger()
            held = server.store.commit_counts()["ledger_blocks"]
            if held > 8:
                raise Violation(f"I9: {server.name} remembers {held} blocks of closures")


def release_readers(service: str, owner: str, consumed: dict[str, Any], *, timeout_s: float) -> int:
    """Stands for `dataservice.release_readers`."""
    assert service == SERVICE
    assert timeout_s > 0
    data = STAGE.world.data
    return int(ask(data, data.release, owner, consumed))


def _source() -> None:
    """Stands for a dataset function."""


def open_dataset(_source: Any, _epoch: int, _context: Any, owner: str) -> Reader:
    """Stands for `pstrain.trainer.resources.open_dataset`."""
    return Reader(owner)
