"""Each closure changes each server exactly once, although trainers and replies are lost.

Every closure adds 1 to two cells of its own, one on each server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pstrain as ps
from pstrain.errors import DataLossError, ServerLostError
from pstrain.failpoints import KILL_AT_ENV
from tests.chaos.counted_rows import DEADLINE_S
from tests.chaos.proxy import FaultProxy
from tests.waiting import wait_until

CLOSURES = 120


class CountedClosures:
    """A table sharded over two servers; each closure adds 1 to a cell of its own on each."""

    def __init__(self, resolver: Any, closures: int = CLOSURES) -> None:
        partitioner = ps.partitioners.FixedShardsPartitioner(2)
        strategy = ps.ParameterServerStrategy(resolver, variable_partitioner=partitioner)
        self.closures = closures
        self.coordinator = ps.ClusterCoordinator(strategy)
        with strategy.scope():
            self.table = ps.Variable(np.zeros((2 * closures, 1), np.int64), name="cells")

    def schedule(self, numbers: range, pause_s: float = 0.01) -> list[ps.RemoteValue]:
        table, closures = self.table, self.closures

        def count(number: int) -> int:
            time.sleep(pause_s)
            cells = np.array([number, closures + number])
            table.scatter_add(cells, np.ones((2, 1), np.int64))
            return ps.get_current_worker_index()

        return [self.coordinator.schedule(count, args=(number,)) for number in numbers]

    def check(self) -> None:
        self.coordinator.join(DEADLINE_S)
        np.testing.assert_array_equal(self.table.numpy(), np.ones((2 * self.closures, 1)))

    def finished(self) -> int:
        return self.coordinator.stats()["finished"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[ps.LocalCluster]:
    with ps.LocalCluster(workers=3, ps=2, data_workers=0) as cluster:
        yield cluster


@pytest.mark.long
def test_closures_count_once_although_two_trainers_are_killed_and_one_stays_away(
    cluster: ps.LocalCluster,
) -> None:
    program = CountedClosures(cluster.resolver)
    program.schedule(range(CLOSURES))
    wait_until(lambda: program.finished() > 20, "some closures")
    for index in (0, 1):
        cluster.kill("worker", index)
    cluster.restart("worker", 1)
    program.check()
    assert program.coordinator.stats()["losses"] == 2
    wait_until(lambda: program.coordinator.live_trainers() == {1, 2}, "the one that comes back")
    cluster.restart("worker", 0)
    program.coordinator.close()


@pytest.mark.long
def test_closures_count_once_although_trainers_join_late_and_die_idle(
    cluster: ps.LocalCluster,
) -> None:
    for index in (1, 2):
        cluster.kill("worker", index)
    program = CountedClosures(cluster.resolver)
    program.schedule(range(20))
    program.coordinator.join(DEADLINE_S)
    cluster.restart("worker", 2)
    wait_until(lambda: program.coordinator.live_trainers() == {0, 2}, "the one that joins")
    places = {v.fetch(DEADLINE_S) for v in program.schedule(range(20, 80))}
    assert places == {0, 2}
    cluster.kill("worker", 0)
    wait_until(lambda: program.coordinator.live_trainers() == {2}, "the loss to be seen")
    program.schedule(range(80, CLOSURES))
    program.check()
    for index in (0, 1):
        cluster.restart("worker", index)
    program.coordinator.close()


def resolver_behind(proxy: FaultProxy, cluster: ps.LocalCluster) -> tuple[Any, list[Any]]:
    """Returns a resolver that reaches the parameter servers through links, and these links."""
    spec = cluster.cluster_spec.as_dict()
    links = [proxy.link(int(address.rpartition(":")[2])) for address in spec["ps"]]
    spec = {**spec, "ps": [link.address for link in links]}
    return ps.SimpleClusterResolver(ps.ClusterSpec(spec)), links


def test_changes_whose_replies_are_lost_count_once(cluster: ps.LocalCluster) -> None:
    """Connections break repeatedly, some twice in a row, before the client knows what arrived."""
    with FaultProxy() as proxy:
        resolver, links = resolver_behind(proxy, cluster)
        program = CountedClosures(resolver)
        program.schedule(range(CLOSURES), pause_s=0.005)
        breaks = finished = 0

        def goes_on() -> bool:
            return program.finished() > finished or program.coordinator.done()

        while not program.coordinator.done():
            for link in links:
                link.cut_after(200 + 300 * (breaks % 7))
            breaks += 1
            assert breaks < 1_000
            time.sleep(0.05)
            # More breaks in a row than retries would count as a lost server, as on a slow machine.
            if breaks % 2 == 0:
                wait_until(goes_on, "a closure between breaks")
                finished = program.finished()
        for link in links:
            link.heal()
        program.check()
        assert sum(link.counters.resets for link in links) > 5
        program.coordinator.close()


def test_server_unreachable_for_two_attempts_is_not_taken_for_lost(
    cluster: ps.LocalCluster,
) -> None:
    with FaultProxy() as proxy:
        resolver, links = resolver_behind(proxy, cluster)
        program = CountedClosures(resolver)
        link = links[1]
        refused = link.counters.refused
        link.refuse()

        def heal() -> None:
            wait_until(lambda: link.counters.refused >= refused + 2, "two tries to connect")
            link.heal()

        healer = threading.Thread(target=heal)
        healer.start()
        try:
            assert not program.table.numpy().any()
        finally:
            healer.join(DEADLINE_S)
        link.refuse()
        with pytest.raises(ServerLostError):
            program.table.numpy()
        link.heal()
        program.coordinator.close()


def test_large_result_lost_with_its_trainer_is_data_loss_yet_its_changes_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(KILL_AT_ENV, "decided:1")
    with ps.LocalCluster(workers=1, ps=2, data_workers=0) as small:
        program = CountedClosures(small.resolver, closures=1)
        table = program.table

        def count_at_length() -> Any:
            table.scatter_add(np.arange(2), np.ones((2, 1), np.int64))
            return np.random.default_rng(0).bytes(1_100_000)

        value = program.coordinator.schedule(count_at_length)
        with pytest.raises(DataLossError, match="1 MiB"):
            value.fetch(DEADLINE_S)
        with pytest.raises(DataLossError):
            program.coordinator.join(DEADLINE_S)
        program.check()
        program.coordinator.close()
