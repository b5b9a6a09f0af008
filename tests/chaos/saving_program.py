"""Saves checkpoint after checkpoint, in a process that a test has killed at some point.

Prints the number of each checkpoint once it is known to be complete. All values in it equal that
number; if saves are incremental, only every tenth row does, and the others are 0.
"""

from __future__ import annotations

import sys

import numpy as np

import pstrain as ps
from dataservice.runtime.process.children import exit_with_parent
from pstrain.paramserver.server import ParameterServer

ROWS = 60_000
SAVES = 4


def main(directory: str, how: str = "") -> None:
    every = 10 if how == "incremental" else 1
    exit_with_parent()
    with ParameterServer() as first, ParameterServer() as second:
        spec = ps.ClusterSpec({"ps": [first.address, second.address], "worker": ["127.0.0.1:1"]})
        strategy = ps.ParameterServerStrategy(
            ps.SimpleClusterResolver(spec),
            variable_partitioner=ps.partitioners.MinSizePartitioner(1 << 20, max_shards=2),
        )
        with strategy.scope():
            table = ps.Variable(np.zeros((ROWS, 16), np.float32), name="table")
            number = ps.Variable(0, name="number")
        manager = ps.CheckpointManager(
            ps.Checkpoint(table=table, number=number),
            directory,
            2,
            asynchronous=True,
            incremental=every > 1,
        )
        changing = np.arange(0, ROWS, every)

        def change(op: str, value: int) -> None:
            rows = np.full((len(changing), 16), value, np.float32)
            getattr(table, f"scatter_{op}")(ps.IndexedSlices(rows, changing))

        for n in range(1, SAVES + 1):
            change("update", n)
            number.assign(n)
            saved = manager.save(checkpoint_number=n if n < SAVES else SAVES - 1)
            assert saved is not None
            change("add", 1)
            saved.wait(60)
            print(n, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
