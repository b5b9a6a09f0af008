"""Parts of a data service of real processes die, freeze and come back."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import threading
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

import dataservice as ds
from dataservice.client.connection import DispatcherConnection
from dataservice.errors import NotFoundError, UnavailableError, UnimplementedError
from dataservice.monitoring.status_text import status_text
from dataservice.vocabulary import parse_target
from tests.integration.service_cluster import ProcessCluster, process_cluster, write_numbers
from tests.ports import free_port
from tests.programs import start_program
from tests.waiting import wait_until

DYNAMIC = ds.ShardingPolicy.DYNAMIC
OFF = ds.ShardingPolicy.OFF
ROWS, FILES = 20_000, 40
AT_MOST_S = 40.0
"""Shorter than any time-out that these tests must not wait for."""


@pytest.fixture
def cluster(tmp_path: pathlib.Path) -> Iterator[ProcessCluster]:
    """Runs two workers whose leases expire quickly."""
    arguments = ("--worker-timeout-ms", "1500", "--client-timeout-ms", "1500")
    with process_cluster(tmp_path / "logs", workers=2, dispatcher_args=arguments) as running:
        yield running


@pytest.fixture
def dataset(tmp_path: pathlib.Path) -> ds.Dataset:
    """Returns rows of files, computed so slowly that a failure meets work in flight."""

    def slow(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        time.sleep(0.02)
        return columns

    paths = write_numbers(tmp_path, files=FILES, rows_per_file=ROWS // FILES, group_rows=200)
    schema = pa.schema({"id": pa.int64(), "x": pa.float32()})
    return ds.Dataset.from_parquet(paths).map(slow, schema=schema).shuffle(500, seed=1).batch(64)


def ids_of(batch: pa.RecordBatch) -> list[int]:
    return batch.column("id").to_pylist()


def assert_every_row_once(got: list[int]) -> None:
    assert len(got) == ROWS, f"{len(got)} rows instead of {ROWS}, {len(set(got))} different"
    assert sorted(got) == list(range(ROWS))


@pytest.mark.parametrize("elements_before", [0, pytest.param(1, marks=pytest.mark.long), 100])
def test_killed_worker_loses_no_row_and_little_time(
    cluster: ProcessCluster, dataset: ds.Dataset, elements_before: int
) -> None:
    got: list[int] = []
    with iter(dataset.distribute(DYNAMIC, cluster.target)) as iterator:
        for _ in range(elements_before):
            got += ids_of(next(iterator))
        cluster.workers[0].kill()
        killed_s = time.monotonic()
        for batch in iterator:
            got += ids_of(batch)
    assert_every_row_once(got)
    assert time.monotonic() - killed_s < AT_MOST_S


def test_killed_worker_loses_no_row_of_interleaved_and_bucketed_windows(
    cluster: ProcessCluster, tmp_path: pathlib.Path
) -> None:
    def slow(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        time.sleep(0.002)
        return columns

    write_numbers(tmp_path, files=FILES, rows_per_file=ROWS // FILES, group_rows=200)
    buckets = (
        ds.Dataset.list_files(str(tmp_path / "*.parquet"), shuffle=True)
        .interleave(lambda row: ds.Dataset.from_parquet(row["path"]), num_parallel_calls=4)
        .shuffle(1_000)
        .bucket_by_sequence_length(lambda c: c["id"] % 16, [4, 8], [64, 32, 16])
        .map(slow, schema=pa.schema({"id": pa.int64(), "x": pa.float32()}))
    )
    got: list[int] = []
    remote = buckets.distribute(DYNAMIC, cluster.target)
    with iter(remote) as iterator:
        for _ in range(100):
            got += ids_of(next(iterator))
        cluster.workers[0].kill()
        for _ in range(100):
            batch = next(iterator)
            assert len({np.searchsorted([4, 8], i % 16, side="right") for i in ids_of(batch)}) == 1
            got += ids_of(batch)
        state = iterator.state_dict()
    with iter(remote) as iterator:
        iterator.load_state_dict(state)
        for batch in iterator:
            got += ids_of(batch)
    assert_every_row_once(got)


def test_windows_that_cannot_be_replayed_are_counted_lost_not_recomputed(
    cluster: ProcessCluster, tmp_path: pathlib.Path
) -> None:
    seen = str(tmp_path / "seen")

    def noted(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        handle = os.open(seen, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(handle, columns["id"].tobytes())
        os.close(handle)
        time.sleep(0.02)
        return columns

    paths = write_numbers(tmp_path, files=FILES, rows_per_file=ROWS // FILES, group_rows=200)
    schema = pa.schema({"id": pa.int64(), "x": pa.float32()})
    once = ds.Dataset.from_parquet(paths).map(noted, schema=schema, deterministic=False).batch(64)
    with pytest.warns(ds.DataServiceWarning, match=r"map\(.*noted\) was declared") as told:
        remote = once.distribute(DYNAMIC, cluster.target, job_name="once")
    assert len(told) == 1
    got: list[int] = []
    with iter(remote) as iterator:
        for _ in range(50):
            got += ids_of(next(iterator))
        with pytest.raises(UnimplementedError, match=r"map\(.*deterministic=False"):
            iterator.state_dict()
        cluster.workers[0].kill()
        for batch in iterator:
            got += ids_of(batch)
        with DispatcherConnection(parse_target(cluster.target)) as connection:
            status = connection.status()
    assert len(set(got)) == len(got), "no row twice"
    ((job,),) = (status["jobs"],)
    lost = job["iterations"][0]["lost"]
    assert lost["windows"] >= 1
    assert lost["windows_not_counted"] == 0
    assert ROWS - len(got) <= lost["rows_at_most"] < ROWS // 2
    windows = "window" if lost["windows"] == 1 else "windows"
    said = f"were lost in {lost['windows']} {windows}, up to {lost['rows_at_most']:,}"
    assert said in status_text(json.dumps(status))
    # Only rows in flight at the killed worker are missing; all other windows are delivered.
    assert ROWS // 2 < len(got) < ROWS
    calls = np.fromfile(seen, np.int64)
    assert len(np.unique(calls)) == len(calls), "nothing is computed twice"
    assert set(got) <= set(calls.tolist())


def test_generator_that_cannot_be_replayed_ends_with_its_worker(cluster: ProcessCluster) -> None:
    def endless_enough() -> Iterator[dict[str, np.ndarray]]:
        for first in range(0, 1_000_000, 100):
            time.sleep(0.01)
            yield {"id": np.arange(first, first + 100)}

    data = ds.Dataset.from_generator(
        endless_enough, pa.schema({"id": pa.int64()}), format="numpy", deterministic=False
    )
    with pytest.warns(ds.DataServiceWarning, match="from_generator"):
        dataset_id = ds.register_dataset(cluster.target, data)
    remote = ds.from_dataset_id(DYNAMIC, cluster.target, dataset_id, delivery="at_most_once")
    with iter(remote) as iterator:
        got = ids_of(next(iterator))
        for worker in cluster.workers:
            worker.kill()
        cluster.add_worker()
        for batch in iterator:
            got += ids_of(batch)
    assert got == list(range(len(got))), "what came before the loss, and nothing of a second run"
    assert len(got) < 1_000_000


def test_two_killed_workers_replaced_by_one_lose_no_row(
    cluster: ProcessCluster, dataset: ds.Dataset
) -> None:
    got: list[int] = []
    with iter(dataset.distribute(DYNAMIC, cluster.target)) as iterator:
        for _ in range(50):
            got += ids_of(next(iterator))
        for worker in cluster.workers:
            worker.kill()
        cluster.add_worker()
        for batch in iterator:
            got += ids_of(batch)
    assert_every_row_once(got)


def test_frozen_worker_is_fenced_and_its_rows_come_from_another(
    cluster: ProcessCluster, dataset: ds.Dataset
) -> None:
    got: list[int] = []
    with iter(dataset.distribute(DYNAMIC, cluster.target)) as iterator:
        for _ in range(20):
            got += ids_of(next(iterator))
        cluster.workers[0].suspend()
        while len(got) < ROWS * 3 // 4:
            got += ids_of(next(iterator))
        cluster.workers[0].resume()
        for batch in iterator:
            got += ids_of(batch)
    assert_every_row_once(got)


def test_resumed_worker_serves_again(cluster: ProcessCluster, dataset: ds.Dataset) -> None:
    cluster.workers[0].suspend()
    remote = dataset.distribute(DYNAMIC, cluster.target)
    assert_every_row_once([i for batch in remote for i in ids_of(batch)])
    cluster.workers[0].resume()
    cluster.workers[1].kill()
    assert_every_row_once([i for batch in remote for i in ids_of(batch)])


def test_off_policy_ends_although_a_worker_is_killed(cluster: ProcessCluster) -> None:
    remote = ds.Dataset.range(2_000).batch(10).distribute(OFF, cluster.target)
    got: list[int] = []
    with iter(remote) as iterator:
        got += ids_of(next(iterator))
        cluster.workers[0].kill()
        for batch in iterator:
            got += ids_of(batch)
    assert set(got) == set(range(2_000))
    assert len(got) <= 4_000


def test_off_policy_does_not_wait_for_a_stopped_worker(tmp_path: pathlib.Path) -> None:
    with process_cluster(tmp_path / "logs", workers=2) as cluster:
        remote = ds.Dataset.range(2_000).batch(10).distribute(OFF, cluster.target)
        with iter(remote) as iterator:
            got = ids_of(next(iterator))
            leaving = threading.Thread(target=cluster.workers[0].terminate)
            began_s = time.monotonic()
            leaving.start()
            got += [i for batch in iterator for i in ids_of(batch)]
            leaving.join(60)
    assert set(got) == set(range(2_000))
    assert time.monotonic() - began_s < AT_MOST_S


READER = """
    import sys
    import dataservice as ds

    target, dataset_id, limit = sys.argv[1], sys.argv[2], int(sys.argv[3])
    remote = ds.from_dataset_id(ds.ShardingPolicy.DYNAMIC, target, dataset_id, job_name="shared")
    for count, batch in enumerate(remote):
        print(*batch.column("id").to_pylist(), flush=True)
        if count + 1 == limit:
            print("holding", flush=True)
            sys.stdin.read()
"""


def lines_until_holding(process: subprocess.Popen[str]) -> list[int]:
    assert process.stdout is not None
    got: list[int] = []
    for line in process.stdout:
        if line.startswith("holding"):
            return got
        got += map(int, line.split())
    raise AssertionError(f"the reader ended early: {process.communicate()[1]}")


def test_unreported_rows_of_killed_reader_go_to_another(
    cluster: ProcessCluster, dataset: ds.Dataset
) -> None:
    """Rows that the dead reader had reported do not come again; rows it had not reported do."""
    dataset_id = ds.register_dataset(cluster.target, dataset)
    doomed = start_program(READER, cluster.target, dataset_id, 40)
    with doomed:
        taken = lines_until_holding(doomed)
        remote = ds.from_dataset_id(DYNAMIC, cluster.target, dataset_id, job_name="shared")
        with iter(remote) as iterator:
            # None if the other has been given all there is for now.
            first = next(iterator, None)
            got = [] if first is None else ids_of(first)
            wait_until_reported(cluster, len(taken))
            doomed.kill()
            deadline_s = time.monotonic() + 90
            while len(got) + len(taken) < ROWS and time.monotonic() < deadline_s:
                # The end means that nothing is left at present: the dead reader's rows come back.
                for batch in iterator:
                    got += ids_of(batch)
    assert_every_row_once(got + taken)


def wait_until_reported(cluster: ProcessCluster, rows: int) -> None:
    """Waits for the reader's next grouped call, which reports the rows that it consumed."""
    wait_until(lambda: rows_consumed(cluster) >= rows, "the report of the rows consumed")


def rows_consumed(cluster: ProcessCluster) -> int:
    iterations = [i for job in cluster.status()["jobs"] for i in job["iterations"]]
    return sum(iteration.get("rows_consumed", 0) for iteration in iterations)


def readers_of(cluster: ProcessCluster) -> list[dict[str, object]]:
    iterations = [i for job in cluster.status()["jobs"] for i in job["iterations"]]
    return [reader for iteration in iterations for reader in iteration["readers"]]


def test_interrupt_ends_a_waiting_reader_at_once(tmp_path: pathlib.Path) -> None:
    with process_cluster(tmp_path / "logs", workers=0) as cluster:
        dataset_id = ds.register_dataset(cluster.target, ds.Dataset.range(10))
        reader = start_program(READER, cluster.target, dataset_id, 10)
        with reader:
            wait_until(lambda: bool(readers_of(cluster)), "the reader's arrival")
            assert reader.poll() is None, reader.communicate()[1]
            os.kill(reader.pid, signal.SIGINT)
            began_s = time.monotonic()
            _, errors = reader.communicate(timeout=60)
    assert time.monotonic() - began_s < AT_MOST_S
    assert "KeyboardInterrupt" in errors
    assert reader.returncode != 0


def test_reader_without_any_worker_is_unavailable_after_its_timeout() -> None:
    with ds.DispatchServer() as dispatcher:
        remote = ds.Dataset.range(10).distribute(DYNAMIC, dispatcher.target, timeout_s=3.0)
        with pytest.raises(UnavailableError, match="no data worker is registered"):
            next(iter(remote))


@pytest.mark.parametrize("policy", [DYNAMIC, ds.ShardingPolicy.OFF])
def test_reader_that_can_reach_no_worker_names_its_address(policy: ds.ShardingPolicy) -> None:
    with ds.DispatchServer() as dispatcher:
        config = ds.WorkerConfig(dispatcher.target, worker_address=f"127.0.0.1:{free_port()}")
        with ds.WorkerServer(config) as worker:
            remote = ds.Dataset.range(10).distribute(
                policy, dispatcher.target, timeout_s=3.0, data_transfer_protocol="flight"
            )
            with pytest.raises(
                UnavailableError, match=r"cannot be reached.*worker_address"
            ) as told:
                next(iter(remote))
            assert parse_target(worker.target) in str(told.value)


def test_worker_stopped_by_sigterm_loses_no_row(
    cluster: ProcessCluster, dataset: ds.Dataset
) -> None:
    got: list[int] = []
    with iter(dataset.distribute(DYNAMIC, cluster.target)) as iterator:
        for _ in range(20):
            got += ids_of(next(iterator))
        stopping = threading.Thread(target=cluster.workers[0].terminate)
        began_s = time.monotonic()
        stopping.start()
        for batch in iterator:
            got += ids_of(batch)
        stopping.join(60)
    assert time.monotonic() - began_s < AT_MOST_S
    assert cluster.workers[0].returncode == 0
    assert_every_row_once(got)


def test_dispatcher_restarted_without_journal_is_an_error_for_readers(
    tmp_path: pathlib.Path, dataset: ds.Dataset
) -> None:
    with process_cluster(tmp_path / "logs", workers=1) as cluster:
        port = parse_target(cluster.target).rpartition(":")[2]
        with iter(dataset.distribute(DYNAMIC, cluster.target)) as iterator:
            next(iterator)
            cluster.dispatcher.kill()
            cluster.start_dispatcher("--port", port)
            with pytest.raises(NotFoundError, match="restarted without fault_tolerant_mode"):
                for _ in iterator:
                    pass


def test_dispatcher_restarted_with_journal_loses_no_row(
    tmp_path: pathlib.Path, dataset: ds.Dataset
) -> None:
    arguments = ("--work-dir", str(tmp_path / "journal"), "--fault-tolerant")
    with process_cluster(tmp_path / "logs", workers=2, dispatcher_args=arguments) as cluster:
        port = parse_target(cluster.target).rpartition(":")[2]
        got: list[int] = []
        with iter(dataset.distribute(DYNAMIC, cluster.target)) as iterator:
            for _ in range(30):
                got += ids_of(next(iterator))
            cluster.dispatcher.kill()
            for _ in range(5):
                got += ids_of(next(iterator))
            cluster.start_dispatcher("--port", port, *arguments)
            for batch in iterator:
                got += ids_of(batch)
    assert_every_row_once(got)
