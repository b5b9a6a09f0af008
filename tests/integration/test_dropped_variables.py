"""Variables that a program drops leave the parameter servers; what closures still need does not."""

from __future__ import annotations

import gc
import os
import pathlib
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pstrain as ps
from dataservice import Dataset
from dataservice.runtime import retry
from pstrain.errors import NotFoundError
from tests.waiting import wait_until

DEADLINE_S = 90.0
ROWS = 1_000_000
ROW_BYTES = 64


@pytest.fixture(scope="module")
def cluster() -> Iterator[ps.LocalCluster]:
    """Runs a cluster whose lost servers come back."""
    with ps.LocalCluster(workers=1, ps=2, data_workers=0, supervise=True) as cluster:
        yield cluster


@pytest.fixture
def strategy(cluster: ps.LocalCluster) -> ps.ParameterServerStrategy:
    return ps.ParameterServerStrategy(
        cluster.resolver, variable_partitioner=ps.partitioners.FixedShardsPartitioner(2)
    )


@pytest.fixture
def coordinator(strategy: ps.ParameterServerStrategy) -> Iterator[ps.ClusterCoordinator]:
    coordinator = ps.ClusterCoordinator(strategy)
    yield coordinator
    coordinator.close()


def is_on_servers(strategy: ps.ParameterServerStrategy, spec: Any) -> bool:
    try:
        strategy.parameters.read(spec, 0, 1)
    except NotFoundError:
        return False
    return True


def held_bytes(strategy: ps.ParameterServerStrategy) -> int:
    return sum(int(strategy.parameters.status(server)["size_bytes"]) for server in range(2))


def test_models_made_in_turn_take_the_memory_of_one(strategy: ps.ParameterServerStrategy) -> None:
    table: Any = None
    for _ in range(4):
        table = None
        with strategy.scope():
            table = ps.Variable(ps.initializers.zeros()((ROWS, ROW_BYTES // 4)), name="table")
        assert held_bytes(strategy) == ROWS * ROW_BYTES
    assert [variable.name for variable in strategy.variables] == ["table"]
    assert strategy.variables[0] is table


def test_a_waiting_closure_keeps_what_only_it_refers_to(
    strategy: ps.ParameterServerStrategy, coordinator: ps.ClusterCoordinator
) -> None:
    with strategy.scope():
        variable, argument = ps.Variable(1.0), ps.Variable(2.0)
    specs = [variable.spec, argument.spec]
    values = [
        coordinator.schedule(
            lambda added, v=variable: float(v.numpy() + added.numpy()), (argument,)
        )
        for _ in range(20)
    ]
    del variable, argument
    with strategy.scope():
        ps.Variable(0.0)  # what has ended is dropped before another variable is made
    coordinator.join(DEADLINE_S)
    assert [value.fetch() for value in values] == [3.0] * 20
    coordinator.join(DEADLINE_S)
    assert [is_on_servers(strategy, spec) for spec in specs] == [False, False]


def test_a_waiting_closure_keeps_what_the_program_takes_out_of_its_arguments(
    strategy: ps.ParameterServerStrategy, coordinator: ps.ClusterCoordinator
) -> None:
    with strategy.scope():
        box = [ps.Variable(1.0)]
    values = [coordinator.schedule(lambda held: float(held[0].numpy()), (box,)) for _ in range(20)]
    box.clear()
    with strategy.scope():
        ps.Variable(0.0)
    coordinator.join(DEADLINE_S)
    assert [value.fetch() for value in values] == [1.0] * 20


def test_an_iterator_keeps_the_variables_that_its_dataset_function_reads(
    strategy: ps.ParameterServerStrategy, coordinator: ps.ClusterCoordinator
) -> None:
    with strategy.scope():
        table = ps.Variable(np.arange(3.0))

    def dataset() -> Dataset:
        return Dataset.from_numpy({"x": table.numpy()}).batch(3)

    spec = table.spec
    iterator = iter(coordinator.create_per_worker_dataset(dataset))
    with strategy.scope():
        table = ps.Variable(np.zeros(3))
        ps.Variable(0.0)
    taken = coordinator.schedule(lambda rows: next(rows)["x"].to_pylist(), (iterator,))
    assert taken.fetch() == [0.0, 1.0, 2.0]
    del iterator
    coordinator.join(DEADLINE_S)
    assert not is_on_servers(strategy, spec)


def test_a_waiting_closure_keeps_the_iterator_that_its_function_captured(
    coordinator: ps.ClusterCoordinator,
) -> None:
    data = coordinator.create_per_worker_dataset(Dataset.range(20).batch(1))

    def epoch() -> list[ps.RemoteValue]:
        rows = iter(data)
        return [coordinator.schedule(lambda: next(rows)["id"].to_pylist()) for _ in range(20)]

    assert sorted(value.fetch()[0] for value in epoch()) == list(range(20))


def test_a_function_keeps_the_variables_with_which_it_was_sent(
    strategy: ps.ParameterServerStrategy, coordinator: ps.ClusterCoordinator
) -> None:
    with strategy.scope():
        counter = ps.Variable(0)
    first = counter

    def step() -> None:
        counter.assign_add(1)

    coordinator.schedule(step)
    with strategy.scope():
        counter = ps.Variable(0)  # the function was sent with the first one
    spec = first.spec
    del first
    coordinator.schedule(step)
    coordinator.join(DEADLINE_S)
    assert (strategy.parameters.read(spec), counter.numpy()) == (2, 0)
    del step
    gc.collect()
    coordinator.join(DEADLINE_S)
    assert not is_on_servers(strategy, spec)


def test_a_dropped_variable_is_there_for_closures_that_run_again(
    cluster: ps.LocalCluster,
    strategy: ps.ParameterServerStrategy,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Every wait for the lost server is logged, and pytest keeps what is logged, with the errors.
    monkeypatch.setattr(retry, "FIRST_NOTICE_S", 0.0)
    with strategy.scope():
        kept, dropped = ps.Variable(np.zeros(2)), ps.Variable(np.zeros(2))
    manager = ps.CheckpointManager(ps.Checkpoint(kept=kept), str(tmp_path), max_to_keep=2)
    coordinator = ps.ClusterCoordinator(strategy, checkpoint=manager)
    try:
        manager.save()
        for _ in range(3):
            coordinator.schedule(_add_to_both, (kept, dropped))
        coordinator.join(DEADLINE_S)
        spec = dropped.spec
        del dropped
        coordinator.join(DEADLINE_S)
        assert is_on_servers(strategy, spec)
        cluster.kill("ps", 0)
        wait_until(lambda: coordinator.stats()["restores"] == 1, "a restore", DEADLINE_S)
        coordinator.schedule(_add_to_both, (kept, kept))
        coordinator.join(DEADLINE_S)
        assert kept.numpy().tolist() == [5.0, 5.0]
        manager.save()
        gc.collect()  # errors on the way have tracebacks
        coordinator.join(DEADLINE_S)
        assert not is_on_servers(strategy, spec)
    finally:
        coordinator.close()


def _add_to_both(one: Any, other: Any) -> None:
    one.assign_add([1.0, 1.0])
    other.assign_add([1.0, 1.0])


def test_variables_end_in_any_thread_and_in_the_middle_of_collections(
    strategy: ps.ParameterServerStrategy,
) -> None:
    def make() -> None:
        for _ in range(20):
            with strategy.scope():
                pair: list[Any] = [ps.Variable(1.0)]
            pair.append(pair)  # only a collection of garbage ends it

    threads = [threading.Thread(target=make) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    gc.collect()
    with strategy.scope():
        last = ps.Variable(1.0)
    assert strategy.variables == (last,)
    assert held_bytes(strategy) == 4


def test_join_does_not_wait_for_a_frozen_server_to_drop_a_variable(
    strategy: ps.ParameterServerStrategy, coordinator: ps.ClusterCoordinator
) -> None:
    with strategy.scope():
        variable: Any = ps.Variable([1.0, 2.0])
    spec = variable.spec
    coordinator.join(DEADLINE_S)
    pid = int(strategy.parameters.status(0)["pid"])
    os.kill(pid, signal.SIGSTOP)
    try:
        del variable
        began_s = time.monotonic()
        coordinator.join(0.5)
        took_s = time.monotonic() - began_s
    finally:
        os.kill(pid, signal.SIGCONT)
    assert took_s < strategy.parameters.config.request_timeout_s / 3
    coordinator.join(DEADLINE_S)
    assert not is_on_servers(strategy, spec)
