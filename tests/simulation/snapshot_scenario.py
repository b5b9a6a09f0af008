"""From a seed to datasets that are saved, faults, and a verdict.

Every choice comes from the seed's own generator. Invariant: `play(seed)` has one outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from dataservice.client import snapshots as client
from dataservice.dataset import columns
from dataservice.dataset.snapshots import atomic_folder, folder
from dataservice.dispatcher import snapshot_handlers
from dataservice.dispatcher.plans import WindowPlan
from dataservice.dispatcher.requests import RegisterDataset
from dataservice.sharding import Split
from dataservice.worker import dispatcher_link, rebatch, snapshot_writer, window_files
from dataservice.worker import snapshots as worker_snapshots
from tests.simulation import coordinated_nodes, scenario
from tests.simulation import snapshot_nodes as nodes
from tests.simulation.base_scenario import FAULTS_UNTIL_S, REPLAY, Outcome, ServiceScenario
from tests.simulation.dispatcher_node import DispatcherNode
from tests.simulation.fibers import THREADING, TIME, on_one_core
from tests.simulation.shadow import Violation
from tests.simulation.snapshot_checker import SnapshotChecker, watched
from tests.simulation.snapshot_nodes import Rows, SavingNode, WritingNode
from tests.simulation.virtual_disk import LAYOUTS, Disk, next_hex

PATIENCE_S = 60.0
# How long workers run after they wake up, as those taken for lost do what they were about to do.
AFTERWARDS_S = 6.0
COMMAND = f"{REPLAY} --snapshots"


class Scenario(ServiceScenario):
    """Datasets that are saved, and the faults that befall the saving."""

    # Short, or longer than a lease.
    pauses_s = (0.01, 0.1, 1.0, 3.0, 6.0)
    command = COMMAND

    def __init__(self, seed: int, *, verbose: bool = False) -> None:
        super().__init__(seed, verbose=verbose)
        world = self.world
        world.poison = None
        self._plans: dict[str, Rows] = {}
        world.checker = self.checker = SnapshotChecker(self._plans)
        self.disk = watched(world, self.dice.choice(LAYOUTS), self.checker)
        DISK.disk = self.disk
        by_plan: dict[bytes, Rows] = {}
        self.dispatcher = world.dispatcher = DispatcherNode(
            world,
            WindowPlan(splits=(), target_rows=1),
            fsync_s=self.dice.choice((0.0005, 0.005, 0.05)),
            shorten_at=self.dice.choice((None, 5, 15)),
            snapshot_planner=lambda plan: by_plan[plan].plan,
        )
        for number in range(2):
            plan = self._plan(10_000 * number)
            content = plan.fingerprint.encode()
            by_plan[content] = plan
            request = RegisterDataset(
                plan=content,
                schema=b"s",
                cardinality=-2,
                compression="NONE",
                fingerprint=plan.fingerprint,
            )
            self._plans[self.dispatcher.service.register_dataset(request)] = plan
        self.dispatcher.flush()
        for _ in range(self.dice.choice((1, 2, 2, 3))):
            self._add_worker()
        self.savers: list[SavingNode] = []
        self._saves_to_come = 0
        self._add_saver(self.dice.random() * 0.5)
        self._plan_faults()

    def _plan(self, first_id: int) -> Rows:
        dice = self.dice
        repeats_itself = dice.random() < 0.4
        if dice.random() < 0.25:
            plan = Rows(None, first_id, repeats_itself=repeats_itself)
        else:
            ends = [0]
            for _ in range(dice.randint(1, 8)):
                ends.append(ends[-1] + dice.randint(1, 9))
            splits = tuple(
                Split(start=start, stop=stop, rows=stop - start) for start, stop in pairwise(ends)
            )
            windows = WindowPlan(splits=splits, target_rows=6, rounds=dice.choice((1, 1, 2)))
            plan = Rows(windows, first_id, repeats_itself=repeats_itself)
        if dice.random() < 0.1:
            plan.failing = dice.choice(plan.expected() or [0])
        return plan

    def _add_worker(self) -> None:
        worker = WritingNode(self.world, len(self.world.workers), self._plans)
        self.world.workers[worker.address] = worker
        self.world.at(0.0, worker, worker.boot)

    def _add_saver(self, delay_s: float, dataset_id: str | None = None) -> SavingNode:
        chosen = dataset_id or next(iter(self._plans))
        node = SavingNode(self.world, len(self.savers), chosen)
        self.savers.append(node)
        self.checker.savers += 1
        self.world.at(delay_s, node, node.boot)
        return node

    # Faults

    def _plan_faults(self) -> None:
        for _ in range(self.dice.choice((0, 1, 2, 3, 5))):
            delay_s = self.dice.random() ** 2 * FAULTS_UNTIL_S
            self.world.at(delay_s, None, self.dice.choice(FAULTS), self)
        self.world.at(FAULTS_UNTIL_S, None, self.heal)

    def some_worker(self) -> WritingNode:
        return self.dice.choice(list(self.world.workers.values()))

    def _kill(self, worker: WritingNode) -> None:
        worker.crash()
        if self.dice.random() < 0.5:
            self.disk.lose_power(worker.name)
        self.world.at(self.pause_s(), None, worker.restart)

    def kill_worker(self) -> None:
        worker = self.some_worker()
        if worker.alive:
            self.note("kill", worker)
            self._kill(worker)

    def kill_worker_in_a_write(self) -> None:
        worker = self.some_worker()
        self.note("trap", worker)

        def spring() -> None:
            self.note("kill in a write", worker)
            self.world.at(0.0, None, self._kill, worker)
            coordinated_nodes.wait(None)

        worker.trap = (self.dice.randint(0, 20), spring)

    def freeze_worker_in_a_write(self) -> None:
        worker = self.some_worker()
        seconds = self.pause_s()

        def spring() -> None:
            self.note("freeze in a write", worker)
            self.checker.may_write_late = True
            worker.freeze(seconds)

        worker.trap = (self.dice.randint(0, 20), spring)

    def join(self) -> None:
        self.note("join")
        self._add_worker()

    def freeze(self) -> None:
        self.freeze_one(self.dice.choice((self.dispatcher, self.some_worker())))

    def cut(self) -> None:
        self.cut_between([self.dispatcher, self.some_worker()])

    def storage_is_away(self) -> None:
        """Has storage operations fail at random until the faults end."""
        self.note("storage")
        self.checker.may_fail = True
        self.disk.trouble = self.dice.choice((0.02, 0.2))

    def save_twice(self) -> None:
        """Starts another program that saves the same dataset."""
        self.note("save twice")
        self._add_saver(0.0)

    def kill_saver(self) -> None:
        """Kills the saving program; another one attaches to what it began."""
        node = self.savers[-1]
        if node.alive and node.outcome is None:
            self.note("kill", node)
            node.crash()
            node.outcome = "killed"
            self._add_saver(self.pause_s())

    def save_another(self) -> None:
        """Cancels, deletes the folder, and saves another dataset there."""
        self.note("save another")
        node = self.savers[-1]
        if node.outcome is None and not node.snapshot_id:
            node.gives_up_after_s = self.dice.random()
        self._saves_to_come += 1
        self.world.at(self.pause_s() + 1.0, None, self._save_another)

    def _save_another(self) -> None:
        self._saves_to_come -= 1
        closed = all(s.is_closed for s in self.checker.shadow.snapshots.by_id.values())
        if closed and all(saver.outcome is not None for saver in self.savers):
            self.checker.deleted()
            self.disk.delete(nodes.PATH)
            self._add_saver(0.0, list(self._plans)[1])

    def heal(self) -> None:
        super().heal()
        self.disk.trouble = 0.0

    # The end

    def run(self) -> None:
        world = self.world
        world.run(FAULTS_UNTIL_S + PATIENCE_S, self._is_over)
        if not self._is_over():
            waiting = {s.name: s.snapshot_id for s in self.savers if s.outcome is None}
            raise Violation(f"S4: {waiting} wait for ever; {self._stand()}")
        self._wake_all()
        self.checker.check_done()
        self.checker.check_idle(world.workers.values())
        self.dispatcher.flush()
        self.checker.replayed(self.dispatcher.service._state)

    def _wake_all(self) -> None:
        """Runs on until frozen workers have woken up, also those that a trap freezes meanwhile."""
        world, end_s, until_s = self.world, self.world.now_s, 0.0
        workers = world.workers.values()
        while until_s < (due_s := max(end_s, *(w.frozen_until_s for w in workers)) + AFTERWARDS_S):
            until_s = due_s
            world.run(until_s, self._check_storage)

    def running(self) -> Iterable[Any]:
        return (*self.savers, *self.world.workers.values())

    def _is_over(self) -> bool:
        self._check_storage()
        if self.world.now_s <= FAULTS_UNTIL_S + 1.0 or self._saves_to_come:
            return False
        return all(saver.outcome is not None for saver in self.savers) and all(
            snapshot.is_closed for snapshot in self.checker.shadow.snapshots.by_id.values()
        )

    def _check_storage(self) -> bool:
        if self.checker.broken is not None:
            raise self.checker.broken
        return False

    def _stand(self) -> dict[str, Any]:
        return {
            str(key): (snapshot.totals, snapshot.error, snapshot.marker_worker)
            for key, snapshot in self.checker.shadow.snapshots.by_id.items()
        }


FAULTS: tuple[Callable[[Scenario], None], ...] = (
    Scenario.kill_worker,
    Scenario.kill_worker_in_a_write,
    Scenario.kill_worker_in_a_write,
    Scenario.kill_worker_in_a_write,
    Scenario.freeze_worker_in_a_write,
    Scenario.freeze_worker_in_a_write,
    Scenario.freeze_worker_in_a_write,
    Scenario.join,
    Scenario.kill_dispatcher,
    Scenario.kill_dispatcher,
    Scenario.freeze,
    Scenario.cut,
    Scenario.noise,
    Scenario.noise,
    Scenario.slow_disk,
    Scenario.storage_is_away,
    Scenario.save_twice,
    Scenario.kill_saver,
    Scenario.save_another,
)


def play(seed: int, *, verbose: bool = False) -> Outcome:
    """Runs one seed; to be called inside `staged`."""
    return Scenario(seed, verbose=verbose).play()


class _TheDisk:
    """Holds the disk of the scenario that is being played."""

    disk: Disk


DISK = _TheDisk()


@contextmanager
def staged() -> Iterator[None]:
    """Puts the stand-ins in place; several simulations may run one after the other inside."""
    with scenario.staged(), on_one_core(), pytest.MonkeyPatch.context() as patch:
        for module in (worker_snapshots, snapshot_writer, client):
            patch.setattr(module, "threading", THREADING, raising=False)
            patch.setattr(module, "time", TIME)
        for module in (snapshot_writer, client):
            patch.setattr(module.logger, "disabled", True)
        patch.setattr(snapshot_handlers.logger, "disabled", True)
        patch.setattr(snapshot_writer, "StoppableThread", coordinated_nodes.Thread)
        patch.setattr(snapshot_writer, "decode_schema", lambda _schema: nodes.SCHEMA)
        # Small, so that an undivided plan has several files.
        patch.setattr(window_files, "_WHOLE_CHUNK_BYTES", 100)
        patch.setattr(rebatch, "concat_batches", columns.concat_batches)
        patch.setattr(rebatch, "encoded_bytes", columns.encoded_bytes)
        patch.setattr(dispatcher_link, "RpcClient", nodes.Rpc)
        patch.setattr(client, "DispatcherConnection", nodes.Connection)
        patch.setattr(nodes, "new_id", lambda prefix: f"{prefix}-{next_hex().hex}")
        patch.setattr("fsspec.core.url_to_fs", lambda path: (DISK.disk, path))
        patch.setattr(atomic_folder, "sync_folder", lambda path: DISK.disk.fsync(path))
        patch.setattr(atomic_folder, "open", lambda *args: DISK.disk.open(*args), raising=False)
        gettempdir = SimpleNamespace(gettempdir=lambda: "/tmp-of-the-process")
        patch.setattr(atomic_folder, "tempfile", gettempdir)
        patch.setattr(atomic_folder, "os", _ThisDisk())
        for module in (atomic_folder, folder):
            patch.setattr(module, "uuid", SimpleNamespace(uuid4=next_hex))
        yield


class _ThisDisk:
    """Stands for `os`, over the disk of the scenario that is being played."""

    def __getattr__(self, name: str) -> Any:
        return getattr(DISK.disk.as_os(), name)
