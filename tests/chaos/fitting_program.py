"""Trains with ``fit`` on a running cluster, with periodic checkpoints.

Prints the number of the epoch's last step after each report, if the last checkpoint is complete,
and ``whole`` and the history at the end. A second start resumes from the last checkpoint.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import dataservice as ds
import pstrain as ps
from dataservice.runtime.process.children import exit_with_parent
from tests.chaos.counted_fit import BATCH, columns, compiled, dataset

ROWS = 4_000
EPOCHS = 2


class Tell(ps.callbacks.Callback):
    """Prints the number of the last step at each report, if the last checkpoint is complete."""

    def __init__(self, saved: ps.callbacks.Checkpoint) -> None:
        self._saved = saved

    def on_train_batch_end(self, batch: int, logs: Any) -> None:  # noqa: ARG002
        if self._saved.last_path is not None and self._saved.last_path.is_complete:
            print(batch, flush=True)


def main(cluster: dict[str, Any], directory: str) -> None:
    exit_with_parent()
    resolver = ps.SimpleClusterResolver(ps.ClusterSpec(cluster["spec"]))
    strategy = ps.ParameterServerStrategy(resolver)
    model = compiled(strategy, ROWS)
    saved = ps.callbacks.Checkpoint(directory, every_steps=30, max_to_keep=3)
    if cluster["by"] == "service":
        rows = dataset(ROWS).distribute(
            ds.ShardingPolicy.DYNAMIC, cluster["service"], job_name="fit"
        )
    else:  # in an order that each program draws anew
        rows = ds.Dataset.from_numpy(columns(ROWS)).shuffle(ROWS).batch(BATCH)
    history = model.fit(
        rows,
        EPOCHS,
        callbacks=[saved, Tell(saved)],
        steps_per_execution=2,
        verbose=0,
    )
    model.check(EPOCHS)
    ps.ClusterCoordinator(strategy).close()
    print(json.dumps(["whole", history.epoch, history.history["examples"]]), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2])
