"""Readers that each read from some of the workers get every row once, although these die."""

from __future__ import annotations

import pathlib
import threading

import numpy as np
import pytest

import dataservice as ds
from dataservice import stream_counts
from tests.integration.service_cluster import ProcessCluster

ROWS = 200_000
READERS = 4
TIMEOUT_S = 60.0


def test_each_row_is_read_once_although_all_workers_of_a_reader_are_killed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_counts, "LEAST_WORKERS", 1)
    monkeypatch.setattr(stream_counts, "READERS_PER_WORKER", 1)
    cluster = ProcessCluster(tmp_path)
    try:
        cluster.add_workers(3)
        data = ds.Dataset.range(ROWS).batch(100)
        got: list[list[int]] = [[] for _ in range(READERS)]
        reading, killed = threading.Event(), threading.Event()

        def read(reader: int) -> None:
            for batch in data.distribute(
                ds.ShardingPolicy.DYNAMIC, cluster.target, job_name="some"
            ):
                got[reader] += batch.column("id").to_pylist()
                if len(got[reader]) >= 2_000:
                    reading.set()
                    killed.wait(TIMEOUT_S)

        threads = [threading.Thread(target=read, args=(r,), daemon=True) for r in range(READERS)]
        for thread in threads:
            thread.start()
        assert reading.wait(TIMEOUT_S)
        for worker in cluster.workers[:2]:
            worker.kill()
        killed.set()
        for thread in threads:
            thread.join(TIMEOUT_S)
        assert not any(thread.is_alive() for thread in threads)
    finally:
        cluster.stop()
    np.testing.assert_array_equal(np.sort(np.concatenate(got)), np.arange(ROWS))
