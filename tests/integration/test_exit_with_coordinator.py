"""Servers that end when their coordinator has left, however it left."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

import pstrain as ps
from dataservice.runtime.process import ChildProcess, spawn_module

DEADLINE_S = 60.0
_EXIT = ("--exit-with-coordinator", "1.5")

COORDINATOR = """
import json, os, signal, sys
import pstrain as ps
resolver = ps.SimpleClusterResolver(ps.ClusterSpec(json.loads(sys.argv[1])), "", "chief", 0)
strategy = ps.ParameterServerStrategy(resolver)
coordinator = ps.ClusterCoordinator(strategy)
with strategy.scope():
    total = ps.Variable(0, name="total")
for _ in range(20):
    coordinator.schedule(total.assign_add, (1,))
coordinator.join(timeout=60)
assert int(total) == 20
if sys.argv[2] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


def server(job: str, index: int) -> ChildProcess:
    return spawn_module(
        "pstrain",
        ["server", "--job", job, "--index", str(index), "--port", "0", "--ready-json", *_EXIT],
    )


@pytest.mark.parametrize("end", ["finished", "killed"])
def test_servers_end_when_the_coordinator_has(end: str) -> None:
    servers = {job: server(job, 0) for job in ("worker", "ps")}
    try:
        spec = {job: [child.wait_ready(DEADLINE_S)["address"]] for job, child in servers.items()}
        done = subprocess.run(
            [sys.executable, "-c", COORDINATOR, json.dumps(spec), end],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == (0 if end == "finished" else -signal.SIGKILL), done.stderr
        for child in servers.values():
            assert child.wait(DEADLINE_S) == 0
    finally:
        for child in servers.values():
            child.terminate(1.0)


def test_a_server_in_this_process_returns_from_join() -> None:
    with ps.LocalCluster(workers=1, ps=1, data_workers=0) as cluster:
        own = ps.Server({"ps": ["127.0.0.1:0"]}, exit_with_coordinator=0.5)
        spec = {"worker": cluster.cluster_spec.as_dict()["worker"], "ps": [own.address]}
        strategy = ps.ParameterServerStrategy(
            ps.SimpleClusterResolver(ps.ClusterSpec(spec), task_type="chief", task_id=0)
        )
        with strategy.scope():
            assert float(ps.Variable(1.5)) == 1.5
        assert not own.has_stopped
        strategy.parameters.close()
        own.join()
        assert own.has_stopped
