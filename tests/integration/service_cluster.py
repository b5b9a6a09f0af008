"""A data service for tests: dispatcher and workers as processes, or in this process.

Invariant: servers end with their context, whatever the test did to them.
"""

from __future__ import annotations

import io
import pathlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import dataservice as ds
from dataservice.__main__ import main
from dataservice.client.connection import DispatcherConnection
from dataservice.runtime.process.children import ChildProcess, spawn_module
from dataservice.vocabulary import parse_target

READY_TIMEOUT_S = 60.0


class ProcessCluster:
    """A dispatcher and workers, each its own process, started through the command line."""

    def __init__(self, log_dir: pathlib.Path, *, dispatcher_args: tuple[str, ...] = ()) -> None:
        self._log_dir = log_dir
        self._children: list[ChildProcess] = []
        self.workers: list[ChildProcess] = []
        self.start_dispatcher("--port", "0", *dispatcher_args)

    def start_dispatcher(self, *args: str) -> None:
        """Starts a dispatcher and makes it the cluster's."""
        self.dispatcher = self._spawn("dispatcher", "dispatcher", "--ready-json", *args)
        self.target = self.dispatcher.wait_ready(READY_TIMEOUT_S)["address"]

    def add_worker(self, *args: str) -> ChildProcess:
        """Starts a worker and waits until it is registered."""
        (worker,) = self.add_workers(1, *args)
        return worker

    def add_workers(self, count: int, *args: str) -> list[ChildProcess]:
        """Starts workers side by side and waits until they are registered."""
        arguments = ("worker", "--dispatcher", parse_target(self.target), "--ready-json", *args)
        numbers = range(len(self.workers), len(self.workers) + count)
        workers = [self._spawn(f"worker-{number}", *arguments) for number in numbers]
        for worker in workers:
            worker.wait_ready(READY_TIMEOUT_S)
        self.workers += workers
        return workers

    def status(self) -> dict[str, Any]:
        """Returns the dispatcher's status report."""
        with DispatcherConnection(parse_target(self.target)) as connection:
            return connection.status()

    def _spawn(self, name: str, *args: str) -> ChildProcess:
        child = spawn_module("dataservice", list(args), log_path=self._log_dir / f"{name}.log")
        self._children.append(child)
        return child

    def stop(self) -> None:
        for child in reversed(self._children):
            child.kill()


@contextmanager
def process_cluster(
    log_dir: pathlib.Path, *, workers: int, dispatcher_args: tuple[str, ...] = ()
) -> Iterator[ProcessCluster]:
    """Runs a cluster of processes with so many workers."""
    cluster = ProcessCluster(log_dir, dispatcher_args=dispatcher_args)
    try:
        cluster.add_workers(workers)
        yield cluster
    finally:
        cluster.stop()


class LocalService:
    """A dispatcher and workers in this process."""

    def __init__(self, stack: ExitStack, config: ds.DispatcherConfig) -> None:
        self._stack = stack
        self.dispatcher = stack.enter_context(ds.DispatchServer(config))
        self.target = self.dispatcher.target
        self.workers: list[ds.WorkerServer] = []

    def add_worker(self, **settings: object) -> ds.WorkerServer:
        config = ds.WorkerConfig(self.target, heartbeat_interval_ms=100, **settings)
        worker = self._stack.enter_context(ds.WorkerServer(config))
        self.workers.append(worker)
        return worker


@contextmanager
def local_service(
    *, workers: int = 1, config: ds.DispatcherConfig | None = None
) -> Iterator[LocalService]:
    """Runs a dispatcher and so many workers in this process."""
    with ExitStack() as stack:
        service = LocalService(stack, config or ds.DispatcherConfig())
        for _ in range(workers):
            service.add_worker()
        yield service


def write_numbers(
    folder: pathlib.Path, *, files: int, rows_per_file: int, group_rows: int = 2_000
) -> str:
    """Writes Parquet files whose column `id` counts through all of them; returns their glob."""
    for index in range(files):
        ids = np.arange(index * rows_per_file, (index + 1) * rows_per_file)
        table = pa.table({"id": ids, "x": ids.astype(np.float32) / 2})
        pq.write_table(table, folder / f"part-{index:03}.parquet", row_group_size=group_rows)
    return str(folder / "part-*.parquet")


def printed(*arguments: str) -> str:
    """Runs a command of the command line in this process; returns all that it prints."""
    with io.StringIO() as to, redirect_stdout(to), redirect_stderr(to):
        main(arguments)
        return to.getvalue()


def read_ids(dataset: ds.Dataset) -> list[int]:
    """Returns all values of column `id`, in the order of delivery."""
    return [value for batch in dataset for value in batch.column("id").to_pylist()]
