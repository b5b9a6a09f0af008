"""A model that counts, on its parameter servers, how often each row was trained on."""

from __future__ import annotations

from typing import Any

import numpy as np

import dataservice as ds
import pstrain as ps
from dataservice.runtime.number_arrays import to_numbers

BATCH = 25


class Counting(ps.models.LogisticRegression):
    """A logistic regression that adds 1 to a row's counter when that row is read for training.

    ``steps_of``, if set, is a variable with a row per trainer, which counts that trainer's steps.
    """

    def __init__(self, rows: int) -> None:
        super().__init__(
            ps.FeatureSchema(dense=["price"], categorical={"page": ps.Category(64)}, label="label")
        )
        self.counts = ps.Variable(np.zeros((rows, 1), np.int64), name="counts")

        self.steps_of: Any = None

    @property
    def variables(self) -> Any:
        return [*super().variables, self.counts]

    def encode(self, batch: Any) -> Any:
        if hasattr(batch, "column") and "id" in batch.schema.names:
            ids = to_numbers(batch.column("id"))
            self.counts.scatter_add(ids, np.ones((len(ids), 1), np.int64))
            if self.steps_of is not None:
                self.steps_of.scatter_add(
                    [ps.get_current_worker_index()], np.ones((1, 1), np.int64)
                )
        return super().encode(batch)

    def check(self, epochs: int) -> None:
        """Asserts that every row was trained on ``epochs`` times."""
        counts = self.counts.numpy().reshape(-1)
        wrong = np.flatnonzero(counts != epochs)
        assert not len(wrong), (len(wrong), wrong[:10], counts[wrong[:10]])


def columns(rows: int, *, with_ids: bool = True) -> dict[str, Any]:
    rng = np.random.default_rng(5)
    page = rng.integers(0, 50, rows)
    price = rng.normal(size=rows).astype(np.float32)
    found: dict[str, Any] = {"page": page, "price": price}
    found["label"] = (page % 2 + 0.5 * price > 0.5).astype(np.int64)
    return {**found, "id": np.arange(rows)} if with_ids else found


def dataset(rows: int) -> ds.Dataset:
    return ds.Dataset.from_numpy(columns(rows)).batch(BATCH)


def compiled(strategy: ps.ParameterServerStrategy, rows: int) -> Counting:
    with strategy.scope():
        model = Counting(rows)
        model.compile(ps.optimizers.SGD(0.1), metrics=[ps.metrics.AUC()])
    return model
