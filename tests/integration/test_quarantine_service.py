"""Rows that kill the process that computes them: after three deaths the rest is delivered."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import pyarrow as pa
import pytest

import dataservice as ds
from dataservice.errors import QuarantinedError
from tests.integration.service_cluster import ProcessCluster, process_cluster

ROWS = 20_000
POISON = 7_777


def die_of_poison(columns: dict[str, Any]) -> dict[str, Any]:
    if (columns["id"] == POISON).any():
        os._exit(17)
    return {"id": columns["id"]}


def deaths(cluster: ProcessCluster) -> list[int]:
    return [worker.returncode for worker in cluster.workers if worker.returncode is not None]


# Starting workers takes most of the time; the simulation covers the reader that raises too.
@pytest.mark.parametrize("on_error", [pytest.param("raise", marks=pytest.mark.long), "skip"])
def test_window_that_killed_three_workers_is_quarantined(
    tmp_path: pathlib.Path, on_error: str
) -> None:
    dataset = ds.Dataset.range(ROWS).map(die_of_poison, schema=pa.schema([("id", pa.int64())]))
    # Four workers: three die, one delivers the rest.
    with process_cluster(
        tmp_path, workers=0, dispatcher_args=("--worker-timeout-ms", "1000")
    ) as cluster:
        cluster.add_workers(4, "--heartbeat-interval-ms", "100")
        remote = dataset.distribute(ds.ShardingPolicy.DYNAMIC, cluster.target, on_error=on_error)
        ids: list[int] = []
        with iter(remote) as iterator:

            def read() -> None:
                for batch in iterator:
                    ids.extend(batch["id"].to_pylist())

            if on_error == "raise":
                with pytest.raises(QuarantinedError, match=r"rows 75\d\d"):
                    read()
            else:
                read()
                skipped = iterator.stats()["skipped"]
                assert (skipped["splits"], skipped["source_rows"]) == (1, ROWS - len(ids))
        assert deaths(cluster) == [17, 17, 17]
    lost = set(range(ROWS)) - set(ids)
    assert len(ids) == len(set(ids))
    assert POISON in lost
    assert max(lost) - min(lost) + 1 == len(lost) <= ROWS // 64 + 1, "one window, whole"
