"""Servers end once their coordinator has left, in whatever way."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator

import pstrain as ps
from dataservice.runtime.process.children import ChildProcess, spawn_module
from tests.programs import run_program

DEADLINE_S = 60.0

COORDINATOR = """
import json, os, signal, sys
import pstrain as ps
resolver = ps.SimpleClusterResolver(ps.ClusterSpec(json.loads(sys.argv[1])))
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
if sys.argv[2] == "raised":
    raise ValueError("the program failed")
sys.exit({"exited": 3, "finished": 0}[sys.argv[2]])
"""


@contextlib.contextmanager
def cluster(grace_s: float) -> Iterator[tuple[list[ChildProcess], str]]:
    """Runs a trainer and a parameter server; yields the processes and their cluster as JSON."""
    named = ["--port", "0", "--ready-json", "--exit-with-coordinator", str(grace_s)]
    servers = {
        job: spawn_module("pstrain", ["server", "--job", job, "--index", "0", *named])
        for job in ("worker", "ps")
    }
    try:
        spec = {job: [child.wait_ready(DEADLINE_S)["address"]] for job, child in servers.items()}
        yield list(servers.values()), json.dumps(spec)
    finally:
        for child in servers.values():
            child.terminate(1.0)


def coordinate(spec: str, end: str) -> None:
    done = run_program(COORDINATOR, spec, end)
    expected = {"finished": 0, "raised": 1, "exited": 3, "killed": -signal.SIGKILL}
    assert done.returncode == expected[end], done.stderr


def test_servers_end_a_grace_period_after_the_coordinator_is_killed() -> None:
    with cluster(1.5) as (servers, spec):
        coordinate(spec, "killed")
        for child in servers:
            assert child.wait(DEADLINE_S) == 0


def test_servers_outlive_failed_programs_and_end_with_a_finished_one() -> None:
    with cluster(3_600.0) as (servers, spec):
        for end in ("raised", "exited", "killed", "finished"):
            coordinate(spec, end)
        for child in servers:
            assert child.wait(DEADLINE_S) == 0


def test_join_of_in_process_server_returns_once_the_coordinator_left() -> None:
    own = ps.Server({"ps": ["127.0.0.1:0"]}, exit_with_coordinator=0.5)
    spec = ps.ClusterSpec({"worker": ["127.0.0.1:1"], "ps": [own.address]})
    resolver = ps.SimpleClusterResolver(spec)
    strategy = ps.ParameterServerStrategy(resolver)
    with strategy.scope():
        assert float(ps.Variable(1.5)) == 1.5
    assert not own.has_stopped
    strategy.parameters.close()
    own.join()
    assert own.has_stopped
