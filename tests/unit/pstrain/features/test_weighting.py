"""Weights of rows and of labels in the loss and its gradients, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dataservice as ds
import pstrain as ps
from pstrain.errors import DataError, InvalidArgumentError, InvalidTypeError
from pstrain.features.weighting import Weighting

SCHEMA = ps.FeatureSchema(dense=["d"])
ROWS: dict[str, Any] = {
    "d": np.array([1.0, -2.0, 0.5, 3.0, -1.0, 2.0]),
    "label": np.array([1, 0, 0, 1, 1, 0]),
}
WEIGHTS = np.array([2.0, 0.0, 1.0, 0.5, 3.0, 1.0])
WEIGHTED = ROWS | {"w": WEIGHTS}


def model() -> ps.models.LogisticRegression:
    made = ps.models.LogisticRegression(SCHEMA)
    made.compile(ps.optimizers.SGD(0.5), metrics=["accuracy"])
    return made


def losses(logits: np.ndarray, weights: np.ndarray, labels: np.ndarray) -> float:
    return float(np.sum(weights * (np.logaddexp(0, logits) - labels * logits)) / len(labels))


def reference_fit(weights: np.ndarray, batch: int = 3) -> tuple[list[float], float]:
    """Returns slope and bias after one epoch that begins with 0 and 0, and the epoch's loss."""
    slope = bias = total = 0.0
    for start in range(0, len(weights), batch):
        d, y = ROWS["d"][start : start + batch], ROWS["label"][start : start + batch]
        w, z = weights[start : start + batch], slope * d + bias
        total += losses(z, w, y) * len(y)
        change = w * (1 / (1 + np.exp(-z)) - y) / len(y)
        slope, bias = slope - 0.5 * np.sum(change * d), bias - 0.5 * np.sum(change)
    return [slope, bias], total / len(weights)


def fitted(data: Any, **options: Any) -> tuple[list[float], float]:
    trained = model()
    for variable in trained.variables:
        variable.assign(0.0)
    history = trained.fit(data, batch_size=3, verbose=0, **options).history
    bias = trained.predict({"d": [0.0]})[0]
    at_one = trained.predict({"d": [1.0]})[0]
    logits = np.log([at_one, bias]) - np.log1p([-at_one, -bias])
    return [float(logits[0] - logits[1]), float(logits[1])], history["loss"][0]


@pytest.mark.parametrize(
    ("data", "weight"), [(WEIGHTED, "w"), (ROWS, WEIGHTS), (pa.table(ROWS), WEIGHTS)]
)
def test_validation_loss_uses_validation_sample_weight(data: Any, weight: Any) -> None:
    trained = model()
    options = {"validation_data": data, "validation_sample_weight": weight}
    history = trained.fit(ROWS, verbose=0, **options).history
    weighed = trained.evaluate(WEIGHTED, sample_weight="w", verbose=0)
    assert history["val_loss"] == [weighed["loss"]]
    assert weighed["loss"] != trained.evaluate(ROWS, verbose=0)["loss"]
    with pytest.raises(InvalidArgumentError, match="validation_data, which is not given"):
        trained.fit(ROWS, validation_sample_weight="w", verbose=0)


@pytest.mark.parametrize(
    ("data", "weight"),
    [
        (ROWS, WEIGHTS),
        (ROWS, WEIGHTS.reshape(-1, 1).tolist()),
        (pa.table(ROWS), WEIGHTS),
        (pa.RecordBatch.from_pydict(ROWS), pa.chunked_array([WEIGHTS])),
        (pd.DataFrame(ROWS), pd.Series(WEIGHTS)),
        (WEIGHTED, "w"),
        (ds.Dataset.from_numpy(WEIGHTED), "w"),
        (lambda: ds.Dataset.from_numpy(WEIGHTED).batch(3), "w"),
    ],
)
def test_sample_weight_weighs_rows_in_training(data: Any, weight: Any) -> None:
    values, loss = fitted(data, sample_weight=weight)
    expected, expected_loss = reference_fit(WEIGHTS)
    assert values == pytest.approx(expected, rel=1e-4)
    assert loss == pytest.approx(expected_loss, rel=1e-6)


def test_rows_of_negative_weight_raise_the_loss_in_training() -> None:
    weights = np.where(np.arange(6) % 3, WEIGHTS, -0.25)
    values, loss = fitted(ROWS, sample_weight=weights)
    expected, expected_loss = reference_fit(weights)
    assert values == pytest.approx(expected, rel=1e-4)
    assert loss == pytest.approx(expected_loss, rel=1e-6)


@pytest.mark.parametrize("by_label", [{0: 1.0, 1: 5.0}, {1: 5}, {np.int64(1): np.float32(5)}])
def test_class_weight_weighs_rows_by_label(by_label: Any) -> None:
    of_labels = np.where(ROWS["label"] == 1, 5.0, 1.0)
    values, loss = fitted(ROWS, class_weight=by_label)
    assert values == pytest.approx(reference_fit(of_labels)[0], rel=1e-4)
    assert loss == pytest.approx(reference_fit(of_labels)[1], rel=1e-6)
    values, _ = fitted(ROWS, class_weight=by_label, sample_weight=WEIGHTS)
    assert values == pytest.approx(reference_fit(WEIGHTS * of_labels)[0], rel=1e-4)


def test_training_reports_metrics_weighted_by_row_and_label() -> None:
    trained = model()
    for variable in trained.variables:
        variable.assign(np.ones(variable.shape))
    error = ps.metrics.MeanAbsoluteError
    trained.compile(ps.optimizers.SGD(1e-9), metrics="mae", weighted_metrics=[error("by"), "mse"])
    options = {"class_weight": {1: 3.0}, "validation_data": WEIGHTED, "batch_size": 2}
    options |= {"sample_weight": WEIGHTS, "validation_sample_weight": "w", "verbose": 0}
    history = trained.fit(ROWS, **options).history
    errors = np.abs(trained.predict(ROWS) - ROWS["label"])
    both = WEIGHTS * np.where(ROWS["label"] == 1, 3.0, 1.0)
    for name, values, weights in (
        ("mae", errors, np.ones(6)), ("by", errors, both), ("mse", errors**2, both),
        ("val_mae", errors, np.ones(6)), ("val_by", errors, WEIGHTS),
    ):  # fmt: skip
        assert history[name] == [pytest.approx(np.average(values, weights=weights), rel=1e-6)]


def test_evaluation_weighs_loss_and_weighted_metrics() -> None:
    trained = model()
    trained.compile("sgd", metrics=["accuracy"], weighted_metrics=[ps.metrics.Accuracy("right")])
    trained.fit(ROWS, verbose=0)
    plain = trained.evaluate(ROWS, verbose=0)
    logs = trained.evaluate(ROWS, batch_size=4, sample_weight=WEIGHTS, verbose=0)
    probabilities = trained.predict(ROWS).astype(np.float64)
    logits = np.log(probabilities) - np.log1p(-probabilities)
    assert logs["loss"] == pytest.approx(losses(logits, WEIGHTS, ROWS["label"]), rel=1e-5)
    assert logs["accuracy"] == plain["accuracy"] == plain["right"]
    is_right = (probabilities > 0.5) == ROWS["label"]
    assert logs["right"] == np.sum(WEIGHTS * is_right) / WEIGHTS.sum() != logs["accuracy"]
    assert trained.evaluate(WEIGHTED, sample_weight="w", verbose=0)["loss"] == logs["loss"]


@pytest.mark.parametrize(
    ("data", "options", "error", "words"),
    [
        (ROWS, {"sample_weight": [1.0]}, InvalidArgumentError, "1 weights for 6 rows"),
        (ds.Dataset.from_numpy(ROWS), {"sample_weight": WEIGHTS}, InvalidTypeError, "with_column"),
        (ROWS | {"sample_weight": WEIGHTS}, {"sample_weight": WEIGHTS}, InvalidArgumentError,
         "already: give sample_weight='sample_weight'"),
        (ROWS, {"sample_weight": "w"}, DataError, "no column 'w' of weights; it has d, label"),
        (ROWS, {"sample_weight": np.full(6, np.inf)}, DataError, "row 0: inf is not a weight"),
        (ROWS | {"w": pa.array([None, *WEIGHTS[1:]])}, {"sample_weight": "w"}, DataError,
         "weights of column 'w' hold 1 nulls"),
        (ROWS, {"class_weight": {2: 1.0}}, InvalidArgumentError, "labels 0 and 1, got 2"),
        (ROWS, {"class_weight": {1: "5"}}, InvalidArgumentError, r"class_weight\[1\] must be a"),
        (ROWS, {"class_weight": {1: np.nan}}, InvalidArgumentError, "finite number.*got nan"),
        (ROWS, {"class_weight": {1: np.inf}}, InvalidArgumentError, "finite number.*got inf"),
        (ROWS, {"class_weight": {1: 1e39}}, InvalidArgumentError, "float32.*got 1e.39"),
        (ROWS, {"class_weight": {1: 10**400}}, InvalidArgumentError, "float32.*got 1000"),
        (ROWS, {"class_weight": {0: -1.0}}, InvalidArgumentError, "0 or more, got -1.0"),
        ({}, {"sample_weight": [1.0]}, InvalidArgumentError, "1 weights for 0 rows"),
        (ROWS, {"sample_weight": np.full(6, np.nan)}, DataError, "row 0: nan is not a weight"),
        (ROWS, {"class_weight": "balanced"}, InvalidTypeError, "dict of weights by label"),
    ],
)  # fmt: skip
def test_invalid_weights_are_refused(
    data: Any, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        model().fit(data, verbose=0, **options)


def test_encoded_batches_can_be_weighted_by_label_only() -> None:
    features = SCHEMA.encode(ROWS)
    assert features.labels is not None
    assert Weighting().of(features, features.labels) is None
    weights = Weighting(by_label={0: 0.5}).of(features, features.labels)
    assert weights is not None
    assert weights.tolist() == [1.0, 0.5, 0.5, 1.0, 1.0, 0.5]
    with pytest.raises(DataError, match="no column 'w'"):
        Weighting("w").of(features, features.labels)


def test_class_weight_of_zero_leaves_out_a_label() -> None:
    weights = Weighting(by_label={0: 0.0}).of({}, np.array([1.0, 0.0], np.float32))
    assert weights is not None
    assert weights.tolist() == [1.0, 0.0]
    assert weights.dtype == np.float32


def test_class_weight_refuses_labels_between_classes() -> None:
    labels = np.array([1.0, 0.9], np.float32)
    with pytest.raises(DataError, match=r"labels 0 and 1, got 0\.9"):
        Weighting(by_label={1: 5.0}).of({}, labels)
