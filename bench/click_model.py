"""The model of the training benchmark: 26 embeddings of 16 out of one table, a 64-32-1 network.

It is the network that `bench.peers.tf_parameter_server` trains, so it has no wide part. It is
written as a user would write a model of their own, from layers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import pstrain as ps
from bench.columns import CATEGORICAL, DENSE
from bench.data import HASH_BUCKETS, training_arrays
from pstrain import buffers
from pstrain.features.schema import Features, FeatureSchema
from pstrain.gradients.recording import record
from pstrain.gradients.tensor import Tensor
from pstrain.kernels import embedding as kernels
from pstrain.layers.base import rows_leaf
from pstrain.layers.projection import project_embedding
from pstrain.models.base import Model

WIDTH = 16
ROWS_IN_MEMORY = 262_144
_UNITS = (64, 32, 1)


class EmbeddedRows(ps.layers.Embedding):
    """A layer of looked-up rows and dense columns side by side: float32 [n, 26 * dim + 13]."""

    def forward(self, values: Sequence[Any], inputs: Features) -> Tensor:
        lookup = values[0]
        rows = rows_leaf(self.variables[0], lookup)
        embedded = len(CATEGORICAL) * self.dim
        output = Tensor(buffers.empty((len(inputs), embedded + len(DENSE))))
        kernels.gather_fields(rows.value, lookup.inverse, len(CATEGORICAL), output.value)
        output.value[:, embedded:] = inputs.dense

        def backward(gradient: np.ndarray) -> np.ndarray:
            total = buffers.zeros(rows.shape)
            kernels.scatter_fields(gradient, lookup.inverse, len(CATEGORICAL), total)
            return total

        return record(output, (rows,), backward)


class ClickModel(Model):
    """The click model; made, with its optimizer, in a scope, or outside for one process."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__(FeatureSchema(dense=DENSE, label="label"))
        # Ids are rows of the table already; all fields share all of it.
        share, rest = divmod(HASH_BUCKETS, len(CATEGORICAL))
        sizes = [share + (field < rest) for field in range(len(CATEGORICAL))]
        self.table = EmbeddedRows(sizes, width, name="table", by_field=True)
        inputs = len(CATEGORICAL) * width + len(DENSE)
        self.network = [
            ps.layers.Dense(
                units,
                "relu" if units > 1 else None,
                input_size=size,
                name=f"dense_{layer}",
            )
            for layer, (size, units) in enumerate(itertools.pairwise((inputs, *_UNITS)))
        ]
        self.layers = [self.table, *self.network]

    def compute(self, values: Sequence[Sequence[Any]], features: Features) -> Tensor:
        first, *others = self.network
        hidden = project_embedding(self.table, values[0], first, values[1], features)
        if hidden is None:
            hidden = first.forward(values[1], self.table.forward(values[0], features))
        for layer, value in zip(others, values[2:], strict=True):
            hidden = layer.forward(value, hidden)
        return hidden


def batches(batch: int, rows: int = ROWS_IN_MEMORY) -> Iterator[Features]:
    """Returns endless batches from memory, all cut beforehand."""
    labels, dense, ids = training_arrays(rows)
    cut = [
        Features(dense[a : a + batch], ids[a : a + batch], labels[a : a + batch])
        for a in range(0, rows - batch + 1, batch)
    ]
    return itertools.cycle(cut)


def optimizer() -> ps.optimizers.Adagrad:
    """Returns the optimizer, with the settings of the peer's."""
    return ps.optimizers.Adagrad(0.05, initial_accumulator_value=0.1, epsilon=1e-7)


def step(model: ClickModel, rule: ps.optimizers.Adagrad, batch: Features) -> float:
    """Trains on a batch and returns its loss."""
    with ps.GradientTape() as tape:
        loss = model.loss(batch)
    rule.apply_gradients(tape.gradients(loss))
    return float(loss)
