"""Losses of standardized labels: values, gradients, predictions of models, saved models."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest

import pstrain as ps
from pstrain import losses
from pstrain.errors import InvalidArgumentError, InvalidTypeError

MEAN, SCALE = 250_000.0, 80_000.0
SCHEMA = ps.FeatureSchema(dense=["size"], label="price")


def flats() -> dict[str, np.ndarray]:
    size = np.random.default_rng(0).normal(size=1_000).astype(np.float32)
    return {"size": size, "price": MEAN + SCALE * size}


@pytest.mark.parametrize(
    "inner", [losses.MeanSquaredError(), losses.MeanAbsoluteError(), losses.Huber(0.5)]
)
def test_loss_and_slopes_are_those_of_standardized_labels(inner: losses.MeanSquaredError) -> None:
    loss = losses.Standardized(inner, MEAN, SCALE)
    standardized = np.array([0.5, -1.0, 2.0])
    outputs = ps.Variable([0.25, 0.5, 2.5])
    found = []
    for each, labels in ((loss, MEAN + SCALE * standardized), (inner, standardized)):
        with ps.GradientTape() as tape:
            value = each(labels, outputs + 0.0, [1.0, 2.0, 0.5])
        found.append((float(value), *np.asarray(tape.gradient(value, [outputs])[0]).tolist()))
    assert found[0] == pytest.approx(found[1], rel=1e-6)
    np.testing.assert_allclose(loss.predicted(outputs.numpy()), [270_000, 290_000, 450_000])
    each = type(inner)(reduction="none")
    assert losses.Standardized(each, 0, 2)([2.0, 4.0], outputs[:2] + 0.0).shape == (2,)


def test_model_learns_prices_at_the_rate_that_suits_small_numbers(tmp_path: pathlib.Path) -> None:
    data = flats()
    model = ps.models.LogisticRegression(SCHEMA)
    loss = losses.Standardized(losses.MeanSquaredError(), MEAN, SCALE)
    model.compile(ps.optimizers.Adagrad(0.3), loss=loss, metrics=["mae"])
    model.fit(data, epochs=5, batch_size=50, verbose=0)
    logs = model.evaluate(data, verbose=0)
    predicted = model.predict(data)
    assert logs["mae"] == pytest.approx(np.abs(predicted - data["price"]).mean(), rel=1e-4)
    assert logs["mae"] < 2_000
    standardized = (predicted.astype(np.float64) - data["price"]) / SCALE
    assert logs["loss"] == pytest.approx(np.mean(standardized**2), rel=1e-3)
    model.save_weights(tmp_path)
    again = ps.models.load_model(tmp_path)
    np.testing.assert_array_equal(again.predict_on_batch(data), predicted)
    config = json.loads(json.dumps(model.get_config()))
    assert repr(ps.models.from_config(config).objective) == repr(loss)


def test_values_for_another_scale_are_not_restored(tmp_path: pathlib.Path) -> None:
    def compiled(loss: Any) -> Any:
        model = ps.models.LogisticRegression(SCHEMA)
        model.compile(loss=loss)
        return model

    loss = losses.Standardized(losses.MeanSquaredError(), MEAN, SCALE)
    compiled(loss).save_weights(tmp_path)
    compiled(losses.Standardized(losses.Huber(), MEAN, SCALE)).load_weights(tmp_path)
    for other in ("mse", losses.Standardized(losses.MeanSquaredError(), MEAN, SCALE / 2)):
        with pytest.raises(InvalidArgumentError, match=r"compile\(loss=Standardized\(Mean.* mean"):
            compiled(other).load_weights(tmp_path)
    compiled("mse").save_weights(tmp_path / "plain")
    with pytest.raises(InvalidArgumentError, match=r"compile\(loss='mean_squared_error'\)"):
        compiled(loss).load_weights(tmp_path / "plain")


def test_metrics_and_weights_of_classes_are_refused() -> None:
    model = ps.models.LogisticRegression(SCHEMA)
    loss = losses.Standardized(losses.MeanSquaredError(), MEAN, SCALE)
    with pytest.raises(InvalidArgumentError, match="'auc' measures probabilities"):
        model.compile(loss=loss, metrics=["auc"])
    with pytest.raises(InvalidArgumentError, match="class_weight weighs classes"):
        loss.check_class_weight()


def test_wrong_arguments_are_refused_by_name() -> None:
    squared = losses.MeanSquaredError()
    for wrong in (losses.BinaryCrossentropy(), "mse", losses.MeanSquaredError):
        with pytest.raises(InvalidArgumentError, match="only losses of numbers are standardized"):
            losses.Standardized(wrong, 0, 1)  # type: ignore[arg-type]
    for mean, scale, told in ((np.nan, 1, "mean must be finite"), (0, 0, "scale must be positive")):
        with pytest.raises(InvalidArgumentError, match=told):
            losses.Standardized(squared, mean, scale)
    with pytest.raises(InvalidTypeError, match="mean must be a number, got '3'"):
        losses.Standardized(squared, "3", 1)  # type: ignore[arg-type]
