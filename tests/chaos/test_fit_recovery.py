"""``fit`` recovers by itself after a parameter server, its coordinator or a trainer was killed."""

from __future__ import annotations

import json
import pathlib
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dataservice as ds
import pstrain as ps
from pstrain.execution import progress
from tests.chaos import fitting_program
from tests.chaos.counted_fit import BATCH, columns, compiled, dataset
from tests.chaos.counted_rows import counted

ROWS = 4_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[ps.LocalCluster]:
    with ps.LocalCluster(workers=2, ps=2, data_workers=1, supervise=True) as cluster:
        yield cluster


@pytest.fixture
def strategy(cluster: ps.LocalCluster) -> Iterator[ps.ParameterServerStrategy]:
    yield from made(cluster)


def made(cluster: ps.LocalCluster, **options: Any) -> Iterator[ps.ParameterServerStrategy]:
    strategy = ps.ParameterServerStrategy(
        cluster.resolver,
        variable_partitioner=ps.partitioners.FixedShardsPartitioner(2),
        **options,
    )
    yield strategy
    ps.ClusterCoordinator(strategy).close()


class Kill(ps.callbacks.Callback):
    """Kills a parameter server at each number of reports in ``after``, after a complete save."""

    def __init__(
        self, cluster: ps.LocalCluster, saved: ps.callbacks.Checkpoint, seed: int, *after: int
    ) -> None:
        self._cluster, self._saved, self._after = cluster, saved, list(after)
        self._chance, self._seen = random.Random(seed), 0

    def on_train_batch_end(self, batch: int, logs: Any) -> None:  # noqa: ARG002
        self._seen += 1
        path = self._saved.last_path
        if self._after and self._seen >= self._after[0] and path:
            path.wait(60)
            self._after.pop(0)
            time.sleep(self._chance.random() * 0.01)
            self._cluster.kill("ps", self._chance.randrange(2))

    @property
    def is_done(self) -> bool:
        return not self._after


def fed(cluster: ps.LocalCluster, by: str) -> ds.Dataset:
    """Returns rows that trainers read by themselves, or from the data service."""
    rows = dataset(ROWS)
    return rows if by == "trainers" else rows.distribute(ds.ShardingPolicy.DYNAMIC, cluster.service)


@pytest.mark.parametrize("by", ["service", "trainers"])
def test_fit_trains_every_row_once_although_a_server_is_killed(
    cluster: ps.LocalCluster, strategy: ps.ParameterServerStrategy, tmp_path: pathlib.Path, by: str
) -> None:
    model = compiled(strategy, ROWS)
    saved = ps.callbacks.Checkpoint(tmp_path, every_steps=40, max_to_keep=2)
    kill = Kill(cluster, saved, 1, 30)
    history = model.fit(
        fed(cluster, by),
        2,
        callbacks=[saved, kill],
        steps_per_execution=2,
        verbose=0,
    )
    assert kill.is_done
    assert ps.ClusterCoordinator(strategy).stats()["restores"] == 1
    model.check(epochs=2)
    assert history.epoch == [0, 1]
    assert history.history["examples"] == [ROWS, ROWS]


@pytest.mark.parametrize("consistency", ["async", "sync"])
def test_fit_without_service_trains_every_row_once_although_trainers_are_killed(
    cluster: ps.LocalCluster, consistency: str
) -> None:
    class KillEach(ps.callbacks.Callback):
        after = [30, 100]  # noqa: RUF012

        def on_train_batch_end(self, batch: int, logs: Any) -> None:  # noqa: ARG002
            if self.after and batch >= self.after[0]:
                self.after.pop(0)
                cluster.kill("worker", len(self.after))

    for strategy in made(cluster, consistency=consistency):
        model, kill = compiled(strategy, ROWS), KillEach()
        history = model.fit(
            fed(cluster, "trainers"), 2, callbacks=[kill], steps_per_execution=2, verbose=0
        )
        assert not kill.after
        model.check(epochs=2)
        assert history.history["examples"] == [ROWS, ROWS]


def test_save_after_trainer_kill_includes_its_partly_committed_closures(
    cluster: ps.LocalCluster, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class SaveAfterKill(ps.callbacks.Callback):
        def __init__(self, saved: ps.callbacks.Checkpoint) -> None:
            self._saved = saved

        def on_train_batch_end(self, batch: int, logs: Any) -> None:  # noqa: ARG002
            steps = self.model.optimizer.iterations
            begun, deadline_s = int(steps), time.monotonic() + 60
            while int(steps) < begun + 6:  # into the middle of closures, which have eight steps
                assert time.monotonic() < deadline_s
            cluster.kill("worker", 0)
            self._saved.manager.save().wait(60)
            raise KeyboardInterrupt

    for program in ("that is stopped", "that goes on"):
        monkeypatch.setattr(progress, "_PROGRAM", program)
        for strategy in made(cluster):
            model, saved = compiled(strategy, ROWS), ps.callbacks.Checkpoint(tmp_path)
            callbacks = [saved, SaveAfterKill(saved)][: 1 if "goes on" in program else 2]
            try:
                model.fit(fed(cluster, "trainers"), callbacks=callbacks, verbose=0)
            except KeyboardInterrupt:
                continue
            model.check(epochs=1)
            assert int(model.optimizer.iterations) == ROWS // BATCH


@pytest.mark.long
def test_fit_recovers_from_checkpoints_of_the_coordinator(
    cluster: ps.LocalCluster, strategy: ps.ParameterServerStrategy, tmp_path: pathlib.Path
) -> None:
    model = compiled(strategy, ROWS)
    manager = ps.CheckpointManager(
        ps.Checkpoint(model=model, optimizer=model.optimizer), tmp_path, 2
    )
    ps.ClusterCoordinator(strategy, checkpoint=manager)
    manager.save()

    class KillOnce(ps.callbacks.Callback):
        killed = False

        def on_train_batch_end(self, batch: int, logs: Any) -> None:  # noqa: ARG002
            if batch > 40 and not self.killed:
                self.killed = True
                cluster.kill("ps", 1)

    history = model.fit(
        dataset(ROWS).distribute(ds.ShardingPolicy.DYNAMIC, cluster.service, job_name="mine"),
        callbacks=[KillOnce()],
        verbose=0,
    )
    model.check(epochs=1)
    assert history.history["examples"] == [ROWS]


@pytest.mark.long
@pytest.mark.parametrize("by", ["service", "trainers"])
def test_restarted_program_resumes_fit_from_its_checkpoint(
    cluster: ps.LocalCluster, tmp_path: pathlib.Path, by: str
) -> None:
    """The second run has one trainer fewer if trainers read by themselves, without the service."""
    servers, trainers = (cluster.cluster_spec.job_tasks(job) for job in ("ps", "worker"))
    for is_killed in (True, False):
        left = 2 if is_killed or by == "service" else 1
        spec = {"worker": trainers[:left], "ps": servers}
        described = json.dumps({"spec": spec, "service": cluster.service, "by": by})
        command = [sys.executable, "-m", fitting_program.__name__, described, str(tmp_path)]
        program = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert program.stdout is not None
        assert program.stderr is not None
        try:
            if is_killed:
                assert program.stdout.readline().strip().isdigit(), program.stderr.read()
                time.sleep(0.1)
                continue
            output, errors = program.communicate(timeout=200)
            assert program.returncode == 0, errors
            assert "resuming the fit" in errors
            end = json.loads(output.splitlines()[-1])
            assert end == ["whole", [0, 1], [fitting_program.ROWS] * 2]
        finally:
            program.kill()
            program.communicate()


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_fit_trains_every_row_once_although_servers_are_killed_at_random(
    cluster: ps.LocalCluster,
    strategy: ps.ParameterServerStrategy,
    tmp_path: pathlib.Path,
    seed: int,
) -> None:
    chance = random.Random(seed)
    model = compiled(strategy, ROWS)
    saved = ps.callbacks.Checkpoint(tmp_path, every_steps=70, max_to_keep=2)
    kill = Kill(cluster, saved, seed, *sorted(chance.randrange(30, 300) for _ in range(3)))
    history = model.fit(
        dataset(ROWS).distribute(ds.ShardingPolicy.DYNAMIC, cluster.service),
        4,
        callbacks=[saved, kill],
        steps_per_execution=2,
        verbose=0,
        validation_data=columns(500, with_ids=False),
    )
    assert kill.is_done
    model.check(epochs=4)
    assert history.history["examples"] == [ROWS] * 4


@pytest.mark.long
def test_sync_fit_is_bitwise_equal_although_servers_are_killed(
    cluster: ps.LocalCluster, tmp_path: pathlib.Path
) -> None:
    ends: list[Any] = []
    for kills in ([], [50, 110]):
        for strategy in made(cluster, consistency="sync"):
            model = compiled(strategy, ROWS)
            saved = ps.callbacks.Checkpoint(tmp_path / str(len(kills)), every_steps=30)
            kill = Kill(cluster, saved, 3, *kills)
            history = model.fit(dataset(ROWS), 2, callbacks=[saved, kill], verbose=0)
            assert kill.is_done
            model.check(epochs=2)
            values = [variable.numpy() for variable in model.variables]
            history = {name: history.history[name] for name in ("loss", "auc", "examples")}
            ends.append((values, history))
    assert ends[0][1] == ends[1][1]
    for first, second in zip(ends[0][0], ends[1][0], strict=True):
        np.testing.assert_array_equal(first, second)


def test_unfinished_fit_resumes_in_one_process(tmp_path: pathlib.Path) -> None:
    """Without a cluster; a patched program name makes the second ``fit`` seem a new process."""
    data, rows = columns(1_000, with_ids=False), 1_000
    steps = rows // BATCH

    class Stop(ps.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any) -> None:  # noqa: ARG002
            if self.params["epochs"] == 3 and epochs == [0, 1] and batch == 24:
                raise KeyboardInterrupt

        def on_epoch_begin(self, epoch: int) -> None:
            epochs.append(epoch)

    def train(callbacks: list[Any]) -> tuple[Any, Any]:
        model = ps.models.LogisticRegression(
            ps.FeatureSchema(dense=["price"], categorical={"page": ps.Category(64)}, label="label")
        )
        model.compile(ps.optimizers.SGD(0.1), metrics=[ps.metrics.AUC()])
        history = model.fit(data, 3, callbacks=callbacks, batch_size=BATCH, verbose=0)
        return model, history.history

    epochs: list[int] = [-1]
    whole, expected = train([])
    epochs = []
    with pytest.raises(KeyboardInterrupt):
        train([ps.callbacks.Checkpoint(tmp_path, every_steps=16, asynchronous=False), Stop()])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pstrain.execution.progress._PROGRAM", "another")
        model, found = train([ps.callbacks.Checkpoint(tmp_path)])
    assert int(model.optimizer.iterations.numpy()) == 3 * steps
    for mine, theirs in zip(model.variables, whole.variables, strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy())
    assert {name: found[name] for name in ("loss", "auc", "examples")} == {
        name: expected[name] for name in ("loss", "auc", "examples")
    }
    again, _ = train([ps.callbacks.Checkpoint(tmp_path)])  # that fit has ended: this one is new
    assert int(again.optimizer.iterations.numpy()) == 3 * steps


class KillTrainer(ps.callbacks.Callback):
    """Kills a trainer in the middle of an evaluation."""

    def __init__(self, cluster: ps.LocalCluster, at: int) -> None:
        self._cluster, self._at = cluster, at
        self.is_done = False

    def on_test_batch_end(self, batch: int, logs: Any) -> None:  # noqa: ARG002
        if batch >= self._at and not self.is_done:
            self.is_done = True
            self._cluster.kill("worker", 0)


def test_evaluation_over_service_is_exact_although_a_trainer_is_killed(
    cluster: ps.LocalCluster, strategy: ps.ParameterServerStrategy
) -> None:
    model = evaluated(strategy)
    data = ds.Dataset.from_numpy(columns(ROWS, with_ids=False)).batch(BATCH)
    expected = model.evaluate(data, verbose=0, distributed=False)
    remote = data.distribute(ds.ShardingPolicy.DYNAMIC, cluster.service)
    kill = KillTrainer(cluster, at=20)
    found = model.evaluate(remote, verbose=0, steps_per_execution=2, callbacks=[kill])
    assert kill.is_done
    assert found["examples"] == expected["examples"] == ROWS
    # Batch boundaries differ, so sums may differ in their last bits.
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-6)
    assert found["auc"] == pytest.approx(expected["auc"], rel=1e-6)


@pytest.mark.long
def test_predictions_over_service_come_once_although_a_trainer_is_killed(
    cluster: ps.LocalCluster, strategy: ps.ParameterServerStrategy
) -> None:
    model = evaluated(strategy)
    data = ds.Dataset.from_numpy(columns(ROWS, with_ids=False)).batch(BATCH)

    class Kill(ps.callbacks.Callback):
        is_done = False

        def on_predict_batch_end(self, batch: int, logs: Any) -> None:  # noqa: ARG002
            if batch >= 20 and not self.is_done:
                self.is_done = True
                cluster.kill("worker", 1)

    kill = Kill()
    found = model.predict(
        data.distribute(ds.ShardingPolicy.DYNAMIC, cluster.service),
        distributed=True,
        steps_per_execution=2,
        callbacks=[kill],
    )
    assert kill.is_done
    expected = model.predict(data, distributed=False)
    np.testing.assert_allclose(np.sort(found), np.sort(expected), rtol=1e-5)


def evaluated(strategy: ps.ParameterServerStrategy) -> Any:
    """Returns a model whose probabilities differ from row to row."""
    with strategy.scope():
        model = ps.models.WideDeep(
            ps.FeatureSchema(dense=["price"], categorical={"page": ps.Category(64)}, label="label"),
            dim=4,
            hidden=(8,),
        )
        model.compile(ps.optimizers.SGD(0.1), metrics=[ps.metrics.AUC()])
    return model


def test_save_right_after_restore_keeps_the_position(
    cluster: ps.LocalCluster, tmp_path: pathlib.Path
) -> None:
    """The second save comes before any trainer has asked for an element again."""
    with counted(cluster, 2_000, pause_s=0.0) as program:
        program.run(until=500)
        checkpoint = ps.Checkpoint(**program.objects())
        for _ in range(2):
            checkpoint.restore(checkpoint.save(tmp_path))
        program.run()
        program.check()


@pytest.mark.long
def test_trainer_started_later_takes_part_in_fit(
    cluster: ps.LocalCluster, strategy: ps.ParameterServerStrategy
) -> None:
    cluster.kill("worker", 1)  # the supervisor starts another, which joins when it is ready
    model = compiled(strategy, ROWS)
    with strategy.scope():
        model.steps_of = ps.Variable(np.zeros((2, 1), np.int64), name="steps_of")
    coordinator = ps.ClusterCoordinator(strategy)

    class Wait(ps.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any) -> None:  # noqa: ARG002
            deadline_s = time.monotonic() + 60
            while coordinator.live_trainers() != {0, 1}:
                assert time.monotonic() < deadline_s, coordinator.stats()
                time.sleep(0.02)

        def on_epoch_end(self, epoch: int, logs: Any) -> None:  # noqa: ARG002
            # A reader keeps the rows that it holds, so the other may find none left in an epoch.
            self.stop_training = bool((model.steps_of.numpy() > 0).all())

    history = model.fit(
        dataset(ROWS).distribute(ds.ShardingPolicy.DYNAMIC, cluster.service),
        epochs=20,
        callbacks=[Wait()],
        steps_per_execution=1,
        verbose=0,
    )
    epochs = len(history.epoch)
    model.check(epochs)
    assert history.history["examples"] == [ROWS] * epochs
    steps = model.steps_of.numpy().reshape(-1)
    assert steps.sum() >= epochs * ROWS // BATCH
    assert (steps > 0).all(), steps
