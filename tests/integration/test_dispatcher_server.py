"""A dispatcher on a real port: start and stop, errors, restarts with a journal, command line."""

from __future__ import annotations

import gc
import json
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from dataservice.config import DispatcherConfig
from dataservice.dataset.dataset import Dataset
from dataservice.dataset.plan import encode_plan
from dataservice.dispatcher.server import JOURNAL_FILE, DispatchServer
from dataservice.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
)
from dataservice.runtime.auth import resolve_token
from dataservice.runtime.process.children import spawn_module
from dataservice.runtime.rpc import RpcClient
from dataservice.vocabulary import PROTOCOL_VERSION, ShardingPolicy, parse_target
from dataservice.wire import dispatcher_pb2 as pb
from tests.integration.service_cluster import printed
from tests.ports import free_port
from tests.waiting import wait_until

DISPATCHER = pb.DESCRIPTOR.services_by_name["Dispatcher"]
READY_S = 60.0


def client_of(target: str, token: str | None = None) -> RpcClient:
    return RpcClient(target, DISPATCHER, token=resolve_token(token))


def encoded_plan(dataset: Dataset) -> bytes:
    return encode_plan(dataset.node)


def register(client: RpcClient, dataset: Dataset, dataset_id: str | None = None) -> str:
    request = pb.RegisterDatasetRequest(
        plan=encoded_plan(dataset), schema=b"s", cardinality=-2, compression="NONE"
    )
    if dataset_id is not None:
        request.dataset_id = dataset_id
    return str(client.call("RegisterDataset", request).dataset_id)


@pytest.fixture
def server() -> Iterator[DispatchServer]:
    with DispatchServer() as running:
        yield running


# Start and stop


def test_second_start_changes_nothing(server: DispatchServer) -> None:
    target = server.target
    server.start()
    assert server.target == target
    assert target.startswith("grpc://127.0.0.1:")


def test_stopped_dispatcher_cannot_start_again() -> None:
    server = DispatchServer()
    target = server.target
    server.stop()
    server.stop()
    server.join(1.0)
    with pytest.raises(FailedPreconditionError, match="make a new DispatchServer"):
        server.start()
    with (
        client_of(target) as client,
        pytest.raises(UnavailableError, match="check host and port, and that it is running"),
    ):
        client.call("GetVersion", pb.GetVersionRequest(), timeout_s=30.0)


def test_dispatcher_that_never_started_can_be_stopped_and_collected() -> None:
    server = DispatchServer(start=False)
    with pytest.raises(FailedPreconditionError, match="before start"):
        _ = server.target
    server.stop()
    del server
    DispatchServer(DispatcherConfig(), start=False)
    gc.collect()


def test_garbage_collected_dispatcher_frees_its_port() -> None:
    port = free_port()
    server = DispatchServer(DispatcherConfig(port=port))
    del server
    gc.collect()
    DispatchServer(DispatcherConfig(port=port)).stop()


def test_wrong_configuration_object_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"DispatcherConfig or None, got \{'port': 0\}"):
        DispatchServer({"port": 0})  # type: ignore[arg-type]


def test_pickled_dispatcher_has_its_address(server: DispatchServer) -> None:
    assert pickle.loads(pickle.dumps(server)).target == server.target
    with pytest.raises(TypeError, match="no address"):
        pickle.dumps(DispatchServer(start=False))


def test_join_waits_for_stop(server: DispatchServer) -> None:
    joined = threading.Event()

    def join() -> None:
        server.join()
        joined.set()

    thread = threading.Thread(target=join)
    thread.start()
    assert not joined.wait(0.2)
    server.stop()
    assert joined.wait(READY_S)
    thread.join()


def test_two_dispatchers_live_in_one_process(server: DispatchServer) -> None:
    with DispatchServer() as other, client_of(server.target) as one, client_of(other.target) as two:
        register(one, Dataset.range(3))
        assert one.call("GetVersion", pb.GetVersionRequest()).protocol == PROTOCOL_VERSION
        with pytest.raises(NotFoundError, match="Dataset id 1000 not found"):
            two.call("GetDataset", pb.GetDatasetRequest(dataset_id="1000"))


def test_stop_ends_a_waiting_lease_call(server: DispatchServer) -> None:
    with client_of(server.target) as client:
        reader = open_range(client, register(client, Dataset.range(1)))
        lease(client, reader)
        failures: list[BaseException] = []

        def wait_long() -> None:
            try:
                lease(client, reader, wait_s=30.0)
            except UnavailableError as error:
                failures.append(error)

        thread = threading.Thread(target=wait_long)
        thread.start()
        server.stop()
        thread.join(20.0)
        assert not thread.is_alive()
        assert len(failures) == 1


# Replies over the wire


class Opened:
    """A reader of an iteration, with a worker of its own."""

    def __init__(self, client: RpcClient, dataset_id: str, name: str = "train") -> None:
        worker = client.call("RegisterWorker", pb.RegisterWorkerRequest(address="127.0.0.1:1"))
        self.worker_id = worker.worker_id
        request = pb.OpenIterationRequest(
            dataset_id=dataset_id, policy=1, job_name=name, reader_id="reader-1"
        )
        self.reply = client.call("OpenIteration", request)
        self.iteration_id = self.reply.iteration_id


def open_range(client: RpcClient, dataset_id: str) -> Opened:
    return Opened(client, dataset_id)


def lease(
    client: RpcClient, reader: Opened, *, count: int = 1, wait_s: float = 0.0, sequence: int = 0
) -> pb.LeaseWindowsReply:
    request = pb.LeaseWindowsRequest(
        worker_id=reader.worker_id,
        iteration_id=reader.iteration_id,
        reader_id="reader-1",
        count=count,
        wait_s=wait_s,
        sequence=sequence,
    )
    reply: pb.LeaseWindowsReply = client.call("LeaseWindows", request)
    return reply


def sync(client: RpcClient, reader: Opened, *marks: pb.Mark) -> pb.SyncReply:
    request = pb.SyncRequest(reader_id="reader-1", iteration_id=reader.iteration_id, consumed=marks)
    reply: pb.SyncReply = client.call("Sync", request)
    return reply


def test_all_rows_of_a_shuffled_plan_are_leased_once(server: DispatchServer) -> None:
    with client_of(server.target) as client:
        reader = open_range(client, register(client, Dataset.range(1_000).shuffle(10, seed=3)))
        rows: list[int] = []
        while windows := lease(client, reader, count=5).windows:
            for window in windows:
                rows.extend(
                    row for split in window.splits for row in range(split.start, split.stop)
                )
                end = sum(split.rows for split in window.splits)
                sync(client, reader, pb.Mark(window=window.window, row=end, final=True))
        assert sorted(rows) == list(range(1_000))
        assert rows != sorted(rows), "a shuffle permutes the splits"
        assert sync(client, reader).iteration_finished


def test_repeated_plan_is_leased_epoch_by_epoch(server: DispatchServer) -> None:
    with client_of(server.target) as client:
        reader = open_range(client, register(client, Dataset.range(4).repeat()))
        epochs = [
            window.epoch for _ in range(5) for window in lease(client, reader, count=4).windows
        ]
        assert epochs == sorted(epochs)
        assert epochs[-1] >= 3


def test_plan_without_rows_ends_at_once(server: DispatchServer) -> None:
    with client_of(server.target) as client:
        reader = open_range(client, register(client, Dataset.range(0).repeat()))
        assert sync(client, reader).ended
        assert lease(client, reader).ended


def test_functions_are_never_loaded_by_the_dispatcher(server: DispatchServer) -> None:
    """The pickle of this function ends any process that loads it."""
    dataset = Dataset.range(3).map(Poisoned())
    with client_of(server.target) as client:
        reader = open_range(client, register(client, dataset))
        assert lease(client, reader).windows


class Poisoned:
    def __call__(self, columns: object) -> object:
        return columns

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return sys.exit, ("unpickled in the dispatcher",)


# Restarts


def fault_tolerant(work_dir: pathlib.Path, port: int = 0) -> DispatchServer:
    return DispatchServer(
        DispatcherConfig(port=port, work_dir=str(work_dir), fault_tolerant_mode=True)
    )


def test_restart_in_mid_epoch_loses_and_repeats_nothing(tmp_path: pathlib.Path) -> None:
    with fault_tolerant(tmp_path / "new") as first, client_of(first.target) as client:
        reader = open_range(client, register(client, Dataset.range(640)))
        granted = lease(client, reader, count=2, sequence=7)
        sync(client, reader, pb.Mark(window=0, row=3))
    with fault_tolerant(tmp_path / "new") as second, client_of(second.target) as client:
        assert lease(client, reader, count=2, sequence=7) == granted, "the answer was lost"
        assert lease(client, reader, sequence=8).windows[0].window == 2
        sync(client, reader, pb.Mark(window=0, row=10, final=True))
        assert register(client, Dataset.range(1)) == "1001"


def test_restart_without_journal_forgets_jobs_and_says_so() -> None:
    with DispatchServer() as first, client_of(first.target) as client:
        reader = open_range(client, register(client, Dataset.range(640)))
    with DispatchServer() as second, client_of(second.target) as client:
        with pytest.raises(NotFoundError, match="fault_tolerant_mode"):
            sync(client, reader)
        with pytest.raises(NotFoundError, match="not registered"):
            lease(client, reader)


def test_two_dispatchers_cannot_share_a_journal(tmp_path: pathlib.Path) -> None:
    with fault_tolerant(tmp_path), pytest.raises(FailedPreconditionError, match="in use"):
        fault_tolerant(tmp_path)


def test_damaged_journal_is_refused_at_start(tmp_path: pathlib.Path) -> None:
    (tmp_path / JOURNAL_FILE).write_bytes(b"not a journal" * 1000)
    with pytest.raises(DataLossError, match=JOURNAL_FILE):
        fault_tolerant(tmp_path)


# The command line


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dataservice", *arguments],
        capture_output=True,
        text=True,
        timeout=60.0,
        check=False,
    )


def test_restarted_dispatcher_has_all_datasets_it_acknowledged(tmp_path: pathlib.Path) -> None:
    port = free_port()
    arguments = [
        "dispatcher", "--ready-json", "--port", str(port), "--fault-tolerant",
        "--work-dir", str(tmp_path),
    ]  # fmt: skip
    with spawn_module("dataservice", arguments) as child:
        target = child.wait_ready(READY_S)["address"]
        with client_of(target) as client:
            ids = [register(client, Dataset.range(3)) for _ in range(20)]
            child.kill()
    with spawn_module("dataservice", arguments) as child:
        assert child.wait_ready(READY_S)["address"] == target
        with client_of(target) as client:
            for dataset_id in ids:
                request = pb.GetDatasetRequest(dataset_id=dataset_id)
                assert client.call("GetDataset", request).plan
        listed = printed("datasets", "list", parse_target(target), "--json")
        assert [item["dataset_id"] for item in json.loads(listed)] == ids


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_stop_the_dispatcher_with_exit_code_zero(number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "dataservice", "dispatcher", "--ready-json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert ready["pid"] == process.pid
        assert ready["address"].startswith("grpc://")
        process.send_signal(number)
        assert process.wait(READY_S) == 0


def test_errors_of_the_command_line_are_one_line(server: DispatchServer) -> None:
    port = parse_target(server.target).rpartition(":")[2]
    for arguments, part in (
        (["dispatcher", "--port", port], "already in use"),
        (["dispatcher", "--host", "0.0.0.0"], "--insecure-network"),
        (["status", f"127.0.0.1:{free_port()}"], "cannot reach the dispatcher"),
        (["status", "nonsense"], "HOST:PORT"),
        (["worker", "--dispatcher", "a:1", "--processes", "2", "--port", "5"], "--port 5 cannot"),
        (["jobs", "delete", parse_target(server.target), "absent"], "no job is named 'absent'"),
    ):
        result = command("--log-level", "error", *arguments)
        assert result.returncode == 2
        (line,) = result.stderr.strip().splitlines()
        assert line.startswith("dataservice: ")
        assert part in line


def test_jobs_and_datasets_are_listed_and_deleted(server: DispatchServer) -> None:
    address = parse_target(server.target)
    with client_of(server.target) as client:
        open_range(client, register(client, Dataset.range(640)))
    assert "train" in printed("jobs", "list", address)
    status = json.loads(printed("status", address, "--json"))
    planned = status["jobs"][0]["iterations"][0]["windows"]["planned"]
    assert 64 <= planned < 96
    assert f"0/{planned} windows" in printed("status", address)
    assert "is read by train" in printed("datasets", "delete", address, "1000")
    assert printed("jobs", "delete", address, "train") == "deleted job train\n"
    assert printed("jobs", address, "list") == "no jobs\n"
    assert printed("datasets", address, "delete", "1000") == "deleted dataset 1000\n"
    assert printed("datasets", "list", address) == "no datasets\n"


def test_worker_waiting_for_its_dispatcher_ends_at_the_first_signal() -> None:
    arguments = ["worker", "--dispatcher", f"127.0.0.1:{free_port()}"]
    for more in ([], ["--processes", "2"]):
        process = subprocess.Popen(
            [sys.executable, "-m", "dataservice", *arguments, *more],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        if not more:
            # The worker says so once it has waited for a while.
            assert "waiting for the dispatcher" in process.stderr.readline()
        else:
            parent = psutil.Process(process.pid)
            wait_until(lambda parent=parent: len(parent.children()) == 2, "two processes")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=READY_S)
        assert process.returncode in (0, -signal.SIGTERM), errors
        assert "Traceback" not in errors


def registered(address: str) -> list[dict[str, Any]]:
    workers: list[dict[str, Any]] = json.loads(printed("status", address, "--json"))["workers"]
    return workers


def test_one_command_runs_several_workers_and_replaces_a_killed_one(
    server: DispatchServer,
) -> None:
    address = parse_target(server.target)
    arguments = ["worker", "--dispatcher", address, "--processes", "2", "--ready-json"]
    with spawn_module("dataservice", arguments) as child:
        addresses = child.wait_ready(READY_S)["addresses"]
        workers = {worker["pid"]: worker["address"] for worker in registered(address)}
        assert sorted(workers.values()) == sorted(addresses)
        assert len(set(addresses)) == 2
        dataset = Dataset.range(1_000).batch(10).distribute(ShardingPolicy.OFF, server.target)
        assert sum(batch.num_rows for batch in dataset) == 2_000
        victim = next(iter(workers))
        os.kill(victim, signal.SIGKILL)
        wait_until(
            lambda: len([w for w in registered(address) if w["pid"] not in workers]) == 1,
            "another worker",
            READY_S,
        )
        pids = [worker["pid"] for worker in registered(address) if worker["pid"] != victim]
        assert child.terminate(READY_S) == 0
    wait_until(lambda: not any(map(psutil.pid_exists, pids)), "the end of all processes")


def test_version_option_prints_the_version() -> None:
    assert command("--version").stdout.startswith("dataservice")
