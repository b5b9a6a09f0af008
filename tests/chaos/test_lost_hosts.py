"""Hosts that vanish from the network without a word: what ran there does not answer any more.

Nothing tells the others, not even the end of a connection. A host that is back in time goes on with
all that it held; one that stays away is lost, and nobody waits for it for ever.
"""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import dataservice as ds
import pstrain as ps
from pstrain.config import ParameterConfig
from tests.chaos.hosts import Hosts, names_of, needs_hosts, processes_in
from tests.waiting import wait_until

pytestmark = needs_hosts

_ROWS, _BATCH = 60_000, 200
_CLIENT_TIMEOUT_S = 24.0
_STEPS = 600
_PS_PORT, _TRAINER_PORT = 7101, 7102


def _slow(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    time.sleep(0.02)
    return columns


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tuple[Hosts, ds.DistributedDataset]]:
    """Yields a dispatcher on host 0, workers on hosts 1 and 2, and what is to be read there."""
    with Hosts(3) as hosts:
        journal = ("--work-dir", tmp_path, "--fault-tolerant")
        timeout = ("--client-timeout-ms", int(1_000 * _CLIENT_TIMEOUT_S))
        dispatcher = hosts.start(0, "dataservice", "dispatcher", *journal, *timeout)["address"]
        for host in (1, 2):
            hosts.start(host, "dataservice", "worker", "--dispatcher", dispatcher)
        data = ds.Dataset.range(_ROWS).map(_slow).batch(_BATCH)
        yield hosts, data.distribute(ds.ShardingPolicy.DYNAMIC, dispatcher)


def _read(data: ds.DistributedDataset, after_some: Callable[[], None]) -> list[int]:
    """Returns the rows as they come; calls ``after_some`` when some have come."""
    rows: list[int] = []
    for number, batch in enumerate(data):
        rows += batch.column(0).to_pylist()
        if number == 40:
            after_some()
    return rows


@pytest.mark.long
def test_every_row_is_read_once_although_a_data_workers_host_is_lost(
    service: tuple[Hosts, ds.DistributedDataset],
) -> None:
    hosts, data = service
    assert sorted(_read(data, lambda: hosts.cut_off(1))) == list(range(_ROWS))


@pytest.mark.long
@pytest.mark.parametrize("away_s", [8.0, 1.25 * _CLIENT_TIMEOUT_S])
def test_every_row_is_read_once_although_the_dispatchers_host_is_away(
    service: tuple[Hosts, ds.DistributedDataset], away_s: float
) -> None:
    hosts, data = service

    def cut_off_for_a_while() -> None:
        hosts.cut_off(0)
        threading.Timer(away_s, hosts.connect, [0]).start()

    assert sorted(_read(data, cut_off_for_a_while)) == list(range(_ROWS))


@pytest.fixture
def training() -> Iterator[tuple[Hosts, ps.SimpleClusterResolver]]:
    """Yields a parameter server on host 0 and trainers on hosts 1 and 2."""
    with Hosts(3) as hosts:
        trainers = [f"{hosts.address(host)}:{_TRAINER_PORT}" for host in (1, 2)]
        spec = {"worker": trainers, "ps": [f"{hosts.address(0)}:{_PS_PORT}"]}
        hosts.start(0, "pstrain", "server", "--job", "ps", "--port", _PS_PORT)
        for index, host in enumerate((1, 2)):
            place = ("--index", index, "--port", _TRAINER_PORT)
            hosts.start(host, "pstrain", "server", "--job", "worker", *place)
        yield hosts, ps.SimpleClusterResolver(ps.ClusterSpec(spec))


class _Counting:
    """A program whose steps add one to a variable on the parameter server.

    With a folder for checkpoints, in which it saves one, it goes back there if the server is lost.
    """

    def __init__(
        self,
        resolver: ps.SimpleClusterResolver,
        request_timeout_s: float,
        folder: Path | None = None,
    ) -> None:
        config = ParameterConfig(request_timeout_s=request_timeout_s)
        strategy = ps.ParameterServerStrategy(resolver, config=config)
        with strategy.scope():
            count = self.count = ps.Variable(np.zeros(1, np.float32))
        manager = None
        if folder is not None:
            manager = ps.CheckpointManager(ps.Checkpoint(count=count), folder, max_to_keep=1)
        self.coordinator = ps.ClusterCoordinator(strategy, checkpoint=manager)
        if manager is not None:
            manager.save()

        def step() -> None:
            time.sleep(0.01)
            count.assign_add(np.ones(1, np.float32))

        self._step = step

    def schedule(self) -> None:
        """Schedules all steps; returns when some have ended."""
        for _ in range(_STEPS):
            self.coordinator.schedule(self._step)
        wait_until(lambda: self.coordinator.stats()["finished"] > _STEPS / 10, "the first steps")

    def check_each_step_counted_once(self) -> None:
        assert self.count.numpy().tolist() == [_STEPS]


def test_each_step_counts_once_although_a_trainers_host_is_lost(
    training: tuple[Hosts, ps.SimpleClusterResolver],
) -> None:
    hosts, resolver = training
    program = _Counting(resolver, request_timeout_s=30.0)
    program.schedule()
    hosts.cut_off(1)
    program.coordinator.join(timeout=90.0)
    program.check_each_step_counted_once()
    assert program.coordinator.stats()["losses"] == 1
    program.coordinator.close()


def test_a_parameter_server_whose_host_is_back_in_time_goes_on_as_it_was(
    training: tuple[Hosts, ps.SimpleClusterResolver], tmp_path: Path
) -> None:
    hosts, resolver = training
    program = _Counting(resolver, 60.0, tmp_path)
    program.schedule()
    hosts.cut_off(0)
    wait_until(lambda: _cut_off_error(hosts.address(0)) == errno.EHOSTUNREACH, "the network's word")
    # Somebody looks every second whether servers are lost.
    time.sleep(3.0)
    hosts.connect(0)
    program.coordinator.join(timeout=90.0)
    program.check_each_step_counted_once()
    assert program.coordinator.stats()["restores"] == 0
    program.coordinator.close()


@pytest.mark.long
def test_a_parameter_server_whose_host_stays_away_is_lost_after_the_time_out(
    training: tuple[Hosts, ps.SimpleClusterResolver],
) -> None:
    hosts, resolver = training
    program = _Counting(resolver, request_timeout_s=5.0)
    program.schedule()
    hosts.cut_off(0)
    with pytest.raises(ps.errors.UnavailableError, match=r"within 5 s.*Start it again"):
        program.coordinator.join(timeout=90.0)
    program.coordinator.close()


_LEFT_OVER = """
import time
from tests.chaos.hosts import Hosts
Hosts(1).__enter__().start(0, "pstrain", "server", "--job", "ps", "--port", 7101)
print("ready", flush=True)
time.sleep(1_000)
"""


def test_hosts_of_a_killed_program_are_removed_by_the_next_one() -> None:
    program = subprocess.Popen([sys.executable, "-c", _LEFT_OVER], stdout=subprocess.PIPE)
    assert program.stdout is not None
    assert program.stdout.readline() == b"ready\n"
    (space,) = (name for name in names_of(program.pid) if name.startswith("ns"))
    assert processes_in(space)
    program.kill()
    program.communicate()
    wait_until(lambda: not processes_in(space), "the end of its server")
    with Hosts(1):
        assert not names_of(program.pid)
        assert len(names_of(os.getpid())) == 3
    assert not names_of(os.getpid())


def _cut_off_error(address: str) -> int | None:
    """Returns the error with which the network refuses to reach a host."""
    with socket.socket() as probe:
        probe.settimeout(5.0)
        return probe.connect_ex((address, _PS_PORT))
