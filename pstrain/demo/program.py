"""The demonstration from files to a trained model: every step that a training program takes.

Trains as a user's program would, by the public interface. Invariant: whatever ends the program,
also an error or Ctrl-C, no process of its cluster is left.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import dataservice as ds
import pstrain as ps
from pstrain.callbacks import CallbackList, LearningRateScheduler, ProgressBar
from pstrain.checkpoints.checkpoint import checkpoints
from pstrain.checkpoints.objects import read_config
from pstrain.compiling import compile_kernels
from pstrain.demo import features, flights, plot
from pstrain.demo.loop import train_one_epoch
from pstrain.demo.trace import Trace
from pstrain.launch.activity import Activity, activities
from pstrain.output.console import Console
from pstrain.output.folders import folder_to_fill

LEARNING_RATE = 0.005
_ACCUMULATOR = 1e-6
_SHUFFLE_ROWS = 65_536
_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoConfig:
    """The options of ``pstrain demo``; ``data_dir`` and ``out`` None: the user's cache folder."""

    data_dir: Path | None = None
    out: Path | None = None
    epochs: int = 5
    batch_size: int = 1024
    workers: int = 2
    ps: int = 2
    data_workers: int = 2
    seed: int = 0
    plot: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one demonstration."""

    files: flights.FlightFiles
    test_auc: float
    test_logloss: float
    examples: int
    examples_per_s: float
    checkpoint: str
    picture: str | None
    roles: list[Activity]


def run(config: DemoConfig, console: Console) -> Outcome:
    """Runs the whole demonstration; blocks for about half a minute."""
    out = config.out or flights.cache_folder().parent / "demo"
    with folder_to_fill("--out", out):
        return _run(config, out, console)


def _run(config: DemoConfig, out: Path, console: Console) -> Outcome:
    console.log("reading the flights that left New York in 2013")
    files = flights.prepare(config.data_dir)
    done = "wrote" if files.written else "found"
    console.log(
        f"{done} {files.rows_train:,} flights to train on and {files.rows_test:,} to test on in "
        f"{Path(files.test).parent}"
    )
    console.log("compiling kernels, which takes up to a minute the first time on a machine")
    compile_kernels(lambda text: console.log(f"  {text}"))
    console.log(
        f"starting 1 dispatcher, {config.data_workers} data workers, {config.ps} parameter "
        f"servers and {config.workers} trainers, each in its own process"
    )
    with ps.LocalCluster(config.workers, config.ps, config.data_workers) as cluster:
        coordinator = ps.ClusterCoordinator(_strategy(cluster, config))
        try:
            return _Demo(config, out, console, files, cluster, coordinator).run()
        finally:
            coordinator.close()


def _strategy(cluster: ps.LocalCluster, config: DemoConfig) -> ps.ParameterServerStrategy:
    partitioner = ps.partitioners.MinSizePartitioner(max_shards=config.ps)
    return ps.ParameterServerStrategy(cluster.resolver, variable_partitioner=partitioner)


def _rates(epochs: int) -> Callable[[int], float]:
    """Returns the learning rate by epoch: from the full rate down to a tenth of it in the last."""
    return lambda epoch: LEARNING_RATE * (1 - 0.9 * epoch / max(epochs - 1, 1))


class _Demo:
    """One run of the demonstration on a cluster that is up."""

    def __init__(
        self,
        config: DemoConfig,
        out: Path,
        console: Console,
        files: flights.FlightFiles,
        cluster: ps.LocalCluster,
        coordinator: ps.ClusterCoordinator,
    ) -> None:
        self._config = config
        self._console = console
        self._files = files
        self._cluster = cluster
        self._coordinator = coordinator
        self._out = out

    def run(self) -> Outcome:
        numeric = ds.Dataset.from_parquet(self._files.train, columns=list(flights.NUMERIC))
        ranks = features.Ranks.of(numeric.to_table())
        train, test = self._datasets(ranks)
        model = self._model()
        trace = Trace()
        self._train(model, train, test, trace)
        self._console.log("evaluating on the test flights")
        scores = model.evaluate(test, verbose=0)
        path = self._save(model)
        self._predict(path, ranks)
        picture = self._draw(trace)
        return Outcome(
            files=self._files,
            test_auc=scores["auc"],
            test_logloss=scores["loss"],
            examples=trace.examples,
            examples_per_s=trace.examples / max(trace.seconds, 1e-9),
            checkpoint=path,
            picture=picture,
            roles=activities(self._cluster, self._coordinator.strategy.parameters),
        )

    def _datasets(self, ranks: features.Ranks) -> tuple[ds.Dataset, ds.Dataset]:
        """Returns the training and the test rows as the data service delivers them."""
        train = features.operators(ds.Dataset.from_parquet(self._files.train), ranks)
        train = train.shuffle(_SHUFFLE_ROWS, seed=self._config.seed).batch(self._config.batch_size)
        service = self._cluster.service
        dataset_id = ds.register_dataset(service, train)
        self._console.log(f"registered the training rows as dataset {dataset_id}")
        train = ds.from_dataset_id(
            ds.ShardingPolicy.DYNAMIC, service, dataset_id, job_name="training"
        )
        test = features.operators(ds.Dataset.from_parquet(self._files.test), ranks).batch(4096)
        return train, test.distribute(ds.ShardingPolicy.DYNAMIC, service)

    def _model(self) -> Any:
        with self._coordinator.strategy.scope():
            model = ps.models.WideDeep(
                features.schema(), dim=16, hidden=(128, 64), seed=self._config.seed
            )
            model.compile(
                ps.optimizers.Adagrad(LEARNING_RATE, initial_accumulator_value=_ACCUMULATOR),
                metrics=[ps.metrics.AUC()],
            )
        return model

    def _train(self, model: Any, train: ds.Dataset, test: ds.Dataset, trace: Trace) -> None:
        """Trains the first epoch by a loop written by hand, the others by ``fit``."""
        epochs = self._config.epochs
        per_worker = self._coordinator.create_per_worker_dataset(train)
        bar = ProgressBar(examples_per_epoch=self._files.rows_train)
        callbacks = [trace, bar]
        self._console.log("epoch 1, by a hand-written loop over coordinator.schedule")
        calls = CallbackList(callbacks, model, epochs=epochs, steps=None)
        train_one_epoch(self._coordinator, model, per_worker, calls)
        scores = model.evaluate(test, verbose=0)
        trace.record_scores(auc=scores["auc"], loss=scores["loss"])
        self._console.log(f"  AUC on the test flights: {scores['auc']:.4f}")
        if epochs > 1:
            self._console.log("the other epochs, by model.fit")
            model.fit(
                per_worker,
                epochs=epochs,
                initial_epoch=1,
                validation_data=test,
                callbacks=[LearningRateScheduler(_rates(epochs)), *callbacks],
                verbose=0,
            )

    def _save(self, model: Any) -> str:
        folder = self._out / "checkpoints"
        path = ps.Checkpoint(model=model, optimizer=model.optimizer).save(folder)
        if self._config.out is None:
            for older in checkpoints(folder)[:-1]:
                shutil.rmtree(older, ignore_errors=True)
        self._console.log(f"the parameter servers wrote the checkpoint {path}")
        return path

    def _predict(self, path: str, ranks: features.Ranks) -> None:
        """Predicts a few flights, in this process, by a model made from the checkpoint alone."""
        self._console.log("loading the checkpoint into a new model in this process")
        model = ps.models.from_config(read_config(path))
        ps.Checkpoint(model=model).restore(path)
        flown = ds.Dataset.from_parquet(self._files.test).to_table()
        chosen = np.random.default_rng(self._config.seed).choice(len(flown), _SHOWN, replace=False)
        some = flown.take(np.sort(chosen))
        late = model.predict(features.operators(ds.Dataset.from_table(some), ranks).batch(_SHOWN))
        rows = [("flight", "route", "month", "hour", "predicted chance of delay", "was delayed")]
        for row, chance in zip(some.to_pylist(), late, strict=True):
            rows.append(
                (
                    f"{row['carrier']} {row['flight']}",
                    f"{row['origin']} - {row['dest']}",
                    str(row["month"]),
                    str(row["hour"]),
                    f"{chance:.0%}",
                    "yes" if row[flights.LABEL] else "no",
                )
            )
        self._console.table("Some test flights", rows)

    def _draw(self, trace: Trace) -> str | None:
        if not self._config.plot:
            return None
        target = self._out / "training.png"
        if plot.draw(trace, target):
            return str(target)
        self._console.log("no plot: matplotlib is missing (pip install 'pstrain[demo]')")
        return None
