"""The V1 form in real processes, with workers and servers that die and come back."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import dataservice as ds
import pstrain as ps
from pstrain.config import ParameterConfig
from pstrain.errors import (
    AbortedError,
    AlreadyExistsError,
    DataLossError,
    DeadlineExceededError,
    FailedPreconditionError,
    UnavailableError,
    UnimplementedError,
)
from pstrain.paramserver.server import ParameterServer
from pstrain.vocabulary import Fetch
from tests.ports import free_port
from tests.unit.bfloat16_twin import rounded

PROGRAM = pathlib.Path(__file__).parent / "programs" / "v1_training.py"
DEADLINE_S = 90.0


class Tasks:
    """The processes of one cluster, with 2 workers and 2 parameter servers."""

    def __init__(self, folder: pathlib.Path, steps: int, pause_s: float) -> None:
        self.out, self.checkpoints = folder / "out", folder / "checkpoints"
        self.out.mkdir()
        self._arguments = [str(self.out), str(self.checkpoints), str(steps), str(pause_s)]
        addresses = [f"localhost:{free_port()}" for _ in range(4)]
        self.spec = {"worker": addresses[:2], "ps": addresses[2:]}
        self._tasks: dict[tuple[str, int], subprocess.Popen[bytes]] = {}

    def start(self, job: str, index: int) -> None:
        config = json.dumps({"cluster": self.spec, "task": {"type": job, "index": index}})
        with open(self.out / f"{job}-{index}.log", "ab") as log:
            self._tasks[job, index] = subprocess.Popen(
                [sys.executable, str(PROGRAM), *self._arguments],
                env={**os.environ, "TF_CONFIG": config, "OPENBLAS_NUM_THREADS": "1"},
                stdout=log,
                stderr=log,
            )

    def start_all(self) -> None:
        for job, addresses in self.spec.items():
            for index in range(len(addresses)):
                self.start(job, index)

    def kill(self, job: str, index: int) -> None:
        self._tasks[job, index].send_signal(signal.SIGKILL)
        self._tasks[job, index].wait()

    def is_running(self, job: str, index: int) -> bool:
        return self._tasks[job, index].poll() is None

    def steps(self, worker: int) -> int:
        try:
            return int((self.out / f"worker-{worker}.steps").read_text() or 0)
        except FileNotFoundError:
            return 0

    def forget_steps(self, worker: int) -> None:
        (self.out / f"worker-{worker}.steps").unlink()

    def result(self, worker: int) -> dict[str, Any]:
        task = self._tasks["worker", worker]
        self.until(lambda: task.poll() is not None, f"worker {worker} to end")
        assert task.returncode == 0, self.log("worker", worker)
        return dict(json.loads((self.out / f"worker-{worker}.json").read_text()))

    def log(self, job: str, index: int) -> str:
        return (self.out / f"{job}-{index}.log").read_text()

    def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline_s, f"waited {DEADLINE_S} s for {what}"
            time.sleep(0.02)

    def close(self) -> None:
        for task in self._tasks.values():
            task.kill()
            task.wait()


@pytest.fixture
def tasks(tmp_path: pathlib.Path) -> Iterator[Tasks]:
    tasks = Tasks(tmp_path, steps=150, pause_s=0.02)
    yield tasks
    tasks.close()


def best_loss() -> float:
    sys.path.insert(0, str(PROGRAM.parent))
    try:
        from v1_training import PAGES, columns
    finally:
        sys.path.pop(0)
    data = columns()
    rates = np.array([data["label"][data["page"] == p].mean() for p in range(PAGES)])[data["page"]]
    return float(-np.mean(np.where(data["label"], np.log(rates), np.log(1 - rates))))


def test_restarted_worker_rejoins_and_training_reaches_the_best_loss(tasks: Tasks) -> None:
    tasks.start_all()
    tasks.until(lambda: tasks.steps(1) >= 20, "steps of worker 1")
    tasks.kill("worker", 1)
    tasks.forget_steps(1)
    before = tasks.steps(0)
    tasks.until(lambda: tasks.steps(0) > before + 5, "the other worker to go on")
    tasks.start("worker", 1)
    chief, other = tasks.result(0), tasks.result(1)
    assert (chief["steps"], other["steps"]) == (150, 150)
    assert chief["iterations"] >= 150 + 150 + 20
    assert chief["loss"] == pytest.approx(best_loss(), abs=0.02)
    assert chief["restored_from"] is None
    assert chief["checkpoint"] == ps.latest_checkpoint(tasks.checkpoints)
    assert tasks.is_running("ps", 0)


@pytest.mark.long
def test_restarted_chief_resumes_from_its_checkpoint_with_the_others(
    tasks: Tasks,
) -> None:
    tasks.start_all()
    tasks.until(lambda: ps.latest_checkpoint(tasks.checkpoints) is not None, "a checkpoint")
    tasks.kill("worker", 0)
    tasks.start("worker", 0)
    chief, other = tasks.result(0), tasks.result(1)
    assert "ckpt-" in chief["restored_from"]
    assert (chief["steps"], other["steps"]) == (150, 150)
    assert chief["loss"] == pytest.approx(best_loss(), abs=0.02)


@pytest.mark.long
def test_restarted_parameter_server_is_restored_from_the_checkpoint(
    tasks: Tasks,
) -> None:
    tasks.start_all()
    tasks.until(lambda: ps.latest_checkpoint(tasks.checkpoints) is not None, "a checkpoint")
    tasks.until(lambda: tasks.steps(1) > 0, "the other worker to have its variables")
    tasks.kill("ps", 1)
    tasks.start("ps", 1)
    chief, other = tasks.result(0), tasks.result(1)
    assert "ckpt-" in chief["restored_from"]
    assert (chief["steps"], other["steps"]) == (150, 150)
    assert chief["loss"] == pytest.approx(best_loss(), abs=0.02)


def strategy_of(
    server: ParameterServer,
    worker: int,
    timeout_s: float,
    workers: int = 2,
    more: Sequence[ParameterServer] = (),
    **options: Any,
) -> Any:
    addresses = [f"localhost:{number}" for number in range(1, workers + 1)]
    servers = [each.address for each in (server, *more)]
    spec = ps.ClusterSpec({"worker": addresses, "ps": servers})
    return ps.v1.ParameterServerStrategy(
        ps.SimpleClusterResolver(spec, "", "worker", worker),
        config=ParameterConfig(start_timeout_s=timeout_s),
        **options,
    )


def test_variable_creation_waits_for_an_absent_server() -> None:
    server = ParameterServer()
    server.start()
    chief, other = strategy_of(server, 0, 60.0), strategy_of(server, 1, 60.0)
    with chief.scope():
        first = ps.Variable([1.0, 2.0])
    server.stop()
    back = ParameterServer(port=server.port)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:

        def make(strategy: Any, count: int) -> list[Any]:
            with strategy.scope():
                return [ps.Variable([1.0, 2.0]) for _ in range(count)]

        made = [pool.submit(make, chief, 1), pool.submit(make, other, 2)]
        time.sleep(0.2)
        assert not any(each.done() for each in made)
        with back:
            (second,), theirs = (each.result(DEADLINE_S) for each in made)
            with chief.session(init_fn=lambda: first.assign([5.0, 5.0])) as session:
                session.run(lambda: second.assign([3.0, 4.0]))
                other.membership.await_ready()
                assert [v.numpy().tolist() for v in theirs] == [[5.0, 5.0], [3.0, 4.0]]
                other.membership.report_done(1)
    for strategy in (chief, other):
        strategy.close()


def test_large_initial_values_lost_before_training_are_data_loss() -> None:
    server = ParameterServer()
    server.start()
    strategy = strategy_of(server, 0, 60.0, workers=1)
    with strategy.scope():
        small = ps.Variable(np.ones(3))
        ps.Variable(np.ones(20_000, np.float32), name="given")
    server.stop()
    with ParameterServer(port=server.port):
        for _ in range(2):
            with pytest.raises(DataLossError, match=r"made of \(given\): start the chief again"):
                strategy.session().__enter__()
        assert small.numpy().tolist() == [1.0] * 3
        strategy.close()


def test_sessions_and_programs_follow_one_another_on_the_same_server() -> None:
    seen: list[float] = []

    def program(server: ParameterServer, worker: int, size: int) -> None:
        strategy = strategy_of(server, worker, 60.0)
        with strategy.scope():
            sums = ps.Variable(np.zeros(size, np.float32))
        for _ in range(2):
            with strategy.session() as session:
                for _ in range(3 + worker):
                    session.run(sums.assign_add, (np.ones(size),))
            if worker == 0:
                seen.append(float(sums.numpy()[0]))
        strategy.close()

    with ParameterServer() as server, concurrent.futures.ThreadPoolExecutor(2) as pool:
        for size in (1, 2):
            other = pool.submit(program, server, 1, size)
            time.sleep(0.1)
            pool.submit(program, server, 0, size).result(DEADLINE_S)
            other.result(DEADLINE_S)
    assert seen == [7.0, 14.0] * 2


def test_worker_restarted_after_it_was_done_is_waited_for() -> None:
    with ParameterServer() as server:
        chief, other, again = (strategy_of(server, worker, 60.0) for worker in (0, 1, 1))
        chief.session().__enter__()
        other.session().__enter__()
        other.membership.report_done(1)
        assert chief.membership.missing() == [0]
        again.session().__enter__()
        assert chief.membership.missing() == [0, 1]
        for strategy in (chief, other, again):
            strategy.close()


def test_small_initial_values_survive_a_server_lost_before_training() -> None:
    with ParameterServer() as server:
        strategy = strategy_of(server, 0, 60.0, workers=1)
        with strategy.scope():
            variable = ps.Variable([1.0, 2.0])
    with ParameterServer(port=server.port):
        with strategy.session():
            assert variable.numpy().tolist() == [1.0, 2.0]
        strategy.close()


def test_server_lost_again_during_restore_is_waited_for_again(
    tmp_path: pathlib.Path,
) -> None:
    servers = [ParameterServer()]
    servers[0].start()

    def replace() -> None:
        servers[-1].stop()
        servers.append(ParameterServer(port=servers[-1].port))
        servers[-1].start()

    class Manager(ps.CheckpointManager):
        def restore_or_initialize(self, **options: Any) -> Any:
            if len(servers) == 2:
                replace()
            return super().restore_or_initialize(**options)

        def wait(self, timeout: float | None = None) -> None:
            super().wait(timeout)
            if len(servers) == 2:
                raise AbortedError("what was being written was of the session that is lost")

    strategy = strategy_of(servers[0], 0, 60.0, workers=1)
    with strategy.scope():
        variable = ps.Variable([1.0, 2.0])
    manager = Manager(ps.Checkpoint(v=variable), tmp_path, 2)
    with strategy.session(manager, save_every_steps=1) as session:
        session.run(variable.assign, ([3.0, 4.0],))
        replace()
        session.run(variable.assign_add, ([1.0, 1.0],))
        assert variable.numpy().tolist() == [4.0, 5.0]
    assert len(servers) == 3
    strategy.close()
    servers[-1].stop()


def test_chief_waiting_for_others_restores_a_lost_server(tmp_path: pathlib.Path) -> None:
    with ParameterServer() as first, concurrent.futures.ThreadPoolExecutor(1) as pool:
        lost = ParameterServer()
        lost.start()
        chief, other = (strategy_of(first, worker, 20.0, more=[lost]) for worker in (0, 1))
        values = []
        for strategy in (chief, other):
            with strategy.scope():
                values.append([ps.Variable([1.0]) for _ in range(2)][1])
        manager = ps.CheckpointManager(ps.Checkpoint(v=values[0]), tmp_path)
        session = chief.session(manager, worker_timeout_s=30)
        session.__enter__()
        with other.session() as others:
            session.save()
            ending = pool.submit(session.__exit__, None)
            time.sleep(0.2)
            lost.stop()
            with ParameterServer(port=lost.port):
                others.run(values[1].assign_add, ([1.0],))
                assert values[1].numpy().tolist() == [2.0]
                other.membership.report_done(1)
                ending.result(DEADLINE_S)
        for strategy in (chief, other):
            strategy.close()


def test_worker_uses_variables_that_a_new_chief_has_not_created() -> None:
    with ParameterServer() as server:
        chief, other = strategy_of(server, 0, 60.0), strategy_of(server, 1, 60.0)
        with other.scope():
            late = ps.Variable(ps.initializers.constant(2.0)((2,)))
        chief.session().__enter__()
        with other.session(worker_timeout_s=0) as session:
            again = strategy_of(server, 0, 60.0)
            again.session().__enter__()
            session.run(late.assign_add, ([1.0, 1.0],))
            assert late.numpy().tolist() == [3.0, 3.0]
        for strategy in (chief, other, again):
            strategy.close()


def test_fit_survives_a_lost_server_and_restores_best_weights_at_the_end(
    tmp_path: pathlib.Path,
) -> None:
    servers = [ParameterServer()]
    servers[0].start()
    page = np.arange(80) % 4
    schema = ps.FeatureSchema(categorical={"page": ps.Category(4, hashed=False)})
    given: list[Any] = []

    class Lose(ps.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:  # noqa: ARG002
            given.append(self.model.predict({"page": page}))
            if epoch == 1:
                servers[0].stop()
                servers.append(ParameterServer(port=servers[0].port))
                servers[1].start()

    def best() -> ps.callbacks.EarlyStopping:
        return ps.callbacks.EarlyStopping(
            "loss", mode="max", patience=9, restore_best_weights=True, directory=tmp_path / "best"
        )

    def share(context: ps.InputContext) -> ds.Dataset:
        data = ds.Dataset.from_numpy({"page": page, "label": page % 2}).batch(10)
        return data.shard(context.num_input_pipelines, context.input_pipeline_id)

    chief, other = strategy_of(servers[0], 0, 60.0), strategy_of(servers[0], 1, 60.0)
    models = []
    for strategy in (chief, other):
        with strategy.scope():
            models.append(ps.models.LogisticRegression(schema))
            models[-1].compile(ps.optimizers.Adagrad(0.5))
    model, theirs = models
    manager = ps.CheckpointManager(ps.Checkpoint(model=model), tmp_path / "ckpt", 2)
    with chief.session(manager, save_every_steps=1) as session:
        history = model.fit(share, 4, callbacks=[best(), Lose()], verbose=0)
        assert history.history["examples"] == [40] * 4
        assert session.steps == 16
        for callback in (best(), ps.callbacks.Checkpoint(tmp_path / "best")):
            callback.set_model(theirs)
            callback.on_train_begin()
            callback.on_epoch_end(0, {"loss": 9.0})
            callback.on_train_end()
        assert [path.name for path in (tmp_path / "best").iterdir()] == ["best-1"]
        np.testing.assert_array_equal(model.predict({"page": page}), given[3])
        other.membership.await_ready()
        other.membership.report_done(1)
    np.testing.assert_array_equal(model.predict({"page": page}), given[0])
    for strategy in (chief, other):
        strategy.close()
    servers[1].stop()


def test_workers_drop_cached_ids_of_keys_after_restore(tmp_path: pathlib.Path) -> None:
    server = ParameterServer()
    server.start()
    strategies = strategy_of(server, 0, 60.0), strategy_of(server, 1, 60.0)
    lookups = []
    for strategy in strategies:
        with strategy.scope():
            lookups.append(ps.layers.OnlineLookup(50))
    manager = ps.CheckpointManager(ps.Checkpoint(lookup=lookups[0]), tmp_path, 2)
    back = ParameterServer(port=server.port)
    with strategies[0].session(manager, save_every_s=None) as session:
        strategies[1].membership.await_ready()
        session.save()
        assert lookups[1](range(20), training=True).all()
        server.stop()
        back.start()
        others = session.run(lambda: lookups[0](range(100, 140), training=True))
        strategies[1].membership.await_ready()
        found = lookups[1](range(20), training=True)
        assert not {*found} & {*others} - {0}
        np.testing.assert_array_equal(lookups[0](range(20)), found)
        strategies[1].membership.report_done(1)
    for strategy in strategies:
        strategy.close()
    back.stop()


def test_keys_are_assigned_or_restored_only_outside_training(tmp_path: pathlib.Path) -> None:
    with ParameterServer() as server:
        chief, other = strategy_of(server, 0, 60.0), strategy_of(server, 1, 60.0)
        lookups = []
        for strategy in (chief, other):
            with strategy.scope():
                lookups.append(ps.layers.OnlineLookup(50))
        manager = ps.CheckpointManager(ps.Checkpoint(lookup=lookups[0]), tmp_path, 2)
        keys = [lookup.variables[0] for lookup in lookups]
        nothing = keys[0].numpy()
        for _ in range(2):
            with chief.session(manager, init_fn=lambda: keys[0].assign(nothing)):
                other.membership.await_next(1)
                lookups[1](range(20), training=True)
                for strategy, mine in zip((chief, other), keys, strict=True):
                    with pytest.raises(FailedPreconditionError, match="before training, in stra"):
                        strategy.run(mine.assign, (nothing,))
                with pytest.raises(FailedPreconditionError, match="would not learn"):
                    manager.checkpoint.restore(manager.save())
                other.membership.report_done(1)
        assert len(lookups[0]) == 20
        with pytest.raises(UnimplementedError, match="cannot be evicted in the V1 form"):
            lookups[0].evict(10, [])
        keys[0].assign(nothing)
        assert len(lookups[0]) == 0
        for strategy in (chief, other):
            strategy.close()


def test_worker_with_variables_unlike_the_chiefs_is_refused() -> None:
    with ParameterServer() as server:
        for worker, size in ((0, 2), (1, 3)):
            strategy = strategy_of(server, worker, 60.0)
            with contextlib.ExitStack() as scopes:
                if worker:
                    scopes.enter_context(pytest.raises(AlreadyExistsError, match="start the chief"))
                scopes.enter_context(strategy.scope())
                ps.Variable(np.zeros(size))
            strategy.close()


def test_transport_dtype_rounds_fetched_values() -> None:
    exact = np.array([1 / 3, 2.0], np.float32)
    for dtype, pulled in (("float32", exact), ("bfloat16", rounded(exact))):
        with ParameterServer() as server:
            strategy = strategy_of(server, 0, 60.0, transport_dtype=dtype)
            with strategy.scope():
                variable = ps.Variable(exact)
            (whole,) = strategy.parameters.fetch([Fetch(variable.spec)])
            np.testing.assert_array_equal(whole, pulled)
            np.testing.assert_array_equal(variable.numpy(), exact)
            strategy.close()


def test_absent_server_is_an_error_at_the_deadline() -> None:
    with ParameterServer() as server:
        strategy = strategy_of(server, 0, 0.5)
    away = r"servers \[0\] at .*start the cluster's 'ps'"
    with pytest.raises(DeadlineExceededError, match=away), strategy.scope():
        ps.Variable(0.0, name="x")
    with pytest.raises(DeadlineExceededError, match="give the variables their first values"):
        strategy.session().__enter__()
    strategy.close()


def test_lost_server_error_names_session_not_coordinator() -> None:
    with ParameterServer() as server:
        strategy = strategy_of(server, 0, 60.0)
        with strategy.scope():
            variable = ps.Variable(0.0, name="x")
    with pytest.raises(UnavailableError, match=r"strategy\.session\(") as raised:
        variable.numpy()
    assert "ClusterCoordinator" not in str(raised.value)
    strategy.close()


def test_chief_that_stops_waiting_names_the_workers_that_are_missing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with ParameterServer() as server:
        chief = strategy_of(server, 0, 60.0, workers=4)
        with chief.session(worker_timeout_s=0.2):
            chief.membership.report_done(2)
        assert "no report of worker 1, 3" in caplog.text
        chief.close()


def is_open(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1.0):
        return True
    return False


def test_worker_without_chief_names_it_in_the_error(tasks: Tasks) -> None:
    for index in (0, 1):
        tasks.start("ps", index)
    tasks.until(lambda: all(map(is_open, tasks.spec["ps"])), "the servers")
    resolver = ps.SimpleClusterResolver(ps.ClusterSpec(tasks.spec), "", "worker", 1)
    with pytest.raises(DeadlineExceededError, match="the chief"):
        ps.v1.ParameterServerStrategy(resolver, config=ParameterConfig(start_timeout_s=2))
