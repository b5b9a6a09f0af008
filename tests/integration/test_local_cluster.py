"""A local cluster leaves nothing behind, however the program that made it ends."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

import pstrain as ps
from pstrain.launch import local
from tests.programs import start_program
from tests.waiting import is_running, wait_until

DEADLINE_S = 60.0

PROGRAM = """
import json, sys
import numpy as np
import dataservice as ds
import pstrain as ps

with ps.LocalCluster(workers=1, ps=1, data_workers=1) as cluster:
    strategy = ps.ParameterServerStrategy(cluster.resolver)
    with strategy.scope():
        schema = ps.FeatureSchema(dense=["x"], categorical={"c": ps.Category(8)}, label="label")
        model = ps.models.WideDeep(schema, dim=2, hidden=(4,))
        model.compile(ps.optimizers.SGD(0.1))
    rows = {"x": np.ones(500, np.float32), "c": np.arange(500) % 8, "label": np.arange(500) % 2}
    data = ds.Dataset.from_numpy(rows).repeat().batch(50)
    remote = data.distribute(ds.ShardingPolicy.DYNAMIC, cluster.service)

    class Tell(ps.callbacks.Callback):
        def on_train_batch_end(self, steps, logs):
            if steps == 40:
                print(json.dumps(cluster.status()), flush=True)

    model.fit(remote, steps_per_epoch=1_000_000, callbacks=[Tell()], verbose=0)
"""


def is_free(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError:
            return False
    return True


def shared_memory() -> set[str]:
    folder = pathlib.Path("/dev/shm")
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def is_mapped(name: str) -> bool:
    """True if a live process uses the segment, which is then none that our programs left."""
    for maps in pathlib.Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            if f"/dev/shm/{name}" in maps.read_text():
                return True
    return False


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long), signal.SIGKILL]
)
def test_interrupted_training_leaves_no_process_port_or_memory(number: signal.Signals) -> None:
    before = shared_memory()
    program = start_program(PROGRAM)
    try:
        assert program.stdout is not None
        tasks = json.loads(program.stdout.readline())
        assert {task["role"] for task in tasks} == {"dispatcher", "data_worker", "ps", "worker"}
        assert all(task["alive"] for task in tasks)
        program.send_signal(number)
        program.communicate(timeout=DEADLINE_S)
    finally:
        program.kill()
    wait_until(lambda: not any(is_running(task["pid"]) for task in tasks), "the processes to end")
    wait_until(lambda: all(is_free(task["address"]) for task in tasks), "the ports to be free")
    wait_until(
        lambda: all(is_mapped(name) for name in shared_memory() - before), "its shared memory to go"
    )


def test_killed_task_restarts_on_its_address_and_close_ends_all() -> None:
    with ps.LocalCluster(workers=1, ps=1, data_workers=1) as cluster:
        before = {task["role"]: task for task in cluster.status()}
        resolver = cluster.resolver
        for role in ("worker", "ps", "data_worker", "dispatcher"):
            cluster.kill(role)
            assert not is_running(before[role]["pid"])
            cluster.restart(role)
        after = {task["role"]: task for task in cluster.status()}
        assert all(after[role]["address"] == before[role]["address"] for role in before)
        assert all(after[role]["pid"] != before[role]["pid"] for role in before)
        pids = [task["pid"] for task in after.values()]
        assert cluster.resolver is resolver
        assert ps.ParameterServerStrategy(resolver).cluster_resolver is cluster.resolver
        sent = pickle.loads(pickle.dumps(cluster))
        assert (sent.service, sent.resolver.cluster_spec()) == (
            cluster.service,
            cluster.cluster_spec,
        )
        log_dir = cluster.log_dir
        assert os.path.isdir(log_dir)
    cluster.close()
    uses = (lambda: cluster.service, lambda: cluster.resolver, lambda: cluster.kill("worker"))
    for use in uses:
        with pytest.raises(ps.errors.FailedPreconditionError, match="LocalCluster is closed"):
            use()
    with pytest.raises(TypeError, match="closed has no addresses"):
        pickle.dumps(cluster)
    assert not any(is_running(pid) for pid in pids)
    assert not os.path.exists(log_dir)


def test_use_of_a_closed_cluster_fails_at_once() -> None:
    data = {"x": np.zeros(8, np.float32), "label": np.zeros(8, np.int64)}
    with ps.LocalCluster(workers=1, ps=1, data_workers=0) as cluster:
        resolver = cluster.resolver
        strategy = ps.ParameterServerStrategy(resolver)
        with strategy.scope():
            model = ps.models.LogisticRegression(ps.FeatureSchema(dense=["x"]))
            model.compile("sgd")
    uses: tuple[Callable[[], object], ...] = (
        lambda: model.fit(data, verbose=0),
        lambda: ps.ParameterServerStrategy(resolver),
    )
    for use in uses:
        with pytest.raises(ps.errors.FailedPreconditionError, match="make another one, and a"):
            use()


def test_missing_task_or_service_is_an_error_naming_it() -> None:
    with ps.LocalCluster(workers=1, ps=1, data_workers=0) as cluster:
        with pytest.raises(KeyError, match="no ps:3"):
            cluster.kill("ps", 3)
        with pytest.raises(KeyError, match="data_workers=0"):
            _ = cluster.service


def test_server_command_names_a_port_in_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for job in ("worker", "ps"):
            done = subprocess.run(
                [sys.executable, "-m", "pstrain", "server", "--job", job, "--port", str(port)],
                capture_output=True, text=True, timeout=DEADLINE_S, check=False,
            )  # fmt: skip
            assert done.returncode != 0
            assert str(port) in done.stderr
            assert "Traceback" not in done.stderr


# A server that never finishes its start and swallows Ctrl-C, as a callback from C does.
SWALLOWING = """
import threading, time
from pstrain.__main__ import main
from pstrain.server import Server

def start(self):
    print("starting", flush=True)
    while True:
        try:
            time.sleep(60.0)
        except KeyboardInterrupt:
            pass

Server.start = start
main(["server", "--job", "ps", "--port", "0"])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_a_server_that_is_still_starting(number: signal.Signals) -> None:
    process = start_program(SWALLOWING)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "starting\n"
        process.send_signal(number)
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        _, errors = process.communicate()
    assert not errors


def test_cluster_is_local_in_a_program_with_tf_config(monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = {"worker": ["127.0.0.2:1"], "ps": ["127.0.0.2:2"]}
    task = {"type": "worker", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": elsewhere, "task": task}))
    with ps.LocalCluster(workers=1, ps=1) as cluster:
        spec = cluster.resolver.cluster_spec()
        addresses = [spec.task_address(job, 0) for job in ("worker", "ps")]
        assert [address.rpartition(":")[0] for address in addresses] == ["127.0.0.1"] * 2
        coordinator = ps.ClusterCoordinator(ps.ParameterServerStrategy(cluster.resolver))
        assert coordinator.schedule(lambda: json.loads(os.environ["TF_CONFIG"])).fetch() == {}


def test_servers_of_a_program_without_tf_config_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert "TF_CONFIG" not in local._environment()
