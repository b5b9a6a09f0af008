"""After a lost parameter server, the mapping from keys to rows is restored with the rows."""

from __future__ import annotations

import pathlib
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pstrain as ps
from dataservice.runtime.number_arrays import to_numbers
from tests.chaos.counted_rows import CountedRows, KilledServers

ROWS, TIMES = 4_500, 3
FAR = 982_451_653


class KeyedRows(CountedRows):
    """A program whose rows add 1 and their key's number to the table row of their key.

    Each key has ``TIMES`` rows.
    """

    def __init__(self, cluster: ps.LocalCluster) -> None:
        super().__init__(cluster, ROWS, batch=50, pause_s=0.005, consistency="async")
        with self.strategy.scope():
            self.lookup = ps.layers.OnlineLookup(2 * ROWS)
            self.keyed = ps.Variable(np.zeros((2 * ROWS, 2), np.int64), name="keyed")

    def step(self) -> Callable[[Any], tuple[int, int, bool]]:
        count, lookup, keyed = super().step(), self.lookup, self.keyed

        class Peek:
            """A wrapper of the step's iterator that keeps the ids of the last batch."""

            def __init__(self, iterator: Any) -> None:
                self.iterator, self.ids = iterator, np.empty(0, np.int64)

            def __next__(self) -> Any:
                batch = next(self.iterator)
                self.ids = to_numbers(batch.column("id"))
                return batch

        def step(iterator: Any) -> tuple[int, int, bool]:
            peek = Peek(iterator)
            done = count(peek)
            numbers = peek.ids // TIMES
            added = np.stack([np.ones_like(numbers), numbers], axis=1)
            keyed.scatter_add(lookup(numbers * FAR, training=True), added)
            return done

        return step

    def objects(self) -> dict[str, Any]:
        return {**super().objects(), "lookup": self.lookup, "keyed": self.keyed}

    def check(self, rows: int | None = None, steps: int | None = None) -> None:
        super().check(rows, steps)
        numbers = np.arange(ROWS // TIMES)
        found = self.lookup(numbers * FAR)
        assert len(np.unique(found)) == len(numbers)
        assert found.min() > 0
        expected = np.zeros((2 * ROWS, 2), np.int64)
        expected[found] = np.stack([np.full_like(numbers, TIMES), TIMES * numbers], axis=1)
        np.testing.assert_array_equal(self.keyed.numpy(), expected)


@pytest.mark.parametrize(
    "seed", [1, pytest.param(2, marks=pytest.mark.long), pytest.param(3, marks=pytest.mark.long)]
)
def test_keys_keep_their_table_rows_although_servers_are_killed(
    seed: int, tmp_path: pathlib.Path
) -> None:
    chance = random.Random(seed)
    with ps.LocalCluster(workers=2, ps=2, data_workers=1, supervise=True) as cluster:
        program = KeyedRows(cluster)
        try:
            manager = ps.CheckpointManager(ps.Checkpoint(**program.objects()), tmp_path, 2)
            program.coordinator.recover_from(manager)
            manager.save()
            between = KilledServers(
                cluster, program, manager, chance, save_at=[ROWS // 4], first_at=ROWS // 2
            )
            program.run(between)
            program.coordinator.join(60)
            assert not between.left
            assert program.coordinator.stats()["restores"] >= 2
            program.check()
        finally:
            program.coordinator.close()
