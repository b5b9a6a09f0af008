"""Programs that leave servers, readers, coordinators and saves running end silently."""

from __future__ import annotations

import pathlib

import pytest

import pstrain as ps
from tests.ports import free_port
from tests.programs import run_program

READING = """
    import dataservice as ds

    dispatcher = ds.DispatchServer()
    worker = ds.WorkerServer(ds.WorkerConfig(dispatcher_address=dispatcher.target))
    dataset = ds.Dataset.range(10**7).batch(100)
    dataset = dataset.apply(ds.distribute(ds.ShardingPolicy.DYNAMIC, dispatcher.target))
    iterator = iter(dataset)
    print(next(iterator).num_rows)
"""
ROUNDS = """
    import dataservice as ds

    dispatcher = ds.DispatchServer()
    worker = ds.WorkerServer(ds.WorkerConfig(dispatcher_address=dispatcher.target))
    dataset = ds.Dataset.range(10**4).repeat().batch(100)
    iterator = iter(dataset.distribute(
        ds.ShardingPolicy.OFF, dispatcher.target, job_name="x", consumer_index=0, num_consumers=1
    ))
    print(next(iterator).num_rows)
"""
FORKING = (
    READING.replace("dispatcher.target)", "dispatcher.target, data_transfer_protocol={0!r})")
    + """
    import gc, os, sys

    def end_of(child):
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    child = os.fork()
    if not child:  # leaves all of it alone
        sys.exit(3)
    assert end_of(child) == 3
    child = os.fork()
    if not child:
        try:
            next(iterator)
        except ds.errors.FailedPreconditionError as error:
            assert f"was made in process {{os.getppid()}}, from which this one" in str(error)
            iterator.close()
            worker.stop()
            sys.exit(4)
        sys.exit(1)
    assert end_of(child) == 4
    child = os.fork()
    if not child:
        del iterator, dataset, worker, dispatcher
        gc.collect()
        sys.exit(5)
    assert end_of(child) == 5
    assert next(iterator).num_rows == 100
"""
)
TRAINING = """
    import gc
    import numpy as np
    import pstrain as ps

    spec = ps.ClusterSpec({{"worker": ["localhost:{0}"], "ps": ["localhost:{1}"]}})
    for job in spec.jobs:
        ps.Server(spec, job_name=job, task_index=0)  # serves on, although nobody keeps it
    gc.collect()
    strategy = ps.ParameterServerStrategy(ps.SimpleClusterResolver(spec))
    coordinator = ps.ClusterCoordinator(strategy)
    with strategy.scope():
        total = ps.Variable(np.zeros(100, np.float32))
    def step():
        total.assign_add(np.ones(100, np.float32))
    for _ in range(20):
        coordinator.schedule(step)
    if {2}:
        coordinator.join()
    print(100)
"""

SAVING = """
    import sys
    import pstrain as ps

    table = ps.Variable(ps.initializers.normal()((1_500_000, 16)))  # more pieces than wait at once
    manager = ps.CheckpointManager(ps.Checkpoint(table=table), sys.argv[1], asynchronous=True)
    print(manager.save())
"""


@pytest.mark.parametrize(
    "program", [READING, pytest.param(ROUNDS, marks=pytest.mark.long)], ids=["dynamic", "rounds"]
)
def test_program_with_open_iterator_and_own_service_ends(program: str) -> None:
    done = run_program(program)
    # A busy machine may be told what is waited for, but nothing has failed.
    assert (done.returncode, done.stdout) == (0, "100\n"), done.stderr
    assert "Traceback" not in done.stderr


def test_program_that_ends_right_after_asynchronous_save_has_saved(tmp_path: pathlib.Path) -> None:
    done = run_program(SAVING, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "was not saved" not in done.stderr
    assert done.stdout.strip() == ps.latest_checkpoint(tmp_path)


@pytest.mark.parametrize("joins", [True, pytest.param(False, marks=pytest.mark.long)])
def test_program_with_its_own_training_cluster_ends(joins: bool) -> None:
    done = run_program(TRAINING.format(free_port(), free_port(), joins))
    # A busy machine may be told what is waited for, but nothing has failed.
    assert (done.returncode, done.stdout) == (0, "100\n"), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("protocol", [None, pytest.param("flight", marks=pytest.mark.long)])
def test_forked_children_do_not_disturb_reader_and_servers_of_parent(protocol: str | None) -> None:
    done = run_program(FORKING.format(protocol))
    assert (done.returncode, done.stdout) == (0, "100\n"), done.stderr
