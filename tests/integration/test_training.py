"""fit, evaluate and predict over a real cluster, fed by a real data service."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dataservice as ds
import pstrain as ps
from dataservice.errors import UserFunctionError
from pstrain.checkpoints import manifest
from pstrain.errors import DataError, InvalidArgumentError
from tests.waiting import wait_until

ROWS = 20_000


def clicks(rows: int = ROWS, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    page = rng.integers(0, 50, rows)
    price = rng.normal(size=rows).astype(np.float32)
    clicked = (page % 2 + 0.5 * price + 0.1 * rng.normal(size=rows) > 0.5).astype(np.int64)
    return {"page": page, "price": price, "label": clicked}


SCHEMA = ps.FeatureSchema(dense=["price"], categorical={"page": ps.Category(64)}, label="label")


@pytest.fixture(scope="module")
def strategy(cluster: ps.LocalCluster) -> Iterator[ps.ParameterServerStrategy]:
    strategy = ps.ParameterServerStrategy(
        cluster.resolver, variable_partitioner=ps.partitioners.FixedShardsPartitioner(2)
    )
    yield strategy
    ps.ClusterCoordinator(strategy).close()


def compiled(strategy: ps.ParameterServerStrategy | None) -> Any:
    def make() -> Any:
        model = ps.models.WideDeep(SCHEMA, dim=4, hidden=(8,))
        model.compile(ps.optimizers.Adagrad(0.1), metrics=[ps.metrics.AUC()])
        return model

    if strategy is None:
        return make()
    with strategy.scope():
        return make()


def test_fit_reads_every_row_of_the_service_once_per_epoch_and_learns(
    cluster: ps.LocalCluster, strategy: ps.ParameterServerStrategy
) -> None:
    model = compiled(strategy)
    data = ds.Dataset.from_numpy(clicks()).shuffle(1000, seed=3).batch(256)
    remote = data.distribute(ds.ShardingPolicy.DYNAMIC, cluster.service)
    history = model.fit(remote, epochs=3, validation_data=data, verbose=0)
    assert history.history["examples"] == [ROWS] * 3
    assert history.history["val_auc"][-1] > 0.9
    assert history.history["loss"][-1] < history.history["loss"][0]
    assert int(model.optimizer.iterations.numpy()) >= 3 * ROWS // 256


def test_cluster_learns_as_well_as_one_process(
    strategy: ps.ParameterServerStrategy,
) -> None:
    data = ds.Dataset.from_numpy(clicks()).batch(256)
    held_out = ds.Dataset.from_numpy(clicks(seed=1)).batch(512)
    scores = []
    for place in (strategy, None):
        model = compiled(place)
        model.fit(data, epochs=8, verbose=0)
        scores.append(model.evaluate(held_out, verbose=0))
    assert scores[0]["examples"] == scores[1]["examples"] == ROWS
    assert abs(scores[0]["auc"] - scores[1]["auc"]) < 0.02, scores


def test_weights_scale_losses_and_early_stopping_restores_the_best_epoch(
    cluster: ps.LocalCluster, strategy: ps.ParameterServerStrategy, tmp_path: pathlib.Path
) -> None:
    columns = clicks(1_000)
    columns["w"] = np.where(columns["page"] < 25, 0.0, 2.0).astype(np.float32)
    weighted = np.where(columns["label"] == 1, 3.0, 1.0) * columns["w"]
    data = ds.Dataset.from_numpy(columns).batch(100)
    remote = data.distribute(ds.ShardingPolicy.DYNAMIC, cluster.service)
    for source in (data, remote):
        model = compiled(strategy)
        model.optimizer.learning_rate = 0.0
        options: dict[str, Any] = {"class_weight": {1: 3.0}, "sample_weight": "w", "verbose": 0}
        loss = model.fit(source, **options).history["loss"][0]
        given = model.predict(columns).astype(np.float64)
        each = -np.log(np.where(columns["label"] == 1, given, 1 - given))
        assert loss == pytest.approx(np.mean(weighted * each), rel=1e-4)
        logs = model.evaluate(source, sample_weight="w", verbose=0)
        assert logs["loss"] == pytest.approx(np.mean(columns["w"] * each), rel=1e-4)
    model.optimizer.learning_rate = 0.5
    best = ps.callbacks.EarlyStopping(
        "loss", mode="max", restore_best_weights=True, directory=tmp_path
    )
    after: list[Any] = []

    class Keep(ps.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:  # noqa: ARG002
            after.append(self.model.predict(columns))

    model.fit(data, 5, callbacks=[Keep(), best], verbose=0)
    assert len(after) == 2
    np.testing.assert_array_equal(model.predict(columns), after[0])
    with pytest.raises(InvalidArgumentError, match=r"EarlyStopping\(\.\.\., directory="):
        model.fit(data, callbacks=[ps.callbacks.EarlyStopping(restore_best_weights=True)])


def test_stop_training_within_an_epoch_counts_steps_in_flight(
    strategy: ps.ParameterServerStrategy, tmp_path: pathlib.Path
) -> None:
    class Stop(ps.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: dict[str, float]) -> None:  # noqa: ARG002
            self.stop_training = True

    model = compiled(strategy)
    data = ds.Dataset.from_numpy(clicks(20_000)).batch(100)
    saving = ps.callbacks.Checkpoint(tmp_path)
    history = model.fit(data, 2, callbacks=[Stop(), saving], steps_per_execution=1, verbose=0)
    steps = history.history["examples"][0] / 100
    assert history.epoch == [0]
    # Four of each trainer, and three for one that came when the other had all of them.
    assert steps == int(model.optimizer.iterations.numpy()) <= 11
    position = manifest.read(manifest.find(tmp_path))["objects"]["fit"]["state"]["data"]
    assert (position["next"], position["again"]) == (steps, [])


def test_repeated_fits_learn_equally_well(strategy: ps.ParameterServerStrategy) -> None:
    data = ds.Dataset.from_numpy(clicks(5_000)).batch(100)
    ends = []
    for _ in range(3):
        model = compiled(strategy)
        history = model.fit(data, epochs=2, validation_data=data, verbose=0)
        ends.append(history.history["val_loss"][-1])
        assert int(model.optimizer.iterations.numpy()) == 100
        ps.ClusterCoordinator(strategy).close()
    assert max(ends) - min(ends) < 0.05, ends


def test_distributed_evaluation_matches_sklearn(strategy: ps.ParameterServerStrategy) -> None:
    from sklearn.metrics import log_loss, roc_auc_score

    columns = clicks(5_000)
    model = compiled(strategy)
    model.fit(columns, epochs=1, batch_size=128, verbose=0)
    logs = model.evaluate(columns, verbose=0, batch_size=64)
    probabilities = model.predict(columns)
    assert probabilities.shape == (5_000,)
    assert logs["auc"] == pytest.approx(roc_auc_score(columns["label"], probabilities), abs=1e-3)
    assert logs["loss"] == pytest.approx(log_loss(columns["label"], probabilities), abs=1e-4)


def test_steps_per_epoch_bounds_an_endless_dataset(strategy: ps.ParameterServerStrategy) -> None:
    model = compiled(strategy)
    data = ds.Dataset.from_numpy(clicks(1_000)).repeat().batch(100)
    history = model.fit(data, epochs=2, steps_per_epoch=25, verbose=0, steps_per_execution=4)
    assert history.history["examples"] == [2_500.0, 2_500.0]


def test_functions_of_datasets_read_by_trainers_are_shipped(
    strategy: ps.ParameterServerStrategy,
) -> None:
    def cheaper(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {**columns, "price": columns["price"] - 1}

    model = compiled(strategy)
    data = ds.Dataset.from_numpy(clicks(2_000)).map(cheaper).batch(100)
    history = model.fit(data, validation_data=data, verbose=0)
    assert history.history["examples"] == [2_000.0]
    assert model.predict(data.filter(lambda columns: columns["page"] < 50)).shape == (2_000,)


def test_bad_data_is_an_error_and_training_can_go_on(
    cluster: ps.LocalCluster, strategy: ps.ParameterServerStrategy
) -> None:
    model = compiled(strategy)
    with pytest.raises(DataError, match="label"):
        model.fit({**clicks(100), "label": np.arange(100)}, verbose=0)
    with pytest.raises(DataError, match="empty"):
        model.fit({name: column[:0] for name, column in clicks(10).items()}, verbose=0)

    def broken(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if len(columns["page"]) > 10:
            raise ValueError("cannot do this page")
        return columns

    data = ds.Dataset.from_numpy(clicks(2_000)).map(broken).batch(100)
    with pytest.raises(UserFunctionError, match="cannot do this page"):
        model.fit(data.distribute(ds.ShardingPolicy.DYNAMIC, cluster.service), verbose=0)
    assert model.fit(clicks(1_000), verbose=0).history["examples"] == [1_000.0]


def test_rows_of_killed_trainer_are_trained_by_the_others_without_a_service(
    breakable: ps.LocalCluster,
) -> None:
    class Killer(ps.callbacks.Callback):
        done = False

        def on_train_batch_end(self, steps: int, logs: dict[str, float]) -> None:  # noqa: ARG002
            if steps > 20 and not self.done:
                self.done = True
                breakable.kill("worker", 0)

    strategy = ps.ParameterServerStrategy(breakable.resolver)
    model = compiled(strategy)
    coordinator = ps.ClusterCoordinator(strategy)
    # A trainer that is killed before it has joined would not count as lost.
    wait_until(lambda: coordinator.live_trainers() == {0, 1}, "both trainers")
    killer = Killer()
    history = model.fit(
        ds.Dataset.from_numpy(clicks(40_000)).batch(100),
        epochs=2,
        callbacks=[killer],
        verbose=0,
        steps_per_execution=2,
    )
    assert killer.done
    assert history.history["examples"] == [40_000, 40_000]
    assert int(model.optimizer.iterations) == 800
    coordinator.close()


def test_remaining_trainer_trains_on_all_rows(breakable: ps.LocalCluster) -> None:
    """The passes are shuffled, each in another order, and the first epochs end within a pass."""
    breakable.kill("worker", 1)
    strategy = ps.ParameterServerStrategy(breakable.resolver)
    model = compiled(strategy)
    data = ds.Dataset.from_numpy(clicks(1_000)).shuffle(1_000, seed=3).batch(10)
    history = model.fit(data, epochs=2, steps_per_epoch=30, verbose=0, steps_per_execution=8)
    assert history.history["examples"] == [300, 300]
    history = model.fit(data, epochs=2, verbose=0)
    assert history.history["examples"] == [1_000, 1_000]
    assert int(model.optimizer.iterations) == 60 + 200
    ps.ClusterCoordinator(strategy).close()


def test_endless_or_nondeterministic_data_is_sharded_over_trainers(
    strategy: ps.ParameterServerStrategy,
) -> None:
    model = compiled(strategy)
    columns = clicks(1_000)
    endless = ds.Dataset.from_numpy(columns).batch(100).repeat()
    assert model.fit(endless, steps_per_epoch=15, verbose=0).history["examples"] == [1_500]
    made = ds.Dataset.from_numpy(columns).map(lambda c: c, deterministic=False).batch(100)
    assert model.fit(made, epochs=2, verbose=0).history["examples"] == [1_000, 1_000]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_interrupted_evaluation_leaves_no_closures_or_readers(
    error: type[BaseException], cluster: ps.LocalCluster, strategy: ps.ParameterServerStrategy
) -> None:
    model = compiled(strategy)
    data = ds.Dataset.from_numpy(clicks()).batch(100)
    shared = data.distribute(ds.ShardingPolicy.DYNAMIC, cluster.service)

    class Breaks(ps.callbacks.Callback):
        def on_test_batch_end(self, batch: int, logs: dict[str, float]) -> None:  # noqa: ARG002
            raise error

        on_predict_batch_end = on_test_batch_end

    breaks: dict[str, Any] = {"callbacks": [Breaks()], "steps_per_execution": 1}
    for each in (shared, data):
        with pytest.raises(error):
            model.evaluate(each, verbose=0, **breaks)
        with pytest.raises(error):
            model.predict(each, distributed=True, **breaks)
        ps.ClusterCoordinator(strategy).join()
    assert model.evaluate(shared, verbose=0)["examples"] == ROWS
