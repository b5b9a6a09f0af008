"""Loss functions: values, gradients, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.metrics import log_loss

from pstrain.errors import DataError, InvalidArgumentError
from pstrain.gradients.tape import GradientTape
from pstrain.gradients.tensor import Tensor
from pstrain.layers.base import whole_leaf
from pstrain.losses import BinaryCrossentropy, sigmoid
from pstrain.metrics import LogLoss
from pstrain.variables.scope import local_parameters
from pstrain.variables.variable import Variable

LABELS = np.array([0, 1, 1, 0])
LOGITS = np.array([-1.0, 2.0, -0.5, 3.0], dtype=np.float32)


def test_losses_of_logits_and_probabilities_agree_with_sklearn() -> None:
    expected = log_loss(LABELS, 1 / (1 + np.exp(-LOGITS)))
    assert float(BinaryCrossentropy(from_logits=True)(LABELS, LOGITS)) == pytest.approx(
        expected, rel=1e-6
    )
    from_probabilities = BinaryCrossentropy()(LABELS, sigmoid(LOGITS))
    assert float(from_probabilities) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("from_logits", [True, False])
def test_loss_gradient_matches_finite_differences(from_logits: bool, reduction: str) -> None:
    def loss(labels: Any, predictions: Any) -> Tensor:
        losses = BinaryCrossentropy(from_logits, reduction=reduction)(labels, predictions)
        weights = np.array([1, 0, 3, 0.5], np.float32)
        return losses if reduction == "mean" else np.mean(losses * weights)  # type: ignore[return-value]

    start = LOGITS if from_logits else sigmoid(LOGITS)
    with local_parameters():
        variable = Variable(start[:, None], name="predictions")
        with GradientTape() as tape:
            mean = loss(LABELS, whole_leaf(variable, variable.numpy()))
        gradient = tape.gradients(mean).of(variable).gradient
    assert gradient.shape == (4, 1)
    for k in range(4):
        moved = np.eye(4, dtype=np.float32)[k] * 2e-3
        slope = (float(loss(LABELS, start + moved)) - float(loss(LABELS, start - moved))) / 4e-3
        assert gradient[k, 0] == pytest.approx(slope, rel=1e-2)


@pytest.mark.parametrize("from_logits", [True, False])
def test_sample_weights_scale_losses_and_gradients(from_logits: bool) -> None:
    start = LOGITS if from_logits else sigmoid(LOGITS)
    weights = pa.array([1, 0, 3, 0.5], pa.float32())
    each = BinaryCrossentropy(from_logits, reduction="none")(LABELS, start)
    weighted = BinaryCrossentropy(from_logits, reduction="none")(LABELS, start, weights)
    assert weighted.numpy() == pytest.approx(each.numpy() * weights.to_numpy())
    with local_parameters():
        variable = Variable(start, name="predictions")
        slopes = []
        for scale in (weights, 2.0):
            with GradientTape() as tape:
                mean = BinaryCrossentropy(from_logits)(
                    LABELS, whole_leaf(variable, variable.numpy()), sample_weight=scale
                )
            expected = np.mean(each.numpy() * np.asarray(scale))
            assert float(mean) == pytest.approx(expected, rel=1e-6)
            slopes.append(tape.gradients(mean).of(variable).gradient)
    assert slopes[0] == pytest.approx(slopes[1] * weights.to_numpy() / 2)
    with pytest.raises(InvalidArgumentError, match="3 weights for 4 predictions"):
        BinaryCrossentropy()(LABELS, start, weights[:3])


def test_more_labels_than_predictions_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="4 labels for 3 predictions"):
        BinaryCrossentropy()(LABELS, Tensor(LOGITS[:3]))


@pytest.mark.parametrize("score", [BinaryCrossentropy(), LogLoss().update_state])
def test_labels_may_be_arrow_columns_or_lists_of_one(score: Any) -> None:
    probabilities = sigmoid(LOGITS)
    expected = BinaryCrossentropy()(LABELS, probabilities)
    for labels in (
        pa.array(LABELS),
        pa.array(LABELS[:, None].tolist()),
        pa.chunked_array([LABELS]),
    ):
        found = score(labels, probabilities)
        assert found is None or float(found) == float(expected)
    for wrong, words in [
        (pa.array([0, 1, None, 0]), "labels hold 1 nulls: filter them out"),
        (pa.array([[0], [1], [1, 1], [0]]), "labels are not numbers but list<item: int64>"),
        ([0, None, None, 1], "labels hold 2 nulls"),
        (np.array(["no", "yes", "yes", "no"]), "labels are not numbers but <U3: map them"),
    ]:
        with pytest.raises(DataError, match=words):
            score(wrong, probabilities)


def test_sigmoid_keeps_shape_and_float32() -> None:
    assert sigmoid(LOGITS.reshape(2, 2)).shape == (2, 2)
    assert sigmoid(LOGITS).dtype == np.float32


def test_probabilities_of_tracked_logits_have_a_gradient() -> None:
    with local_parameters():
        x = Variable(LOGITS.reshape(4, 1), name="x")
        assert isinstance(sigmoid(x), np.ndarray)
        with GradientTape() as tape:
            constant = sigmoid(Tensor(LOGITS))
            loss = np.sum(sigmoid(2.0 * x) * np.arange(4.0).reshape(4, 1))
        found = tape.gradients(loss).of(x).gradient
    assert isinstance(constant, np.ndarray)
    p = 1 / (1 + np.exp(-2.0 * LOGITS))
    np.testing.assert_allclose(found.reshape(-1), 2 * np.arange(4) * p * (1 - p), rtol=1e-4)


@pytest.mark.parametrize("from_logits", [True, False])
def test_loss_of_variable_has_gradient(from_logits: bool) -> None:
    with local_parameters():
        x = Variable(np.full(4, 0.25, np.float32), name="x")
        with GradientTape() as tape:
            loss = BinaryCrossentropy(from_logits=from_logits)(LABELS, x)
        found = tape.gradients(loss).of(x).gradient
    p = 1 / (1 + np.exp(-0.25)) if from_logits else 0.25
    slopes = (p - LABELS) / (1 if from_logits else p * (1 - p)) / 4
    np.testing.assert_allclose(found, slopes, rtol=1e-5)


def test_default_reduction_is_mean_over_batch() -> None:
    probabilities = sigmoid(LOGITS)
    same = BinaryCrossentropy(reduction="sum_over_batch_size")(LABELS, probabilities)
    assert float(same) == float(BinaryCrossentropy()(LABELS, probabilities))


@pytest.mark.parametrize("from_logits", [True, False])
def test_reduction_none_returns_loss_per_example(from_logits: bool) -> None:
    values = LOGITS if from_logits else sigmoid(LOGITS)
    each = BinaryCrossentropy(from_logits, reduction="none")(LABELS, values[:, None])
    assert (each.shape, each.dtype) == ((4,), np.float32)
    mean = BinaryCrossentropy(from_logits)
    alone = [float(mean(LABELS[k : k + 1], values[k : k + 1])) for k in range(4)]
    np.testing.assert_allclose(each, alone, rtol=1e-6)


@pytest.mark.parametrize("wrong", [-0.01, 1.5, float("nan")])
def test_probabilities_outside_zero_to_one_are_refused(wrong: float) -> None:
    values = np.array([0.2, wrong, 0.5, 0.1], np.float32)
    with pytest.raises(InvalidArgumentError, match=r"got (-0.01|1.5|nan): for logits.*True\)"):
        BinaryCrossentropy()(LABELS, values)
    edges = np.array([0.0, 1.0, 1.0, 0.0], np.float32)
    assert float(BinaryCrossentropy()(LABELS, edges)) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("from_logits", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("wrong", [-1.0, 2.0, float("nan")])
def test_labels_outside_zero_to_one_are_refused(
    from_logits: bool, reduction: str, wrong: float
) -> None:
    loss = BinaryCrossentropy(from_logits, reduction=reduction)
    with pytest.raises(InvalidArgumentError, match=f"labels from 0 to 1, got {wrong:g}"):
        loss(np.array([0.0, wrong]), np.array([0.5, 0.5], np.float32))
