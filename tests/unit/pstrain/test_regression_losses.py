"""Losses of regression: values, gradients, refusals, names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.metrics import mean_absolute_error, mean_squared_error

from pstrain import losses
from pstrain.errors import InvalidArgumentError, InvalidTypeError
from pstrain.gradients.tape import GradientTape
from pstrain.kernels import regression as kernels
from pstrain.layers.base import whole_leaf
from pstrain.losses.base import Loss
from pstrain.variables.scope import local_parameters
from pstrain.variables.variable import Variable

LABELS = np.array([3.5, -1.0, 120.0, 2.0])
PREDICTIONS = np.array([3.0, 1.0, 110.0, 2.25], dtype=np.float32)
WEIGHTS = np.array([1, 0, 3, 0.5], np.float32)
KINDS = [losses.MeanSquaredError, losses.MeanAbsoluteError, losses.Huber]


def slopes_of(loss: Loss, weights: Any = None) -> Any:
    """Returns the gradient of the mean of the losses with respect to each prediction."""
    with local_parameters():
        variable = Variable(PREDICTIONS[:, None], name="predictions")
        with GradientTape() as tape:
            mean = np.mean(loss(LABELS, whole_leaf(variable, variable.numpy()), weights))  # type: ignore[call-overload]
        return tape.gradients(mean).of(variable).gradient


def test_means_agree_with_sklearn() -> None:
    for loss, expected in [
        (losses.MeanSquaredError(), mean_squared_error(LABELS, PREDICTIONS)),
        (losses.MeanAbsoluteError(), mean_absolute_error(LABELS, PREDICTIONS)),
        (losses.Huber(1e6), mean_squared_error(LABELS, PREDICTIONS) / 2),
    ]:
        found = loss(LABELS, PREDICTIONS)
        assert float(found) == pytest.approx(expected, rel=1e-6)
        assert found.numpy().dtype == np.float32
    assert float(losses.Huber()(LABELS, PREDICTIONS)) == pytest.approx(
        (0.5**2 / 2 + 1.5 + 9.5 + 0.25**2 / 2) / 4
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_gradient_matches_finite_differences(kind: Any, weights: Any) -> None:
    for reduction in ("mean", "none"):
        gradient = slopes_of(kind(reduction=reduction), weights)
        assert gradient.shape == (4, 1)
        for k in range(4):
            moved = np.eye(4, dtype=np.float32)[k] * 2**-4
            each = kind(reduction="none")
            above, below = (
                each(LABELS, PREDICTIONS + side * moved, weights).numpy().astype(np.float64).mean()
                for side in (1, -1)
            )
            assert gradient[k, 0] == pytest.approx((above - below) / 2**-3, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_mean_is_the_mean_of_the_losses_of_each(kind: Any) -> None:
    for weights in (None, WEIGHTS, 2.0):
        each = kind(reduction="none")(LABELS, PREDICTIONS[:, None], weights)
        assert (each.shape, each.numpy().dtype) == ((4,), np.float32)
        mean = kind()(LABELS, PREDICTIONS[:, None], weights)
        assert float(mean) == pytest.approx(float(np.mean(each.numpy())), rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_labels_are_any_finite_numbers(kind: Any) -> None:
    loss = kind()
    for labels in (pa.array(LABELS), LABELS[:, None].tolist(), pa.chunked_array([LABELS])):
        assert float(loss(labels, PREDICTIONS)) == float(loss(LABELS, PREDICTIONS))
    for wrong in (np.nan, np.inf):
        with pytest.raises(InvalidArgumentError, match=rf"{kind.__name__} needs finite labels, go"):
            loss(np.array([1.0, wrong]), np.zeros(2, np.float32))
    with pytest.raises(InvalidArgumentError, match="4 labels for 3 predictions"):
        loss(LABELS, PREDICTIONS[:3])


def test_arguments_of_keras_are_taken_or_refused_by_name() -> None:
    assert losses.MeanSquaredError(reduction="sum_over_batch_size").reduction == "mean"
    assert losses.MeanAbsoluteError("none").reduction == "none"
    assert losses.Huber(2.0).delta == losses.Huber(delta=2).delta == 2.0
    for kind in KINDS:
        with pytest.raises(InvalidTypeError, match=r"takes no argument 'name': a loss has none"):
            kind(name="error")  # type: ignore[call-arg]
        with pytest.raises(InvalidArgumentError, match="reduction"):
            kind(reduction="median")
    for wrong in (0, -1.0, float("inf")):
        with pytest.raises(InvalidArgumentError, match="delta must be"):
            losses.Huber(wrong)
    with pytest.raises(InvalidTypeError, match="a loss takes no argument 'y_true': write labels="):
        losses.Huber()(y_true=LABELS, y_pred=PREDICTIONS)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("mse", losses.MeanSquaredError),
        ("MSE", losses.MeanSquaredError),
        ("mean_squared_error", losses.MeanSquaredError),
        ("MeanSquaredError", losses.MeanSquaredError),
        ("mae", losses.MeanAbsoluteError),
        ("mean_absolute_error", losses.MeanAbsoluteError),
        ("Huber", losses.Huber),
        ("bce", losses.BinaryCrossentropy),
        ("binary_crossentropy", losses.BinaryCrossentropy),
    ],
)
def test_losses_of_models_have_the_names_of_keras(name: str, kind: Any) -> None:
    assert type(losses.of_model(name)) is kind


def test_loss_of_a_model_is_made_again_of_its_configuration() -> None:
    for loss in (losses.MeanSquaredError(), losses.MeanAbsoluteError(), losses.Huber(2.5)):
        assert repr(losses.from_config(loss.get_config())) == repr(loss)
    of_logits = losses.from_config(losses.BinaryCrossentropy().get_config())
    assert repr(of_logits) == "BinaryCrossentropy(from_logits=True, reduction='mean')"
    with pytest.raises(InvalidArgumentError, match="unknown loss 'hinge': choose one of"):
        losses.from_config({"name": "hinge"})
    for wrong in (None, "mse", {"name": "mse"}):
        with pytest.raises(InvalidArgumentError, match=r"unknown loss .*: choose one of"):
            losses.from_config(wrong)  # type: ignore[arg-type]


def test_class_of_losses_in_the_place_of_a_loss_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"got a class: write MeanSquaredError\(\)$"):
        losses.of_model(losses.MeanSquaredError)


def test_arrays_that_are_read_only_need_no_kernels_of_their_own() -> None:
    fixed = PREDICTIONS.copy()
    fixed.flags.writeable = False
    losses.MeanSquaredError()(LABELS, PREDICTIONS)
    before = len(kernels.squared_errors.signatures)
    losses.MeanSquaredError()(pa.array(LABELS, pa.float32()), fixed, fixed)
    assert len(kernels.squared_errors.signatures) == before
