"""Closures on real trainers and parameter servers: their values, their errors, lost trainers."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import pathlib
import sys
import threading
import time
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pstrain as ps
from dataservice import Dataset
from pstrain.config import ParameterConfig
from pstrain.coordinator import client
from pstrain.errors import (
    CancelledError,
    ClosureInputError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    OutOfRangeError,
    RemoteError,
    ServerLostError,
    UnavailableError,
)
from tests.waiting import wait_until

DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def coordinator(cluster: ps.LocalCluster) -> Iterator[ps.ClusterCoordinator]:
    coordinator = ps.ClusterCoordinator(ps.ParameterServerStrategy(cluster.resolver))
    wait_until(lambda: coordinator.live_trainers() == {0, 1}, "both trainers")
    yield coordinator
    coordinator.close()


def test_scheduled_function_gives_its_value(coordinator: ps.ClusterCoordinator) -> None:
    value = coordinator.schedule(lambda a, b: {"sum": a + b}, args=(1,), kwargs={"b": 2})
    assert value.fetch(timeout=DEADLINE_S) == {"sum": 3}
    assert coordinator.fetch({"x": [value, 7]}) == {"x": [{"sum": 3}, 7]}


def test_forked_children_of_a_program_with_a_coordinator_end_by_themselves(
    coordinator: ps.ClusterCoordinator,
) -> None:
    assert coordinator.schedule(int).fetch(DEADLINE_S) == 0
    fork = multiprocessing.get_context("fork")
    children = [fork.Process(target=time.sleep, args=(0.1,)) for _ in range(20)]
    for child in children:
        child.start()
        child.join(DEADLINE_S)
    assert [child.exitcode for child in children] == [0] * 20
    assert coordinator.schedule(int).fetch(DEADLINE_S) == 0


def test_closures_run_on_all_trainers(coordinator: ps.ClusterCoordinator) -> None:
    def where() -> tuple[int, int]:
        time.sleep(0.01)
        return ps.get_current_worker_index(), os.getpid()

    places = {v.fetch(DEADLINE_S) for v in [coordinator.schedule(where) for _ in range(40)]}
    assert {index for index, _ in places} == {0, 1}
    assert os.getpid() not in {pid for _, pid in places}


def test_long_closures_are_spread_evenly_over_trainers(
    coordinator: ps.ClusterCoordinator, tmp_path: pathlib.Path
) -> None:
    end = tmp_path / "end"

    def where() -> int:
        (tmp_path / f"{os.getpid()}-{threading.get_ident()}").touch()
        while not end.exists():
            time.sleep(0.01)
        return ps.get_current_worker_index()

    values = [coordinator.schedule(where) for _ in range(8)]
    wait_until(lambda: len(os.listdir(tmp_path)) == 6, "three on each trainer")
    end.touch()
    assert sorted(value.fetch(DEADLINE_S) for value in values[:6]) == [0, 0, 0, 1, 1, 1]


def test_bound_closure_runs_on_its_trainer(coordinator: ps.ClusterCoordinator) -> None:
    def where() -> int:
        return ps.get_current_worker_index()

    for trainer in (0, 1):
        values = [coordinator.schedule(where, trainer=trainer) for _ in range(20)]
        assert {value.fetch(DEADLINE_S) for value in values} == {trainer}


def test_join_waits_for_all_closures_and_done_is_true(coordinator: ps.ClusterCoordinator) -> None:
    values = [coordinator.schedule(time.sleep, args=(0.05,)) for _ in range(8)]
    coordinator.join(timeout=DEADLINE_S)
    assert coordinator.done()
    assert all(value.is_ready() for value in values)


def wait_for(gate: str) -> None:
    """Blocks a closure until the test creates the file ``gate``."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not os.path.exists(gate):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"nobody opened {gate}")
        time.sleep(0.01)


def test_join_that_times_out_loses_no_closure(
    coordinator: ps.ClusterCoordinator, tmp_path: pathlib.Path
) -> None:
    gate = tmp_path / "gate"
    value = coordinator.schedule(lambda path: wait_for(path) or "late", args=(str(gate),))
    with pytest.raises(DeadlineExceededError, match="1 run"):
        coordinator.join(timeout=0.05)
    with pytest.raises(TimeoutError):
        value.fetch(timeout=0.01)
    gate.touch()
    assert value.fetch(DEADLINE_S) == "late"


def test_waiting_for_closures_inside_a_barrier_is_refused(
    coordinator: ps.ClusterCoordinator,
) -> None:
    with coordinator.barrier():
        value = coordinator.schedule(lambda: 3)
        for wait in (coordinator.join, value.fetch):
            with pytest.raises(FailedPreconditionError, match=r"no closure runs inside of .*barr"):
                wait(DEADLINE_S)
        assert not value.is_ready()
    assert value.fetch(DEADLINE_S) == 3
    with coordinator.barrier():
        coordinator.join(DEADLINE_S)
        assert value.fetch(DEADLINE_S) == 3


def test_closure_error_is_raised_once_with_the_trainers_traceback(
    coordinator: ps.ClusterCoordinator,
) -> None:
    def fail_here() -> None:
        raise ZeroDivisionError("by my own fault")

    value = coordinator.schedule(fail_here)
    with pytest.raises(ZeroDivisionError, match="by my own fault") as caught:
        coordinator.join(timeout=DEADLINE_S)
    assert "fail_here" in "".join(caught.value.__notes__)
    with pytest.raises(ZeroDivisionError):
        value.fetch(DEADLINE_S)
    coordinator.join(timeout=DEADLINE_S)
    assert coordinator.schedule(lambda: 5).fetch(DEADLINE_S) == 5


def test_closure_error_cancels_waiting_closures(coordinator: ps.ClusterCoordinator) -> None:
    def fail() -> None:
        time.sleep(0.2)
        raise ValueError("first")

    coordinator.schedule(fail)
    waiting = [coordinator.schedule(time.sleep, args=(0.3,)) for _ in range(30)]
    with pytest.raises(ValueError, match="first"):
        coordinator.join(timeout=DEADLINE_S)
    with pytest.raises(CancelledError, match="schedule it again"):
        waiting[-1].fetch(DEADLINE_S)


class BadRow(ValueError):
    def __init__(self, row: int) -> None:
        super().__init__(f"row {row} is bad")
        self.row = row


def test_closure_error_keeps_the_programs_own_class(
    coordinator: ps.ClusterCoordinator,
) -> None:
    class Local(BadRow):
        pass

    def step(kind: type[Exception]) -> None:
        raise kind(3)

    coordinator.schedule(step, args=(BadRow,))
    with pytest.raises(BadRow, match="row 3") as raised:
        coordinator.join(timeout=DEADLINE_S)
    assert raised.value.row == 3
    assert "raise kind(3)" in "".join(raised.value.__notes__)
    with pytest.raises(BadRow, match="Local: row 3") as unknown:
        coordinator.schedule(step, args=(Local,)).fetch(DEADLINE_S)
    assert isinstance(unknown.value, RemoteError)
    with pytest.raises(ValueError, match="row 3"):
        coordinator.join(timeout=DEADLINE_S)


def test_sys_exit_in_closure_ends_only_the_closure(
    coordinator: ps.ClusterCoordinator,
) -> None:
    for _ in range(5):
        coordinator.schedule(sys.exit, args=(3,))
        with pytest.raises(RemoteError, match="SystemExit"):
            coordinator.join(timeout=DEADLINE_S)
    assert coordinator.schedule(lambda: 5).fetch(DEADLINE_S) == 5


def test_unschedulable_function_trainer_or_result_is_refused(
    coordinator: ps.ClusterCoordinator,
) -> None:
    with pytest.raises(TypeError, match="function"):
        coordinator.schedule(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"no trainer 2: the cluster has \[0, 1\]"):
        coordinator.schedule(lambda: 1, trainer=2)
    with pytest.raises(TypeError, match="index, got str"):
        coordinator.schedule(lambda: 1, trainer="0")  # type: ignore[arg-type]
    value = coordinator.schedule(lambda: 1)
    with pytest.raises(ValueError, match="RemoteValue"):
        coordinator.schedule(lambda: value)
    with pytest.raises(InvalidArgumentError, match="can't return a set"):
        coordinator.schedule(lambda: {1}).fetch(DEADLINE_S)
    with pytest.raises(InvalidArgumentError):
        coordinator.join(timeout=DEADLINE_S)


def test_remote_values_are_arguments_of_other_closures(coordinator: ps.ClusterCoordinator) -> None:
    first = coordinator.schedule(lambda: (time.sleep(0.2), np.arange(3))[1])
    second = coordinator.schedule(lambda x, y: x.sum() + y["k"][0], args=(first, {"k": [first]}))
    third = coordinator.schedule(lambda total: int(total.sum()), kwargs={"total": second})
    assert third.fetch(DEADLINE_S) == 12
    box = coordinator.schedule(lambda x: x.value, args=(types.SimpleNamespace(value=third),))
    assert box.fetch(DEADLINE_S) == 12
    coordinator.join(timeout=DEADLINE_S)


def test_closures_wait_for_their_inputs_but_schedule_does_not(
    coordinator: ps.ClusterCoordinator, tmp_path: pathlib.Path
) -> None:
    gate = tmp_path / "gate"
    first = coordinator.schedule(lambda path: wait_for(path) or 1, args=(str(gate),))
    chain = [first]
    for _ in range(20):
        chain.append(coordinator.schedule(lambda a, b: a + b, args=(chain[-1], first)))
    assert coordinator.schedule(lambda: 5).fetch(DEADLINE_S) == 5
    with pytest.raises(TimeoutError, match="waits for the value of"):
        chain[-1].fetch(timeout=0.01)
    gate.touch()
    assert coordinator.fetch(chain) == list(range(1, 22))
    gate.unlink()
    failed = coordinator.schedule(lambda path: wait_for(path) or 1 // 0, args=(str(gate),))
    needing = coordinator.schedule(lambda x: x, args=(failed,))
    gate.touch()
    with pytest.raises(ZeroDivisionError):
        coordinator.join(timeout=DEADLINE_S)
    with pytest.raises(ClosureInputError, match="division") as caught:
        needing.fetch(DEADLINE_S)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    large = coordinator.schedule(lambda: bytes(20 << 20))
    both = coordinator.schedule(lambda *parts: len(parts), args=(large, bytes(20 << 20)))
    with pytest.raises(InvalidArgumentError, match=r"with the values of closures .* 41,9"):
        both.fetch(DEADLINE_S)
    with pytest.raises(InvalidArgumentError):
        coordinator.join(timeout=DEADLINE_S)


def test_too_large_arguments_or_results_are_refused_and_others_run(
    coordinator: ps.ClusterCoordinator,
) -> None:
    large = np.zeros(30 << 20, dtype=np.uint8)
    with pytest.raises(InvalidArgumentError, match=r"arguments of .* takes 31,"):
        coordinator.schedule(lambda x: len(x), args=(large,))
    with pytest.raises(InvalidArgumentError, match="captured by"):
        coordinator.schedule(lambda: large.size)
    value = coordinator.schedule(lambda: bytes(30 << 20))
    with pytest.raises(InvalidArgumentError, match="returned 31,"):
        coordinator.join(timeout=DEADLINE_S)
    with pytest.raises(InvalidArgumentError, match="returned 31,"):
        value.fetch(DEADLINE_S)
    sizes = [coordinator.schedule(lambda: bytes(8 << 20)) for _ in range(12)]
    assert {len(size.fetch(DEADLINE_S)) for size in sizes} == {8 << 20}


def test_iterator_run_and_reduce_of_the_tutorial_work_on_trainers(
    coordinator: ps.ClusterCoordinator,
) -> None:
    strategy = coordinator.strategy

    def dataset_fn(context: ps.InputContext) -> Dataset:  # noqa: ARG001
        return Dataset.range(100).repeat().batch(4)

    def per_worker_dataset_fn() -> Any:
        return strategy.distribute_datasets_from_function(dataset_fn)

    iterator = iter(coordinator.create_per_worker_dataset(per_worker_dataset_fn))

    def step(it: Any) -> Any:
        sums = strategy.run(lambda batch: batch.column(0).to_numpy().sum(), args=(next(it),))
        return strategy.reduce("SUM", sums, axis=None)

    assert coordinator.schedule(step, args=(iterator,)).fetch(DEADLINE_S) == 6
    iterator.close()
    coordinator.schedule(step, args=(iterator,))
    with pytest.raises(InvalidArgumentError, match="iterator was closed"):
        coordinator.join(timeout=DEADLINE_S)


def test_scheduled_function_knows_its_strategy(
    coordinator: ps.ClusterCoordinator,
) -> None:
    strategy = coordinator.strategy

    def step() -> tuple[bool, bool, int]:
        current = ps.get_strategy()
        return ps.has_strategy(), current is strategy, current.num_replicas_in_sync

    assert coordinator.schedule(step).fetch(DEADLINE_S) == (True, True, 1)


def _links() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if "trainer-link" in thread.name}


def test_replaced_coordinator_does_not_take_trainers_back() -> None:
    before = _links()
    with ps.LocalCluster(workers=1, ps=1, data_workers=0) as other:
        first = ps.ClusterCoordinator(ps.ParameterServerStrategy(other.resolver))
        assert first.schedule(lambda: 1).fetch(DEADLINE_S) == 1
        second = ps.ClusterCoordinator(ps.ParameterServerStrategy(other.resolver))
        assert second.schedule(lambda: 2).fetch(DEADLINE_S) == 2
        for _ in range(2):
            other.restart("worker", 0)
            assert second.schedule(lambda: 2).fetch(DEADLINE_S) == 2
        with pytest.raises(RuntimeError, match="another coordinator"):
            first.schedule(time.sleep, args=(0,)).fetch(DEADLINE_S)
        assert second.schedule(lambda: 3).fetch(DEADLINE_S) == 3
        first.close()
    assert second.strategy.coordinator is None, "closed with the cluster"
    assert not _links() - before


def test_trainers_use_the_parameter_config_of_the_program() -> None:
    config = ParameterConfig(request_timeout_s=7.5, chunk_bytes=1 << 20, share_memory=False)

    def of_the_trainer() -> list[dict[str, Any]]:
        import dataclasses
        import gc

        from pstrain.trainer.client import RemoteParameters

        found = [each for each in gc.get_objects() if isinstance(each, RemoteParameters)]
        return [dataclasses.asdict(each.config) for each in found]

    with ps.LocalCluster(workers=1, ps=1, data_workers=0) as cluster:
        strategy = ps.ParameterServerStrategy(cluster.resolver, config=config)
        coordinator = ps.ClusterCoordinator(strategy)
        found = coordinator.schedule(of_the_trainer).fetch(DEADLINE_S)
        assert found == [dataclasses.asdict(config)]


def test_threads_that_make_coordinator_of_strategy_at_once_get_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assemble, entered, second = client.assemble, threading.Lock(), threading.Event()

    def slow_assemble(*args: Any) -> Any:
        if entered.acquire(blocking=False):
            second.wait(0.5)
        else:
            second.set()
        return assemble(*args)

    monkeypatch.setattr(client, "assemble", slow_assemble)
    made: list[ps.ClusterCoordinator] = []
    with ps.LocalCluster(workers=1, ps=1, data_workers=0) as cluster:
        strategy = ps.ParameterServerStrategy(cluster.resolver)
        threads = [
            threading.Thread(target=lambda: made.append(ps.ClusterCoordinator(strategy)))
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        assert made == [strategy.coordinator] * 2
        assert made[0].schedule(os.getpid).fetch(DEADLINE_S)


def test_strategy_has_one_coordinator_and_invalid_options_are_refused(
    coordinator: ps.ClusterCoordinator,
) -> None:
    assert ps.ClusterCoordinator(coordinator.strategy) is coordinator
    with pytest.raises(ValueError, match=r"queue_capacity=\d+, got 7: pass the value where"):
        ps.ClusterCoordinator(coordinator.strategy, queue_capacity=7)
    with pytest.raises(ValueError, match="closures_in_flight must be a positive integer, got 0"):
        ps.ClusterCoordinator(coordinator.strategy, closures_in_flight=0)
    with pytest.raises(ValueError, match="progress must be a function or None, got 3"):
        coordinator.join(progress=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="ParameterServerStrategy"):
        ps.ClusterCoordinator("strategy")  # type: ignore[arg-type]


def test_each_trainer_has_its_own_iterator(coordinator: ps.ClusterCoordinator) -> None:
    def dataset_fn(context: ps.InputContext) -> Dataset:
        start = 100 * context.input_pipeline_id
        return Dataset.range(start, start + 20).batch(10)

    iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))
    with pytest.raises(RuntimeError, match="scheduled function"):
        next(iterator)

    def step(it: Any) -> int:
        return int(next(it).column(0)[0].as_py())

    first = {coordinator.schedule(step, args=(iterator,)).fetch(DEADLINE_S) for _ in range(2)}
    assert first <= {0, 10, 100, 110}
    values = [coordinator.schedule(step, args=(iterator,)) for _ in range(12)]
    with pytest.raises(OutOfRangeError, match="exhausted"):
        coordinator.join(timeout=DEADLINE_S)
    assert all(value.is_ready() for value in values)


def test_loop_ends_when_data_of_all_trainers_is_exhausted(
    coordinator: ps.ClusterCoordinator,
) -> None:
    def dataset_fn(context: ps.InputContext) -> Dataset:
        return Dataset.range((2, 40)[context.input_pipeline_id]).batch(1)

    def step(it: Any) -> int:
        return len(next(it))

    iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))
    values: list[ps.RemoteValue] = []
    with contextlib.suppress(OutOfRangeError):
        while True:
            values.append(coordinator.schedule(step, args=(iterator,)))
            if len(values) % 3 == 0:
                coordinator.join(timeout=DEADLINE_S)
    assert sum(value.has_value for value in values) == 42


def test_dataset_function_error_is_raised_by_the_closure_that_uses_it(
    coordinator: ps.ClusterCoordinator,
) -> None:
    def dataset_fn() -> Dataset:
        raise KeyError("no such table")

    iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))
    assert coordinator.schedule(lambda: 1).fetch(DEADLINE_S) == 1
    coordinator.schedule(next, args=(iterator,))
    with pytest.raises(ClosureInputError, match="no such table"):
        coordinator.join(timeout=DEADLINE_S)
    with pytest.raises(ValueError, match="create_per_worker_dataset needs"):
        coordinator.create_per_worker_dataset(5)


def test_closures_update_variables_on_servers(coordinator: ps.ClusterCoordinator) -> None:
    with coordinator.strategy.scope():
        counter = ps.Variable(np.zeros(4, dtype=np.int64), name="counter")

    def count() -> None:
        counter.assign_add(np.ones(4, dtype=np.int64))

    for _ in range(25):
        coordinator.schedule(count)
    coordinator.join(timeout=DEADLINE_S)
    np.testing.assert_array_equal(counter.numpy(), [25] * 4)


def test_closures_of_killed_trainer_run_elsewhere_and_bound_ones_wait(
    breakable: ps.LocalCluster, tmp_path: pathlib.Path
) -> None:
    gate = tmp_path / "gate"
    coordinator = ps.ClusterCoordinator(ps.ParameterServerStrategy(breakable.resolver))
    with coordinator.strategy.scope():
        counter = ps.Variable(np.zeros(1, dtype=np.int64), name="counter")

    def count() -> int:
        counter.assign_add(np.ones(1, dtype=np.int64))
        return ps.get_current_worker_index()

    def wait_and_count(path: str) -> int:
        wait_for(path)
        return count()

    wait_until(lambda: coordinator.live_trainers() == {0, 1}, "both trainers")
    values = [coordinator.schedule(count) for _ in range(30)]
    values += [coordinator.schedule(wait_and_count, args=(str(gate),)) for _ in range(70)]
    wait_until(lambda: coordinator.stats()["finished"] == 30, "those that do not wait")
    wait_until(lambda: coordinator.stats()["running"] == 6, "others on both trainers")
    breakable.kill("worker", 0)
    gate.touch()
    coordinator.join(timeout=DEADLINE_S)
    assert {value.fetch(DEADLINE_S) for value in values[-20:]} == {1}
    assert coordinator.stats()["retries"] > 0
    np.testing.assert_array_equal(counter.numpy(), [100])

    bound = [coordinator.schedule(count, trainer=0) for _ in range(3)]
    others = [coordinator.schedule(count) for _ in range(3)]
    assert {value.fetch(DEADLINE_S) for value in others} == {1}
    assert not any(value.is_ready() for value in bound)
    breakable.restart("worker", 0)
    assert {value.fetch(DEADLINE_S) for value in bound} == {0}
    wait_until(lambda: coordinator.live_trainers() == {0, 1}, "the trainer to come back")
    back = {v.fetch(DEADLINE_S) for v in [coordinator.schedule(count) for _ in range(20)]}
    assert back == {0, 1}
    coordinator.close()


def test_frozen_trainer_counts_as_lost_until_it_resumes(breakable: ps.LocalCluster) -> None:
    coordinator = ps.ClusterCoordinator(ps.ParameterServerStrategy(breakable.resolver))
    coordinator.schedule(lambda: 1).fetch(DEADLINE_S)
    wait_until(lambda: coordinator.live_trainers() == {0, 1}, "both trainers")
    breakable.suspend("worker", 1)
    values = [coordinator.schedule(lambda: ps.get_current_worker_index()) for _ in range(20)]
    assert {value.fetch(DEADLINE_S) for value in values} == {0}
    breakable.resume("worker", 1)
    wait_until(lambda: coordinator.live_trainers() == {0, 1}, "the trainer to come back")
    coordinator.close()


def test_join_without_any_trainer_is_unavailable_after_a_timeout(
    breakable: ps.LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = ps.ClusterCoordinator(ps.ParameterServerStrategy(breakable.resolver))
    assert coordinator.schedule(lambda: 1).fetch(DEADLINE_S) == 1
    monkeypatch.setattr(coordinator._scheduler.waits, "_trainer_timeout_s", 1.0)
    for index in (0, 1):
        breakable.kill("worker", index)
    value = coordinator.schedule(time.sleep, args=(0.1,))
    with pytest.raises(UnavailableError, match="no trainer"):
        coordinator.join(timeout=DEADLINE_S)
    with pytest.raises(UnavailableError, match="'worker' tasks"):
        value.fetch(DEADLINE_S)
    coordinator.close()


def test_iterator_is_usable_at_once_after_load_state_dict(
    coordinator: ps.ClusterCoordinator,
) -> None:
    """Even if its end and its new definition reach a trainer in one message."""
    data = Dataset.range(100).batch(10)
    iterator = iter(coordinator.create_per_worker_dataset(data))
    for _ in range(60):
        iterator.load_state_dict({"epoch": 0})
        values = [
            coordinator.schedule(lambda rows: next(rows).num_rows, (iterator,)) for _ in range(4)
        ]
        assert coordinator.fetch(values) == [10] * 4


def test_program_continues_after_lost_server_by_begin_and_restore(
    breakable: ps.LocalCluster, tmp_path: pathlib.Path
) -> None:
    strategy = ps.ParameterServerStrategy(breakable.resolver)
    lost = ps.ClusterCoordinator(strategy)
    with strategy.scope():
        counter = ps.Variable(0, name="counter")

    def count() -> None:
        counter.assign_add(1)

    for _ in range(3):
        lost.schedule(count)
    lost.join(timeout=DEADLINE_S)
    saved = ps.Checkpoint(counter=counter)
    saved.save(tmp_path)
    breakable.kill("ps", 0)
    lost.schedule(count)
    with pytest.raises(ServerLostError, match=r"begin\(\), restore .* new ClusterCoordinator\("):
        lost.join(timeout=DEADLINE_S)
    breakable.restart("ps", 0)
    strategy.begin()
    saved.restore(tmp_path)
    coordinator = ps.ClusterCoordinator(strategy)
    assert (lost.is_over, coordinator.is_over) == (True, False)
    coordinator.schedule(count).fetch(DEADLINE_S)
    assert int(counter) == 4
    coordinator.close()


def test_variables_missing_from_checkpoint_are_named_and_reset_by_a_restore(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ps.LocalCluster(workers=1, ps=2, data_workers=0, supervise=True) as cluster:
        strategy = ps.ParameterServerStrategy(
            cluster.resolver, ps.partitioners.FixedShardsPartitioner(2)
        )
        with strategy.scope():
            counter = ps.Variable(0, name="counter")
            rate = ps.Variable([0.5, 0.25], name="rate")
            large = ps.Variable(np.ones(20_000, np.float32), name="large")
        manager = ps.CheckpointManager(ps.Checkpoint(counter=counter), tmp_path)
        coordinator = ps.ClusterCoordinator(strategy, checkpoint=manager)
        rate.assign([0.1, 0.1])
        for _ in range(2):
            manager.save()
        assert caplog.text.count("'rate', 'large' are not in the checkpoint") == 1
        coordinator.schedule(lambda: counter.assign_add(1)).fetch(DEADLINE_S)
        cluster.kill("ps", 0)
        wait_until(lambda: coordinator.stats()["restores"] == 1, "the restore")
        assert int(counter) == 1
        assert rate.numpy().tolist() == [0.5, 0.25]
        assert not large.numpy().any()
        assert "'rate', 'large' were not in the checkpoint and have started over" in caplog.text
        coordinator.close()
