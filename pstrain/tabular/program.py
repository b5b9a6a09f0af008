"""``pstrain train``: from a user's files to a folder with a trained model.

Decides nothing about columns and computes nothing of models. Invariant: what is learnt from data
(values, statistics, weights) comes from training rows only; held-out rows are only scored. A run
that fails leaves an older model in its folder as it was, and leaves no new folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

import dataservice as ds
import pstrain as ps
from pstrain.callbacks import LearningRateScheduler, ProgressBar
from pstrain.checkpoints.checkpoint import checkpoints
from pstrain.checkpoints.manifest import remove
from pstrain.compiling import compile_kernels
from pstrain.errors import AlreadyExistsError, DataError, InvalidArgumentError
from pstrain.launch.activity import Activity, activities
from pstrain.losses import of_model
from pstrain.output.console import Console
from pstrain.output.folders import folder_to_fill
from pstrain.tabular import preparation
from pstrain.tabular.choices import LOSSES, MODELS, OPTIMIZERS, make_model
from pstrain.tabular.files import check_columns, open_files, open_typed, plain_errors
from pstrain.tabular.holdout import HoldOut, Part
from pstrain.tabular.inspection import ColumnOptions, Findings, inspect
from pstrain.tabular.measures import NUMBER_METRICS, Score, scores_of
from pstrain.tabular.preparation import Preparation

SAMPLE_ROWS = 2**18
_SHUFFLE_ROWS = 65_536
_SAMPLE_SHUFFLE_ROWS = 8_192
_EVALUATION_ROWS = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """The options of ``pstrain train``. ``model``, ``learning_rate`` None: the program chooses."""

    data: str
    columns: ColumnOptions
    out: Path
    validation: float = 0.1
    validation_data: str | None = None
    overwrite: bool = False
    model: str | None = None
    dim: int = 16
    hidden: tuple[int, ...] = (64, 32)
    loss: str = LOSSES[0]
    optimizer: str = "adagrad"
    learning_rate: float | None = None
    batch_size: int = 1024
    epochs: int = 3
    seed: int = 0
    local: bool = False
    workers: int = 2
    ps: int = 2
    data_workers: int = 2
    delimiter: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one training run. ``scores``: over the validation rows."""

    scores: Sequence[Score]
    examples_per_s: float
    rows_train: int
    rows_validation: int
    checkpoint: str
    roles: Sequence[Activity]


def train(config: TrainConfig, console: Console) -> Outcome:
    """Trains a model and saves it, with its preparation, in ``config.out``."""
    _check_out(config)
    console.log(f"inspecting {config.data}")
    training = _training(config)
    findings = inspect(_sample(training, config), config.columns)
    _print_findings(findings, console)
    validation = _validation(config, findings.preparation)
    _try_validation(validation, findings.preparation, config)
    with folder_to_fill("--out", config.out):
        return _train(config, console, findings, training, validation)


def _train(
    config: TrainConfig,
    console: Console,
    findings: Findings,
    training: ds.Dataset,
    validation: ds.Dataset,
) -> Outcome:
    console.log("compiling kernels, which takes up to a minute the first time on a machine")
    compile_kernels(lambda text: console.log(f"  {text}"))
    with _cluster(config, console) as (cluster, strategy):
        with ExitStack() as scope:
            if strategy is not None:
                scope.enter_context(strategy.scope())
            model = _model(config, findings, console)
        rows = training.map(findings.preparation, format="arrow")
        rows = rows.shuffle(_SHUFFLE_ROWS, seed=config.seed).batch(config.batch_size)
        held_out = validation.map(findings.preparation, format="arrow").batch(_EVALUATION_ROWS)
        if cluster is not None:
            rows = rows.distribute(ds.ShardingPolicy.DYNAMIC, cluster.service)
            held_out = held_out.distribute(ds.ShardingPolicy.DYNAMIC, cluster.service)
        console.log(f"training {model.kind} for {config.epochs} epochs")
        with plain_errors():
            history = model.fit(
                rows,
                epochs=config.epochs,
                sample_weight=config.columns.weights,
                callbacks=[LearningRateScheduler(_rates(config)), ProgressBar()],
                verbose=0,
            )
            console.log("evaluating on the validation rows")
            scores = model.evaluate(held_out, verbose=0)
        path = _save(model, findings.preparation, config.out)
        roles = activities(cluster, strategy.parameters) if cluster and strategy else []
    return Outcome(
        scores=scores_of(scores),
        examples_per_s=sum(history.history["examples_per_s"]) / config.epochs,
        rows_train=int(history.history["examples"][-1]),
        rows_validation=int(scores["examples"]),
        checkpoint=path,
        roles=roles,
    )


def _training(config: TrainConfig) -> ds.Dataset:
    """Returns the rows to train on, as they are in the files."""
    columns = config.columns
    rows = open_typed(config.data, columns.types, columns.types, config.delimiter)
    check_columns(rows, [columns.label], config.data)
    return rows if config.validation_data is not None else _part(rows, config, "training")


def _validation(config: TrainConfig, prepared: Preparation) -> ds.Dataset:
    """Returns the rows to validate on, as they are in the files."""
    if config.validation_data is None:
        rows = open_files(config.data, config.columns.types, config.delimiter)
        return _part(rows, config, "validation")
    rows = open_files(config.validation_data, prepared.types, config.delimiter)
    check_columns(rows, (prepared.label, *prepared.columns), config.validation_data)
    return rows


def _part(rows: ds.Dataset, config: TrainConfig, part: Part) -> ds.Dataset:
    held_out = HoldOut(config.validation, part, config.seed)
    return rows.flat_map(held_out, format="arrow", schema=rows.schema)


def _try_validation(validation: ds.Dataset, prepared: Preparation, config: TrainConfig) -> None:
    """Raises DataError, before training, if there are no rows or the first ones do not fit."""
    with plain_errors(), iter(validation.map(prepared, format="arrow")) as rows:
        if any(batch.num_rows for batch in rows):
            return
    if config.validation_data is not None:
        raise DataError(f"--validation-data {config.validation_data!r} holds no rows")
    raise DataError(
        f"--validation {config.validation} leaves no rows of {config.data!r} to validate "
        "on: give a larger share, or other files by --validation-data"
    )


def _sample(training: ds.Dataset, config: TrainConfig) -> pa.Table:
    """Returns a sample of rows from all over the files."""
    batches, rows = [], 0
    shuffled = training.shuffle(_SAMPLE_SHUFFLE_ROWS, seed=config.seed)
    with plain_errors(), iter(shuffled) as iterator:
        for batch in iterator:
            batches.append(batch)
            rows += batch.num_rows
            if rows >= SAMPLE_ROWS:
                break
    if not rows:
        raise DataError(f"{config.data!r} holds no rows to train on")
    return pa.Table.from_batches(batches)


def _print_findings(findings: Findings, console: Console) -> None:
    log1p = findings.preparation.log1p
    rows = []
    for name, reason in findings.reasons.items():
        category = findings.schema.categorical.get(name)
        more = f"{category.buckets:,} buckets" if category else ""
        rows.append((name, reason, "logarithm taken" if name in log1p else more))
    console.table("Columns (correct them with --dense, --categorical, --ignore)", rows)
    console.print()


@contextmanager
def _cluster(
    config: TrainConfig, console: Console
) -> Iterator[tuple[ps.LocalCluster | None, ps.ParameterServerStrategy | None]]:
    """Yields the cluster and its strategy, or None twice for training in this process."""
    if config.local:
        yield None, None
        return
    console.log(
        f"starting 1 dispatcher, {config.data_workers} data workers, {config.ps} parameter "
        f"servers and {config.workers} trainers"
    )
    with ps.LocalCluster(config.workers, config.ps, config.data_workers) as cluster:
        partitioner = ps.partitioners.MinSizePartitioner(max_shards=config.ps)
        strategy = ps.ParameterServerStrategy(cluster.resolver, variable_partitioner=partitioner)
        coordinator = ps.ClusterCoordinator(strategy)
        try:
            yield cluster, strategy
        finally:
            coordinator.close()


def _model(config: TrainConfig, findings: Findings, console: Console) -> Any:
    kind = config.model
    if kind is None and not findings.schema.categorical:
        kind_of = "linear" if findings.preparation.predicts_numbers else "logistic"
        console.log(f"no categorical column: the model is a {kind_of} regression")
        kind = "logistic_regression"
    model = make_model(kind or MODELS[0], findings.schema, config.dim, config.hidden, config.seed)
    _, make_optimizer = OPTIMIZERS[config.optimizer]
    loss, metrics = _objective(config, findings)
    model.compile(make_optimizer(_rates(config)(0)), metrics=metrics, loss=loss)
    return model


def _objective(config: TrainConfig, findings: Findings) -> tuple[Any, list[str]]:
    """Returns the loss and the names of the metrics that suit the labels."""
    if findings.label_scale is None:
        return config.loss, ["auc"]
    loss = of_model(config.loss)
    return ps.losses.Standardized(loss, *findings.label_scale), list(NUMBER_METRICS)


def _rates(config: TrainConfig) -> Callable[[int], float]:
    """Returns the learning rate by epoch: from the full rate down to a tenth of it in the last."""
    usual, _ = OPTIMIZERS[config.optimizer]
    rate = usual if config.learning_rate is None else config.learning_rate
    return lambda epoch: rate * (1 - 0.9 * epoch / max(config.epochs - 1, 1))


def _check_out(config: TrainConfig) -> None:
    out = config.out
    if out.exists() and not out.is_dir():
        raise InvalidArgumentError(f"--out must name a folder, and {str(out)!r} is a file")
    if config.overwrite:
        return
    if (out / preparation.FILE).exists() or checkpoints(out):
        raise AlreadyExistsError(
            f"{str(out)!r} holds a trained model or checkpoints; name another folder with --out, "
            "or pass --overwrite, which removes them once the new model is saved"
        )


def _save(model: Any, prepared: Preparation, out: Path) -> str:
    """Saves the model into ``out``, then removes older ones; returns the checkpoint's path."""
    path = ps.Checkpoint(model=model, optimizer=model.optimizer).save(out)
    try:
        prepared.save(out)
    except BaseException:
        # Left behind, it would be the newest checkpoint beside an older model's preparation.
        remove(path)
        raise
    for older in checkpoints(out)[:-1]:
        remove(older)
    return path
