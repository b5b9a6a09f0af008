"""How much quality does asynchronous training on servers cost, against one process without them?

The same model trains on the same rows, in one process without servers and in `async` with 1, 2 and
4 trainers; reported are the test AUC of each, and its distance from that of the one process.
`flights`: the task of `pstrain demo`, tested on days that were held out. `clicks`: a Criteo-shaped
log whose clicks were drawn from a planted model, so that the best reachable AUC, which is that of
the planted model itself, is known. Prints a Markdown table for each task, then one JSON line.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import dataservice as ds
import pstrain as ps
from bench import data
from bench.columns import CARDINALITIES, CATEGORICAL, DENSE
from bench.options import new_parser
from bench.peers import children
from pstrain.demo import features, flights

TOLERANCE = 0.002
_BINS = 2**15
_CLICK_FIELDS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task's rows, which every run reads in the same batches; ``train`` is a Parquet file."""

    name: str
    schema: ps.FeatureSchema
    train: str
    test: pa.Table
    epochs: int
    batch: int
    rate: float
    reachable: float = math.nan

    def model(self) -> Any:
        """Returns a compiled model; call this in a strategy's scope, or outside for one process."""
        model = ps.models.WideDeep(self.schema, dim=8, hidden=(32, 16), seed=1)
        optimizer = ps.optimizers.Adagrad(self.rate, initial_accumulator_value=1e-3)
        model.compile(optimizer, metrics=[ps.metrics.AUC()])
        return model


def flights_task(folder: Path, limit: int | None = None) -> Task:
    """Returns the task of late flights: the rows and features of `pstrain demo`."""
    files = flights.prepare()
    numeric = ds.Dataset.from_parquet(files.train, columns=list(flights.NUMERIC)).to_table()
    ranks = features.Ranks.of(numeric)
    tables = []
    for paths in (files.train, files.test):
        rows = ds.Dataset.from_parquet(paths)
        rows = rows if limit is None else rows.take(limit)
        tables.append(features.operators(rows, ranks).to_table())
    return Task(
        name="flights",
        schema=features.schema(),
        train=_written(tables[0], folder / "flights.parquet"),
        test=tables[1],
        epochs=1 if limit else 2,
        batch=1024,
        rate=0.02,
    )


def clicks_task(folder: Path, rows: int) -> Task:
    """Returns the task of clicks drawn from `planted_logit` of dense columns and small fields."""
    order = np.argsort(CARDINALITIES)[:_CLICK_FIELDS]
    fields = [CATEGORICAL[k] for k in order]
    columns = data.generate(rows + rows // 4, label_dtype="int64")
    dense = np.stack([columns[name] for name in DENSE], axis=1)
    ids = np.stack([columns[name] for name in CATEGORICAL], axis=1)
    logits = _logits_of_fields(dense, ids, order)
    clicked = np.random.default_rng(7).random(len(logits)) < 1 / (1 + np.exp(-logits))
    table = pa.table(
        {
            "label": clicked.astype(np.int64),
            **{name: np.log1p(columns[name]) for name in DENSE},
            **{name: columns[name] for name in fields},
        }
    )
    schema = ps.FeatureSchema(
        dense=DENSE, categorical={name: ps.Category(2**15) for name in fields}
    ).normalized(table.slice(0, rows).to_batches())
    return Task(
        name="clicks",
        schema=schema,
        train=_written(table.slice(0, rows), folder / "clicks.parquet"),
        test=table.slice(rows),
        epochs=1,
        batch=1024,
        rate=0.02,
        reachable=auc(clicked[rows:], logits[rows:]),
    )


def _written(table: pa.Table, path: Path) -> str:
    pq.write_table(table, path)
    return str(path)


def _logits_of_fields(dense: np.ndarray, ids: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Returns the planted log-odds with the weights of other fields at their mean, which is 0."""
    zero = np.full_like(ids, 1 << 23)
    zero[:, kept] = ids[:, kept]
    return data.planted_logit(dense, zero)


def auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Returns the area under the ROC curve of scores in any range."""
    metric = ps.metrics.AUC(bins=_BINS)
    chances = (1 / (1 + np.exp(-scores.astype(np.float64)))).astype(np.float32)
    return metric.compute(metric.update(metric.initial_state(), labels, chances))


def _measured(task: Task, model: Any) -> float:
    batches = ds.Dataset.from_parquet(task.train).shuffle(1 << 16, seed=1).batch(task.batch)
    model.fit(batches, epochs=task.epochs, verbose=0)
    return auc(task.test[task.schema.label].to_numpy(), _scores(task, model))


def _scores(task: Task, model: Any) -> np.ndarray:
    chances = model.predict(task.test).astype(np.float64)
    chances = np.clip(chances, 1e-12, 1 - 1e-12)
    return np.log(chances / (1 - chances))


def in_one_process(task: Task) -> float:
    """Returns the test AUC of training without any server."""
    return _measured(task, task.model())


def on_servers(task: Task, trainers: int, **options: Any) -> float:
    """Returns the test AUC with `trainers` trainers and two parameter servers.

    Training is `async` unless `options` of the strategy say otherwise.
    """
    with ps.LocalCluster(workers=trainers, ps=2, data_workers=0) as cluster:
        return on_cluster(task, cluster, **options)


def on_cluster(task: Task, cluster: ps.LocalCluster, **options: Any) -> float:
    """Does what `on_servers` does, on a cluster that runs."""
    partitioner = ps.partitioners.MinSizePartitioner(max_shards=2)
    strategy = ps.ParameterServerStrategy(cluster.resolver, partitioner, **options)
    coordinator = ps.ClusterCoordinator(strategy)
    try:
        with strategy.scope():
            model = task.model()
        return _measured(task, model)
    finally:
        coordinator.close()


def measure(task: Task, trainers: Sequence[int], transport_dtype: str) -> dict[str, Any]:
    """Does all runs of a task; prints a Markdown table and returns a record."""
    alone = in_one_process(task)
    served = {n: on_servers(task, n, transport_dtype=transport_dtype) for n in trainers}
    rows = pq.read_metadata(task.train).num_rows
    print(f"\n{task.name}: {rows:,} rows to train on, {len(task.test):,} to test on\n")
    print("| | test AUC | against one process |\n|---|---|---|")
    if not math.isnan(task.reachable):
        print(f"| the planted truth | {task.reachable:.4f} | |")
    print(f"| one process, no servers | {alone:.4f} | |")
    for count, found in served.items():
        plural = "s" if count > 1 else ""
        print(f"| async, {count} trainer{plural}, 2 servers | {found:.4f} | {found - alone:+.4f} |")
    worst = max((alone - found for found in served.values()), default=0.0)
    return {
        "task": task.name,
        "transport_dtype": transport_dtype,
        "reachable": None if math.isnan(task.reachable) else round(task.reachable, 5),
        "one_process": round(alone, 5),
        "async": {str(count): round(found, 5) for count, found in served.items()},
        "worst_loss": round(worst, 5),
        "within": bool(worst <= TOLERANCE),
    }


def main(argv: list[str] | None = None) -> None:
    """Runs the command line."""
    parser = new_parser("bench.quality", __doc__, has_smoke=False)
    parser.add_argument(
        "--tasks",
        nargs="+",
        choices=("flights", "clicks"),
        default=None,
        help="tasks to measure (default: flights clicks)",
    )
    parser.add_argument(
        "--trainers",
        type=int,
        nargs="*",
        default=(1, 2, 4),
        help="numbers of trainers to measure (default: %(default)s)",
    )
    parser.add_argument(
        "--rows",
        type=int,
        default=400_000,
        help="rows to train on in the task clicks (default: %(default)s)",
    )
    parser.add_argument(
        "--transport-dtype",
        default="float32",
        help="type in which rows and gradients travel (default: %(default)s)",
    )
    parser.add_argument(
        "--smoke",
        action="store_true",
        help="use one trainer and few rows, to check that the benchmark works",
    )
    options = parser.parse_args(argv)
    smoke = options.smoke
    for name in options.tasks or (("clicks",) if smoke else ("flights", "clicks")):
        rows = 8_192 if smoke else options.rows
        with tempfile.TemporaryDirectory(prefix="quality-") as temporary:
            folder = Path(temporary)
            if name == "clicks":
                task = clicks_task(folder, rows)
            else:
                task = flights_task(folder, rows if smoke else None)
            record = measure(task, (1,) if smoke else options.trainers, options.transport_dtype)
        children.say(bench="quality", **record)


if __name__ == "__main__":
    main()
