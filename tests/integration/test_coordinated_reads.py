"""Coordinated reads: in every step all consumers get elements of one worker's round."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dataservice as ds
from dataservice.client.connection import DispatcherConnection
from dataservice.dataset.node import INFINITE_CARDINALITY
from dataservice.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    UserFunctionError,
)
from dataservice.monitoring.status_text import status_text
from dataservice.vocabulary import parse_target
from tests.integration.service_cluster import ProcessCluster, local_service, process_cluster
from tests.programs import start_program
from tests.waiting import wait_until

OFF = ds.ShardingPolicy.OFF
QUICK = ("--worker-timeout-ms", "1500", "--client-timeout-ms", "3000")


def numbered(consumers: int) -> ds.Dataset:
    """Returns elements that tell their origin: a number, consecutive per worker, and a pid."""

    def sign(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {**columns, "pid": columns["id"] * 0 + os.getpid()}

    schema = pa.schema({"id": pa.int64(), "pid": pa.int64()})
    rows = ds.Dataset.range(100_000 * consumers).batch(1).map(sign, schema=schema)
    return rows.repeat()


@contextmanager
def consumers_of(target: str, dataset: ds.Dataset, count: int) -> Iterator[list[Any]]:
    """Yields the iterators of all consumers of one job."""
    dataset_id = ds.register_dataset(target, dataset)
    with ExitStack() as stack:
        yield [stack.enter_context(consumer(target, dataset_id, i, count)) for i in range(count)]


def drain(iterator: Any) -> None:
    """Reads until an error is raised; fails the test if none is."""
    for _ in range(200):
        next(iterator)
    pytest.fail("no error came")


def consumer(target: str, dataset_id: str, index: int, count: int, **arguments: Any) -> Any:
    return iter(
        ds.from_dataset_id(
            OFF,
            target,
            dataset_id,
            job_name="steps",
            consumer_index=index,
            num_consumers=count,
            **arguments,
        )
    )


def step(iterators: list[Any]) -> int:
    """Takes and checks one step of all consumers; returns the id of the process that made it."""
    rows = [next(iterator).to_pylist()[0] for iterator in iterators]
    first = rows[0]["id"]
    assert first % len(rows) == 0, rows
    assert [row["id"] for row in rows] == list(range(first, first + len(rows))), rows
    assert len({row["pid"] for row in rows}) == 1, rows
    return int(rows[0]["pid"])


@pytest.fixture
def cluster(tmp_path: pathlib.Path) -> Iterator[ProcessCluster]:
    with process_cluster(tmp_path / "logs", workers=2, dispatcher_args=QUICK) as running:
        yield running


def test_all_consumers_get_batches_of_one_bucket_in_each_step() -> None:
    lengths = np.random.default_rng(5).integers(1, 40, 600)
    table = pa.table({"tokens": [list(range(n)) for n in lengths]})
    dataset = (
        ds.Dataset.from_table(table)
        .shuffle(600)
        .repeat()
        .bucket_by_sequence_length("tokens", [10, 20, 30], [4] * 4, drop_remainder=True)
        .group_by_window(lambda c: c["tokens"].shape[1] // 10, lambda _k, w: w, window_size=3)
    )
    with local_service(workers=2) as service, consumers_of(service.target, dataset, 3) as iterators:
        buckets = set()
        for _ in range(60):
            widths = [len(next(it).column("tokens")[0]) // 10 for it in iterators]
            assert len(set(widths)) == 1, widths
            buckets.add(widths[0])
        assert len(buckets) > 1, "the check would be empty"


def test_all_workers_serve_rounds_in_order() -> None:
    with local_service(workers=2) as service:
        with consumers_of(service.target, numbered(2), 2) as iterators:
            for _ in range(100):
                step(iterators)
        rows = [worker._service.load()[0] for worker in service.workers]
        assert min(rows) >= 60, rows


def test_single_consumer_reads_rows_in_order() -> None:
    with local_service(workers=1) as service:
        rows = ds.Dataset.range(10).repeat()
        with consumers_of(service.target, rows, 1) as (iterator,):
            got = [next(iterator).column("id").to_pylist() for _ in range(25)]
        assert got == [[i % 10] for i in range(25)]


def test_consumer_that_is_told_no_changes_still_knows_its_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known, sync_rounds = list[int](), DispatcherConnection.sync_rounds

    def noting(self: DispatcherConnection, request: Any, **limits: Any) -> Any:
        known.append(request.members_known)
        return sync_rounds(self, request, **limits)

    def slowly(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        time.sleep(1.5)
        return columns

    monkeypatch.setattr(DispatcherConnection, "sync_rounds", noting)
    dataset = ds.Dataset.range(100).batch(1).map(slowly).repeat()
    with local_service(workers=1) as service:
        dataset_id = ds.register_dataset(service.target, dataset)
        iterator = consumer(service.target, dataset_id, 0, 1, timeout_s=0.5)
        with iterator:
            assert next(iterator).to_pylist() == [{"id": 0}]
    assert len(known) > 2
    assert all(known), "it asks for all workers each time"


def test_missing_consumers_are_named_in_status_and_error() -> None:
    with local_service(workers=1) as service:
        dataset_id = ds.register_dataset(service.target, numbered(3))
        iterator = consumer(service.target, dataset_id, 1, 3, timeout_s=2.0)
        with DispatcherConnection(parse_target(service.target)) as connection:
            status = status_text(json.dumps(connection.status()))
        assert "0 rounds, waits for consumer_index 0, 2" in status
        with pytest.raises(DeadlineExceededError, match="consumer_index 0, 2"):
            next(iterator)


def test_consumers_that_end_early_do_not_block_the_others() -> None:
    steps = 6
    with local_service(workers=2) as service:
        dataset_id = ds.register_dataset(service.target, numbered(3))

        def read(index: int) -> int:
            with consumer(service.target, dataset_id, index, 3) as iterator:
                return len([next(iterator) for _ in range(steps)])

        with ThreadPoolExecutor(3) as pool:
            assert list(pool.map(read, range(3))) == [steps] * 3


def test_second_consumer_of_an_index_replaces_the_first() -> None:
    with local_service(workers=2) as service, ExitStack() as stack:
        dataset_id = ds.register_dataset(service.target, numbered(2))

        def join(index: int) -> Any:
            return stack.enter_context(consumer(service.target, dataset_id, index, 2))

        first, second = join(0), join(1)
        for _ in range(10):
            step([first, second])
        third = join(1)
        for _ in range(30):
            step([first, third])
        with pytest.raises(FailedPreconditionError, match="joined as consumer_index 1"):
            drain(second)


def test_saved_position_is_the_round_number() -> None:
    states: list[dict[str, Any]] = []
    for first_round in (0, 5):
        with local_service(workers=1) as service, ExitStack() as stack:
            ds.register_dataset(service.target, numbered(2), dataset_id="same")
            iterators = [
                stack.enter_context(consumer(service.target, "same", i, 2)) for i in (0, 1)
            ]
            for iterator, state in zip(iterators, states, strict=False):
                iterator.load_state_dict(state)
            for _ in range(5):
                step(iterators)
            states = [iterator.state_dict() for iterator in iterators]
            assert [state["stream"]["round"] for state in states] == [first_round + 5] * 2


def test_finite_dataset_or_other_num_consumers_is_refused() -> None:
    with local_service(workers=1) as service:
        finite = ds.Dataset.range(100)
        arguments: dict[str, Any] = {"consumer_index": 0, "num_consumers": 2}
        with pytest.raises(FailedPreconditionError, match=r"infinite cardinality.*cardinality 100"):
            finite.distribute(OFF, service.target, job_name="a", **arguments)
        endless = finite.repeat()
        remote = endless.distribute(OFF, service.target, job_name="a", **arguments)
        assert remote.cardinality() == INFINITE_CARDINALITY
        with iter(remote):
            arguments["num_consumers"] = 3
            other = endless.distribute(OFF, service.target, job_name="a", **arguments)
            with pytest.raises(InvalidArgumentError, match=r"num_consumers \(existing 2, got 3\)"):
                iter(other)


def test_error_of_user_function_reaches_every_consumer() -> None:
    def fail(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if columns["id"][0] >= 20:
            raise ValueError("odd row")
        return columns

    dataset = ds.Dataset.range(100).batch(1).map(fail, schema=pa.schema({"id": pa.int64()}))
    with (
        local_service(workers=1) as service,
        consumers_of(service.target, dataset.repeat(), 2) as iterators,
    ):
        for iterator in iterators:
            with pytest.raises(UserFunctionError, match="odd row"):
                drain(iterator)


def test_rounds_go_on_when_workers_join_and_die(cluster: ProcessCluster) -> None:
    with consumers_of(cluster.target, numbered(3), 3) as iterators:
        givers = {step(iterators) for _ in range(40)}
        assert givers == {worker.pid for worker in cluster.workers}
        cluster.add_worker()
        wait_until(lambda: step(iterators) == cluster.workers[2].pid, "a round of the new worker")
        cluster.workers[0].kill()
        for _ in range(40):
            step(iterators)
        cluster.workers[1].kill()
        givers = {step(iterators) for _ in range(60)}
        assert cluster.workers[2].pid in givers


def test_rounds_go_on_at_new_worker_after_all_workers_died(cluster: ProcessCluster) -> None:
    with consumers_of(cluster.target, numbered(2), 2) as iterators:
        for _ in range(20):
            step(iterators)
        for worker in cluster.workers:
            worker.kill()
        cluster.add_worker()
        wait_until(lambda: step(iterators) == cluster.workers[2].pid, "a round of the new worker")


CONSUMER = """
    import sys
    import dataservice as ds

    target, dataset_id, limit = sys.argv[1], sys.argv[2], int(sys.argv[3])
    remote = ds.from_dataset_id(
        ds.ShardingPolicy.OFF, target, dataset_id,
        job_name="steps", consumer_index=1, num_consumers=2,
    )
    iterator = iter(remote)
    print("ready", flush=True)
    for count, batch in enumerate(iterator):
        print(batch.column("id")[0].as_py(), batch.column("pid")[0].as_py(), flush=True)
        if count + 1 == limit:
            sys.stdin.read()
"""


def await_ready(process: subprocess.Popen[str]) -> None:
    """Waits until a consumer is ready; from then on all consumers take elements together."""
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


def meet(iterator: Any, process: subprocess.Popen[str]) -> None:
    """Takes and checks one step of a consumer here and one in another process."""
    assert process.stdout is not None
    row = next(iterator).to_pylist()[0]
    other, pid = map(int, process.stdout.readline().split())
    assert (other, pid) == (row["id"] + 1, row["pid"])


@pytest.mark.parametrize(
    ("also_worker", "is_noticed"), [(False, True), (True, True), (False, False)]
)
def test_killed_consumer_rejoins_at_the_current_round(
    cluster: ProcessCluster, also_worker: bool, is_noticed: bool
) -> None:
    dataset_id = ds.register_dataset(cluster.target, numbered(2))
    with consumer(cluster.target, dataset_id, 0, 2) as iterator:
        with start_program(CONSUMER, cluster.target, dataset_id, 25) as doomed:
            await_ready(doomed)
            for _ in range(25):
                meet(iterator, doomed)
            doomed.send_signal(signal.SIGKILL)
        if also_worker:
            cluster.workers[0].kill()
        if is_noticed:
            what = "the death to be noticed"
            wait_until(lambda: doomed.pid not in reader_pids(cluster), what, 20)
        with start_program(CONSUMER, cluster.target, dataset_id, 50) as again:
            await_ready(again)
            for _ in range(50):
                meet(iterator, again)
            again.kill()


def reader_pids(cluster: ProcessCluster) -> list[int]:
    (job,) = cluster.status()["jobs"]
    return [reader["pid"] for reader in job["iterations"][0]["readers"]]


def test_rounds_go_on_after_dispatcher_restart(tmp_path: pathlib.Path) -> None:
    arguments = (*QUICK, "--work-dir", str(tmp_path / "journal"), "--fault-tolerant")
    with process_cluster(tmp_path / "logs", workers=2, dispatcher_args=arguments) as cluster:
        port = parse_target(cluster.target).rpartition(":")[2]
        with consumers_of(cluster.target, numbered(2), 2) as iterators:
            for _ in range(30):
                step(iterators)
            cluster.dispatcher.kill()
            cluster.start_dispatcher("--port", port, *arguments)
            for _ in range(30):
                step(iterators)
            cluster.workers[1].kill()
            for _ in range(40):
                step(iterators)
