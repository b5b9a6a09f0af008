"""Trains one epoch of counted rows on a running cluster, with periodic checkpoints.

Prints the rows trained so far after each checkpoint, and ``whole`` at the end.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import pstrain as ps
from dataservice.runtime.process.children import exit_with_parent
from tests.chaos.counted_rows import CountedRows

ROWS = 6_000
EVERY = 800


def main(cluster: dict[str, Any], directory: str) -> None:
    exit_with_parent()
    resolver = ps.SimpleClusterResolver(ps.ClusterSpec(cluster["spec"]))
    program: Any = CountedRows(
        SimpleNamespace(resolver=resolver, service=cluster["service"]),  # type: ignore[arg-type]
        ROWS,
        batch=40,
        pause_s=0.01,
        consistency="async",
    )
    manager = ps.CheckpointManager(
        ps.Checkpoint(**program.objects()), directory, 3, asynchronous=True
    )
    manager.restore_or_initialize()
    saved = int(program.taken)

    def between(_rows: int) -> None:
        nonlocal saved
        if int(program.taken) - saved >= EVERY:
            manager.wait()
            manager.save()
            saved = int(program.taken)
            print(saved, flush=True)

    program.run(between)
    manager.wait()
    program.check()
    program.coordinator.close()
    print("whole", flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2])
