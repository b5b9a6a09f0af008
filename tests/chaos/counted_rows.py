"""A table that counts how often each row was trained on, and steps that fill it."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import dataservice as ds
import pstrain as ps
from dataservice.runtime.number_arrays import to_numbers

DEADLINE_S = 90.0


class CountedRows:
    """A program that trains on ``rows`` rows of a service; each adds 1 to its own row of a table.

    Each step changes the table, which is sharded over two servers, and two scalars, one on each.
    """

    def __init__(
        self, cluster: ps.LocalCluster, rows: int, batch: int, pause_s: float, consistency: Any
    ) -> None:
        self.rows = rows
        resolver = cluster.resolver
        self.strategy = ps.ParameterServerStrategy(
            resolver,
            variable_partitioner=ps.partitioners.FixedShardsPartitioner(2),
            consistency=consistency,
        )
        self.coordinator = ps.ClusterCoordinator(self.strategy)
        with self.strategy.scope():
            self.table = ps.Variable(np.zeros((rows, 1), np.int64), name="counts")
            self.taken = ps.Variable(0, name="taken")
            self.steps = ps.Variable(0, name="steps")
        data = ds.Dataset.range(rows).batch(batch)
        self.dataset_id = ds.register_dataset(cluster.service, data)
        self.service = cluster.service
        self.pause_s = pause_s
        self.iterator = iter(self.coordinator.create_per_worker_dataset(self.dataset_fn()))

    def dataset_fn(self) -> Callable[..., Any]:
        service, dataset_id = self.service, self.dataset_id

        def make(_context: Any) -> Any:
            return ds.from_dataset_id(
                ds.ShardingPolicy.DYNAMIC, service, dataset_id, job_name="train"
            )

        return make

    def step(self) -> Callable[[Any], tuple[int, int, bool]]:
        table, taken, steps, pause_s = self.table, self.taken, self.steps, self.pause_s

        def step(iterator: Any) -> tuple[int, int, bool]:
            try:
                ids = to_numbers(next(iterator).column("id"))
            except StopIteration:
                return ps.get_current_worker_index(), 0, True
            time.sleep(pause_s)
            table.scatter_add(ids, np.ones((len(ids), 1), np.int64))
            taken.assign_add(len(ids))
            steps.assign_add(1)
            return ps.get_current_worker_index(), len(ids), False

        return step

    def objects(self) -> dict[str, Any]:
        """Returns the objects that a checkpoint of this program holds."""
        return {
            "table": self.table, "taken": self.taken, "steps": self.steps, "data": self.iterator
        }  # fmt: skip

    def run(
        self, between: Callable[[int], None] = lambda _rows: None, until: int | None = None
    ) -> tuple[int, int]:
        """Trains until all live trainers have seen the end, or ``until`` rows have been reported.

        Returns the numbers of rows and of steps that closures have reported.
        """
        iterator = self.iterator
        step = self.step()
        rows = steps = 0
        undone = self._undone()
        ended: set[int] = set()
        deadline_s = time.monotonic() + DEADLINE_S
        while True:
            live = self.coordinator.live_trainers()
            if ended and ended >= live:
                self._ask_all_servers()
            if (now := self._undone()) != undone:
                undone, ended = now, set()
            if (ended and ended >= live) or (until is not None and rows >= until):
                return rows, steps
            assert time.monotonic() < deadline_s, self.coordinator.stats()
            # Many closures, as a trainer at the end needs some time to learn that nothing is left.
            values = [self.coordinator.schedule(step, args=(iterator,)) for _ in range(32)]
            for value in values:
                trainer, count, is_end = value.fetch(DEADLINE_S)
                rows, steps = rows + count, steps + (not is_end)
                if count:
                    deadline_s = time.monotonic() + DEADLINE_S
                if is_end and self._undone() == undone:
                    ended.add(trainer)
            between(rows)

    def _undone(self) -> tuple[int, int]:
        """Returns how many losses and restores there were; each frees rows held or trained on."""
        stats = self.coordinator.stats()
        return stats["losses"], stats["restores"]

    def _ask_all_servers(self) -> None:
        """Reads a variable of each server, and so waits for the restore if one is lost unnoticed.

        At the end of the data closures send nothing to the servers, so that nothing else notices.
        """
        self.coordinator.join(DEADLINE_S)
        assert int(self.taken) >= 0
        assert int(self.steps) >= 0

    def check(self, rows: int | None = None, steps: int | None = None) -> None:
        """Asserts that each row was trained on once.

        ``rows`` and ``steps`` are the numbers that closures reported, None if unknown.
        """
        counts = self.table.numpy().reshape(-1)
        wrong = np.flatnonzero(counts != 1)
        assert not len(wrong), (len(wrong), wrong[:10], counts[wrong[:10]], int(self.taken), rows)
        assert int(self.taken) == self.rows == (self.rows if rows is None else rows)
        assert steps is None or int(self.steps) == steps


@contextlib.contextmanager
def counted(
    cluster: ps.LocalCluster,
    rows: int,
    batch: int = 50,
    pause_s: float = 0.005,
    consistency: Any = "async",
) -> Iterator[CountedRows]:
    program = CountedRows(cluster, rows, batch, pause_s, consistency)
    try:
        yield program
    finally:
        program.coordinator.close()


class KilledServers:
    """Saves a checkpoint at given numbers of reported rows, and kills parameter servers in turn.

    The first server is killed at ``first_at`` rows, each further one after the restore that the
    last kill caused: rows that are trained on again are not reported again, so cannot tell when.
    """

    def __init__(
        self,
        cluster: ps.LocalCluster,
        program: CountedRows,
        manager: ps.CheckpointManager,
        chance: random.Random,
        *,
        save_at: Sequence[int],
        first_at: int,
        count: int = 2,
    ) -> None:
        self._cluster, self._program, self._manager = cluster, program, manager
        self._chance = chance
        self._save_at = list(save_at)
        self._first_at = first_at
        self.left = count
        self._restores = 0

    def __call__(self, done: int) -> None:
        if self._save_at and done >= self._save_at[0]:
            self._save_at.pop(0)
            self._manager.save()
        restores = self._program.coordinator.stats()["restores"]
        if self.left and done >= self._first_at and restores >= self._restores:
            self.left -= 1
            self._restores = restores + 1
            # A closure that is in flight when the server dies.
            self._program.coordinator.schedule(self._program.step(), (self._program.iterator,))
            time.sleep(self._chance.random() * 0.02)
            self._cluster.kill("ps", self._chance.randrange(2))
