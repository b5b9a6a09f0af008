"""Rows that kill the process which computes them: three deaths, then the rest is delivered."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

import dataservice as ds
from dataservice.errors import QuarantinedError
from dataservice.runtime.process import ChildProcess
from tests.integration.service_cluster import ProcessCluster, process_cluster

ROWS = 20_000
POISON = 7_777


def die_of_poison(columns: dict[str, Any]) -> dict[str, Any]:
    if (columns["id"] == POISON).any():
        os._exit(17)
    return {"id": columns["id"]}


def deaths(cluster: ProcessCluster) -> list[int]:
    return [worker.returncode for worker in cluster.workers if worker.returncode is not None]


def read(cluster: ProcessCluster, ids: list[int], on_error: str) -> dict[str, Any]:
    """Reads all that comes into `ids`; what was skipped."""
    dataset = ds.Dataset.range(ROWS).map(die_of_poison, schema=pa.schema([("id", pa.int64())]))
    remote = dataset.distribute(ds.ShardingPolicy.DYNAMIC, cluster.target, on_error=on_error)
    with iter(remote) as iterator:
        for batch in iterator:
            ids.extend(batch["id"].to_pylist())
        skipped: dict[str, Any] = iterator.stats()["skipped"]
        return skipped


def check_all_but_one_window(ids: list[int]) -> None:
    lost = set(range(ROWS)) - set(ids)
    assert len(ids) == len(set(ids))
    assert POISON in lost
    assert max(lost) - min(lost) + 1 == len(lost) <= ROWS // 64 + 1, "one window, whole"


def test_a_window_that_kills_its_workers(tmp_path: pathlib.Path) -> None:
    ids: list[int] = []

    def add_workers(pool: ThreadPoolExecutor, count: int) -> Iterator[ChildProcess]:
        interval = ("--heartbeat-interval-ms", "100")
        return pool.map(lambda _: cluster.add_worker(*interval), range(count))

    with (
        process_cluster(
            tmp_path, workers=0, dispatcher_args=("--worker-timeout-ms", "1000")
        ) as cluster,
        ThreadPoolExecutor(4) as pool,
    ):
        # Enough for three deaths and the rest: started side by side, which is quicker.
        list(add_workers(pool, 4))
        # Those for the second job start while the first one waits for deaths to be noticed.
        successors = add_workers(pool, 3)
        with pytest.raises(QuarantinedError, match=r"rows 75\d\d"):
            read(cluster, ids, "raise")
        list(successors)
        assert deaths(cluster) == [17] * 3
        check_all_but_one_window(ids)
        ids.clear()
        skipped = read(cluster, ids, "skip")
        assert (skipped["splits"], skipped["source_rows"]) == (1, ROWS - len(ids))
        assert deaths(cluster) == [17] * 6
    check_all_but_one_window(ids)
