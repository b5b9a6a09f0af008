"""The projected form of table and first layer against the two layers one after the other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pstrain import buffers
from pstrain.features.schema import Features
from pstrain.gradients.tape import Gradients, GradientTape
from pstrain.gradients.tensor import Tensor
from pstrain.layers import Dense, Embedding, WideDeepTable
from pstrain.layers.projection import project, project_embedding
from pstrain.losses import BinaryCrossentropy

pytestmark = pytest.mark.usefixtures("own_parameters")

FIELDS, VALUES, DIM, UNITS = 3, 6, 8, 80


@pytest.fixture(autouse=True)
def _memory_filled_with_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fills uninitialised memory with NaN, so that no result can depend on its content."""
    monkeypatch.setattr(buffers, "empty", lambda shape: np.full(shape, np.nan, np.float32))


def _features(size: int = 40, dense: int = 2) -> Features:
    random = np.random.default_rng(7)
    ids = random.integers(0, VALUES, (size, FIELDS)) + np.arange(FIELDS) * VALUES
    labels = random.integers(0, 2, size).astype(np.float32)
    return Features(random.normal(size=(size, dense)).astype(np.float32), ids, labels)


def _layers(dense: int = 2, by_field: bool = False) -> tuple[WideDeepTable, Dense, Dense]:
    table = WideDeepTable(FIELDS * VALUES, FIELDS, DIM, by_field=by_field)
    first = Dense(UNITS, "relu", input_size=FIELDS * DIM + dense, name="first")
    last = Dense(1, input_size=UNITS, use_bias=False, name="last")
    random = np.random.default_rng(8)
    for variable in [*table.variables, *first.variables, *last.variables]:
        variable.assign_add(random.normal(scale=0.5, size=variable.shape).astype(np.float32))
    return table, first, last


def _step(
    layers: tuple[WideDeepTable, Dense, Dense], features: Features, projected: bool, parts: str
) -> tuple[float, Gradients]:
    table, first, last = layers
    groups = [layer.parameters.fetch(layer.requests(features)) for layer in layers]
    with GradientTape() as tape:
        both = project(table, groups[0], first, groups[1], features)
        assert both is not None
        hidden, wide = both
        if not projected:
            matrix, wide = table.forward(groups[0], features)
            hidden = first.forward(groups[1], matrix)
        deep = last.forward(groups[2], hidden)
        logits: dict[str, Tensor] = {"both": deep + wide, "deep": deep, "wide": wide + 0.0}
        assert features.labels is not None
        loss = BinaryCrossentropy(from_logits=True)(features.labels, logits[parts])
    return float(loss), tape.gradients(loss)


@pytest.mark.parametrize("parts", ["both", "deep", "wide"])
@pytest.mark.parametrize("dense", [0, 2])
@pytest.mark.parametrize("by_field", [False, True])
def test_projection_agrees_with_table_and_dense_layer(
    parts: str, dense: int, by_field: bool
) -> None:
    layers, features = _layers(dense, by_field), _features(dense=dense)
    expected_loss, expected = _step(layers, features, False, parts)
    loss, found = _step(layers, features, True, parts)
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    variables = [*layers[0].variables, *layers[1].variables]
    for variable in variables if parts == "both" else variables[:1]:
        ours, theirs = found.of(variable), expected.of(variable)
        if ours.lookup is not None and theirs.lookup is not None:
            np.testing.assert_array_equal(ours.lookup.unique, theirs.lookup.unique)
        np.testing.assert_allclose(ours.gradient, theirs.gradient, rtol=1e-4, atol=1e-6)


def test_projection_declines_units_that_fill_no_vectors() -> None:
    table, _, _ = _layers()
    odd = Dense(UNITS + 1, "relu", input_size=FIELDS * DIM + 2, name="odd")
    features = _features()
    values = [layer.parameters.fetch(layer.requests(features)) for layer in (table, odd)]
    assert project(table, values[0], odd, values[1], features) is None


def test_projection_declines_small_or_unsuitable_inputs() -> None:
    table, first, last = _layers()
    features = _features()
    values = [layer.parameters.fetch(layer.requests(features)) for layer in (table, first, last)]
    assert project(table, values[0], last, values[2], features) is None
    distinct = _features(size=1)
    fetched = table.parameters.fetch(table.requests(distinct))
    assert project(table, fetched, first, values[1], distinct) is None
    narrow = WideDeepTable(FIELDS * VALUES, FIELDS, 2, name="narrow")
    fetched = narrow.parameters.fetch(narrow.requests(features))
    assert project(narrow, fetched, first, values[1], features) is None


def _embedding_step(
    table: Embedding, first: Dense, last: Dense, features: Features, projected: bool
) -> tuple[float, Gradients]:
    layers = (table, first, last)
    groups = [layer.parameters.fetch(layer.requests(features)) for layer in layers]
    with GradientTape() as tape:
        if projected:
            hidden = project_embedding(table, groups[0], first, groups[1], features)
            assert hidden is not None
        else:
            hidden = first.forward(groups[1], table.forward(groups[0], features))
        assert features.labels is not None
        loss = BinaryCrossentropy(from_logits=True)(
            features.labels, last.forward(groups[2], hidden)
        )
    return float(loss), tape.gradients(loss)


def test_gradient_memory_is_cleared_only_for_rows_shared_by_fields(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, first, last = _layers(dense=0)
    table, cleared = Embedding([VALUES] * FIELDS, DIM), []
    zeros = buffers.zeros

    def clear(shape: tuple[int, ...]) -> np.ndarray:
        cleared.append(shape)
        return zeros(shape)

    monkeypatch.setattr(buffers, "zeros", clear)
    features = _features(dense=0)
    for given in (features, replace(features, ids=features.ids % VALUES)):
        _embedding_step(table, first, last, given, True)
    assert [shape for shape in cleared if shape[1] == DIM] == [(VALUES, DIM)]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("by_field", [False, True])
def test_embedding_projection_agrees_with_embedding_and_dense_layer(
    shared: bool, by_field: bool
) -> None:
    _, first, last = _layers(dense=0)
    table = Embedding([VALUES] * FIELDS, DIM, by_field=by_field)
    features = _features(dense=0)
    if shared:
        features = replace(features, ids=features.ids % VALUES)
    expected_loss, expected = _embedding_step(table, first, last, features, False)
    loss, found = _embedding_step(table, first, last, features, True)
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    for variable in [*table.variables, *first.variables, *last.variables]:
        ours, theirs = found.of(variable), expected.of(variable)
        np.testing.assert_allclose(ours.gradient, theirs.gradient, rtol=1e-4, atol=1e-6)
