"""What does it cost to look up ids in online columns, once all of their keys are known?

Online columns give rows to ids that were not listed beforehand. In one process, batches of
Criteo-shaped rows (26 columns of integers) are encoded with hashed columns, with vocabularies, and
with online columns, whose rows a model then looks up; the latter also with too few rows for a
quarter of the values. Whole training steps of a WideDeep model follow, with hashed and with online
columns. Forms take turns, batch by batch. A cluster costs the same, because known keys are looked
up in the trainer. Last come evictions of a tenth of the keys, and how much longer than usual a pass
over the batches takes after an eviction, because all keys are asked for again. Prints one JSON line
each, with medians over batches, or over evictions.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

import pstrain as ps
from bench import data
from bench.columns import CATEGORICAL, DENSE
from bench.options import add_common, new_parser
from bench.peers import children
from pstrain.features.online_columns import OnlineColumns

_DIM, _HIDDEN = 16, (64, 32)

Work = Callable[[pa.RecordBatch], Any]


def batches(rows: int, batch: int) -> list[pa.RecordBatch]:
    """Returns rows as they come from a data service, with the logarithm of the dense columns."""
    columns = {name: np.asarray(values) for name, values in data.generate(rows).items()}
    for name in DENSE:
        columns[name] = np.log1p(columns[name])
    return pa.table(columns).combine_chunks().to_batches(max_chunksize=batch)


def schemas(table: list[pa.RecordBatch]) -> dict[str, ps.FeatureSchema]:
    """Returns a schema by form; with vocabularies and online columns no two values share a row."""
    sizes = {name: len(pa.Table.from_batches(table)[name].unique()) for name in CATEGORICAL}
    hashed = {name: ps.Category(max(2, size)) for name, size in sizes.items()}
    online = {name: ps.Category(64 + 5 * n // 4, online=True) for name, n in sizes.items()}
    full = {name: ps.Category(max(2, 3 * n // 4), online=True) for name, n in sizes.items()}
    plain = ps.FeatureSchema(dense=DENSE, categorical=hashed)
    return {
        "hashed": plain,
        "vocabulary": plain.adapted(table),
        "online": ps.FeatureSchema(dense=DENSE, categorical=online),
        "online, full": ps.FeatureSchema(dense=DENSE, categorical=full),
    }


def encoding(schema: ps.FeatureSchema) -> Work:
    """Returns a function that encodes a batch, and looks up keys as in training."""
    columns = OnlineColumns(schema) if schema.is_online else None

    def encode(batch: pa.RecordBatch) -> Any:
        features = schema.encode(batch)
        return features if columns is None else columns.with_rows(features, training=True)

    return encode


def training(schema: ps.FeatureSchema) -> Work:
    """Returns a function that does a training step: encode, forward, backward, update."""
    model = ps.models.WideDeep(schema, dim=_DIM, hidden=_HIDDEN)
    optimizer = ps.optimizers.Adagrad(0.02)

    def step(batch: pa.RecordBatch) -> None:
        with ps.GradientTape() as tape:
            loss = model.loss(batch)
        optimizer.apply_gradients(tape.gradients(loss))

    return step


def measure(what: str, forms: dict[str, Work], table: list[pa.RecordBatch], rounds: int) -> None:
    """Runs all batches once to learn their keys, then in turns; prints a line for each form."""
    seconds: dict[str, list[float]] = {name: [] for name in forms}
    for round_number in range(rounds + 1):
        for batch in table:
            for name, work in forms.items():
                began_s = time.perf_counter()
                work(batch)
                if round_number:
                    seconds[name].append(time.perf_counter() - began_s)
    for name, taken in seconds.items():
        children.say(
            bench="online_lookup",
            what=what,
            form=name,
            median_ms=round(statistics.median(taken) * 1_000, 3),
            batch=len(table[0]),
            batches=len(taken),
        )


def measure_evictions(schema: ps.FeatureSchema, table: list[pa.RecordBatch], rounds: int) -> None:
    """Evicts keys of a trained model in turns with two passes over all batches; prints a line."""
    model = ps.models.WideDeep(schema, dim=_DIM, hidden=_HIDDEN)
    online, optimizer = model.checked_online(), ps.optimizers.Adagrad(0.02)
    taken: dict[str, list[float]] = {"evict": [], "first": [], "second": []}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        began_s = time.perf_counter()
        found = work()
        taken[name].append(time.perf_counter() - began_s)
        return found

    def look_up() -> None:
        for batch in table:
            online.with_rows(model.encode(batch), training=True)

    with ps.GradientTape() as tape:
        loss = model.loss(table[0])
    optimizer.apply_gradients(tape.gradients(loss))
    look_up()
    used = online.stats()["used"]
    sizes = {name: column.buckets * 18 // 25 for name, column in schema.categorical.items()}
    evicted = 0
    for _ in range(rounds):
        evicted = timed("evict", lambda: model.evict(sizes))
        timed("first", look_up)
        timed("second", look_up)
    longer_s = statistics.median(np.subtract(taken["first"], taken["second"]).tolist())
    children.say(
        bench="online_lookup",
        what="evict",
        form="online",
        median_ms=round(statistics.median(taken["evict"]) * 1_000, 3),
        keys=used,
        evicted=evicted,
        next_pass_longer_ms=round(longer_s * 1_000, 3),
    )


def main(argv: list[str] | None = None) -> None:
    """Runs the command line."""
    parser = new_parser("bench.online_lookup", __doc__)
    parser.add_argument(
        "--rows", type=int, default=262_144, help="number of rows (default: %(default)s)"
    )
    parser.add_argument(
        "--batch", type=int, default=4_096, help="rows in each batch (default: %(default)s)"
    )
    add_common(parser, rounds=3)
    options = parser.parse_args(argv)
    if options.smoke:
        options.rows, options.batch, options.rounds = 2_048, 512, 1
    table = batches(options.rows, options.batch)
    by_form = schemas(table)
    encodings = {name: encoding(schema) for name, schema in by_form.items()}
    measure("encode", encodings, table, options.rounds)
    steps = {name: training(by_form[name]) for name in ("hashed", "online")}
    measure("step", steps, table, options.rounds)
    measure_evictions(by_form["online"], table, options.rounds)


if __name__ == "__main__":
    main()
