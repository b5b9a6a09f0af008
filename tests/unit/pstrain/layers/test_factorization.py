"""The parts of a factorization machine against layers that concatenate the vectors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from pstrain import buffers
from pstrain.features.schema import Features
from pstrain.gradients.tape import Gradients, GradientTape
from pstrain.layers import Dense, Interaction, NumericEmbedding, WideDeepTable, concatenate
from pstrain.layers.base import whole_leaf
from pstrain.layers.factorization import folded, pair_logits
from pstrain.losses import BinaryCrossentropy
from pstrain.variables.scope import local_parameters

FIELDS, VALUES, NUMBERS, DIM = 3, 6, 2, 5


@pytest.fixture(autouse=True)
def _own_parameters() -> Iterator[None]:
    with local_parameters():
        yield


@pytest.fixture(autouse=True)
def _memory_filled_with_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fills uninitialised memory with NaN, so that no result can depend on its content."""
    monkeypatch.setattr(buffers, "empty", lambda shape: np.full(shape, np.nan, np.float32))


class _Parts:
    """A table, an embedding of numbers, and a dense layer over all vectors."""

    def __init__(self, by_field: bool) -> None:
        self.table = WideDeepTable(FIELDS * VALUES, FIELDS, DIM, by_field=by_field)
        self.numeric = NumericEmbedding(NUMBERS, DIM)
        self.dense = Dense(4, "relu", input_size=(FIELDS + NUMBERS) * DIM)
        self.last = Dense(1, input_size=4, name="last")
        random = np.random.default_rng(8)
        self.layers = (self.table, self.numeric, self.dense, self.last)
        self.variables = [v for layer in self.layers for v in layer.variables]
        for variable in self.variables:
            variable.assign_add(random.normal(scale=0.5, size=variable.shape).astype(np.float32))

    def step(self, features: Features, together: bool) -> tuple[float, Gradients]:
        groups = [layer.parameters.fetch(layer.requests(features)) for layer in self.layers]
        with GradientTape() as tape:
            if together:
                logits = self._together(groups, features)
            else:
                logits = self._side_by_side(groups, features)
            assert features.labels is not None
            loss = BinaryCrossentropy(from_logits=True)(features.labels, logits)
        return float(loss), tape.gradients(loss)

    def _side_by_side(self, groups: list, features: Features):  # type: ignore[no-untyped-def,type-arg]
        plain = replace(features, dense=features.dense[:, :0])
        vectors, wide = self.table.forward(groups[0], plain)
        both = concatenate([vectors, self.numeric.forward(groups[1], features.dense)])
        hidden = self.dense.forward(groups[2], both)
        pairs = Interaction(FIELDS + NUMBERS, DIM, "sum")(both)
        return wide + pairs + self.last.forward(groups[3], hidden)

    def _together(self, groups: list, features: Features):  # type: ignore[no-untyped-def,type-arg]
        found, bias = self.table.leaves(groups[0], features)
        numeric = whole_leaf(self.numeric.variables[0], groups[1][0])
        logits = pair_logits(found, FIELDS, bias, numeric, features)
        kernel, beside = (
            whole_leaf(v, w) for v, w in zip(self.dense.variables, groups[2], strict=True)
        )
        matrix, _ = self.table.computed(found, bias, features)
        hidden = self.dense.computed(matrix, [folded(kernel, numeric), beside])
        return logits + self.last.forward(groups[3], hidden)


@pytest.mark.parametrize("by_field", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_factorization_agrees_with_concatenated_vectors(by_field: bool, shared: bool) -> None:
    random, size = np.random.default_rng(7), 40
    ids = random.integers(0, VALUES, (size, FIELDS))
    ids += 0 if shared else np.arange(FIELDS) * VALUES
    labels = random.integers(0, 2, size).astype(np.float32)
    numbers = random.normal(size=(size, NUMBERS)).astype(np.float32)
    parts, features = _Parts(by_field), Features(numbers, ids, labels)
    expected_loss, expected = parts.step(features, together=False)
    loss, found = parts.step(features, together=True)
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    for variable in parts.variables:
        ours, theirs = found.of(variable), expected.of(variable)
        if ours.lookup is not None and theirs.lookup is not None:
            np.testing.assert_array_equal(ours.lookup.unique, theirs.lookup.unique)
        np.testing.assert_allclose(
            ours.gradient, theirs.gradient, rtol=1e-4, atol=1e-6, err_msg=variable.name
        )
