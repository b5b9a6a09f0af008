"""Loss functions: turn a model's outputs and the labels into one scalar to be minimised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dataservice.runtime.arguments import check_choice, check_true_or_false
from pstrain.errors import InvalidArgumentError
from pstrain.features.columns import check_labels, vector
from pstrain.gradients.recording import record, recording
from pstrain.gradients.tensor import Tensor, as_tensor
from pstrain.kernels import losses as kernels
from pstrain.porting import foreign_arguments, foreign_names
from pstrain.porting.foreign_arguments import refuse_arguments

if not TYPE_CHECKING:  # type checkers still report unknown names
    __getattr__ = foreign_names.module_getattr(__name__, foreign_names.LOSSES)

# Keras accepts several names for the mean.
_REDUCTIONS = ("mean", "sum_over_batch_size", "auto", "none")
_EPSILON = 1e-7

Float64 = NDArray[np.float64]


class BinaryCrossentropy:
    """The mean log loss of binary labels; predictions are probabilities by default, as in Keras.

    Models and layers of this package output logits, which need ``from_logits=True``; that is also
    the numerically stable form. Labels and probabilities outside [0, 1] raise
    InvalidArgumentError. Call it with labels [n] and predictions [n]; it returns a float32 scalar
    Tensor. With ``sample_weight``, [n] or one number, each loss is multiplied by its weight before
    the sum is divided by n. An empty batch has loss 0. ``reduction="none"`` returns the loss of
    each example, float32 [n], from which a step computes its own scalar.
    """

    @refuse_arguments("BinaryCrossentropy", foreign_arguments.BINARY_CROSSENTROPY)
    def __init__(self, from_logits: bool = False, *, reduction: str = "mean") -> None:
        check_choice("reduction", reduction, _REDUCTIONS)
        check_true_or_false(from_logits=from_logits)
        self.from_logits = from_logits
        self.reduction = "none" if reduction == "none" else "mean"

    @refuse_arguments("BinaryCrossentropy", foreign_arguments.LOSS)
    def __call__(
        self,
        labels: ArrayLike,
        predictions: Tensor | NDArray[np.float32],
        sample_weight: ArrayLike | None = None,
    ) -> Tensor:
        tensor = as_tensor(predictions)
        targets = vector("labels", labels)
        check_labels("BinaryCrossentropy", targets)
        values = np.ascontiguousarray(tensor.value, dtype=np.float32).reshape(-1)
        if len(targets) != len(values):
            raise InvalidArgumentError(f"{len(targets)} labels for {len(values)} predictions")
        weights = None if sample_weight is None else _weights(sample_weight, len(values))
        if self.from_logits and self.reduction == "mean":
            return _with_slopes(*_mean_of_logits(targets, values, weights), tensor)
        losses, slopes = (_of_logits if self.from_logits else _of_probabilities)(targets, values)
        if weights is not None:
            losses, slopes = losses * weights, slopes * weights
        if self.reduction == "none":
            return _with_slopes(losses.astype(np.float32), slopes, tensor)
        size = max(len(losses), 1)
        return _with_slopes(np.float32(losses.sum() / size), slopes / size, tensor)

    def __repr__(self) -> str:
        return f"BinaryCrossentropy(from_logits={self.from_logits}, reduction={self.reduction!r})"


def _weights(given: ArrayLike, count: int) -> NDArray[np.float32]:
    """Returns ``given`` as one weight for each of ``count`` examples."""
    weights = vector("sample_weight", given)
    if np.ndim(given) == 0:
        weights = np.repeat(weights, count)
    if len(weights) != count:
        raise InvalidArgumentError(f"{len(weights)} weights for {count} predictions")
    # Kernels are compiled for writable arrays.
    return np.require(weights, np.float32, ("C", "W"))


def _mean_of_logits(
    labels: NDArray[np.float32], logits: NDArray[np.float32], weights: NDArray[np.float32] | None
) -> tuple[np.float32, NDArray[np.float32]]:
    """Returns the mean loss and its derivative with respect to each logit."""
    given = np.empty(0, np.float32) if weights is None else weights
    gradient = np.empty_like(logits)
    return np.float32(kernels.cross_entropy(logits, labels, given, gradient)), gradient


def _with_slopes(loss: Any, slopes: NDArray[Any], predictions: Tensor) -> Tensor:
    """Returns ``loss``, scalar or per prediction, recorded with its derivatives ``slopes``."""
    shape = predictions.shape

    def backward(upstream: NDArray[np.float32]) -> NDArray[np.float32]:
        return (slopes * upstream).astype(np.float32, copy=False).reshape(shape)

    return record(Tensor(loss), (predictions,), backward)


def _of_logits(labels: NDArray[np.float32], logits: NDArray[np.float32]) -> tuple[Float64, Float64]:
    """Returns the loss of each logit and its derivative."""
    z = logits.astype(np.float64)
    decay = np.exp(-np.abs(z))
    losses = np.maximum(z, 0) - z * labels + np.log1p(decay)
    return losses, np.where(z >= 0, 1, decay) / (1 + decay) - labels


def _of_probabilities(
    labels: NDArray[np.float32], probabilities: NDArray[np.float32]
) -> tuple[Float64, Float64]:
    """Returns the loss of each probability and its derivative, which is 0 where it was clipped."""
    losses = np.empty(len(labels), dtype=np.float64)
    if kernels.log_losses(labels, probabilities, _EPSILON, losses):
        outside = ~((probabilities >= 0) & (probabilities <= 1))
        raise InvalidArgumentError(
            f"BinaryCrossentropy() takes probabilities, got {probabilities[outside][0]:g}: for "
            "logits, which models and layers put out, write "
            "BinaryCrossentropy(from_logits=True)"
        )
    p = np.clip(probabilities.astype(np.float64), _EPSILON, 1 - _EPSILON)
    inside = (probabilities >= _EPSILON) & (probabilities <= 1 - _EPSILON)
    return losses, np.where(inside, (p - labels) / (p * (1 - p)), 0)


def check_log_loss(loss: Any) -> None:
    """Raises InvalidArgumentError unless ``loss`` is None or says the log loss, as in Keras."""
    if isinstance(loss, BinaryCrossentropy) and loss.reduction == "mean":
        return
    if loss not in (None, "binary_crossentropy"):
        raise InvalidArgumentError(
            f'loss= may be "binary_crossentropy" or losses.BinaryCrossentropy(), got {loss!r}: '
            "models minimise the log loss; for another write a step with a GradientTape"
        )


def sigmoid(logits: Any) -> Any:
    """Returns probabilities for logits, float32 of the same shape.

    Returns an array, or a Tensor if an active GradientTape has recorded the logits.
    """
    tensor = as_tensor(logits)
    values = np.ascontiguousarray(tensor.value, dtype=np.float32)
    out = np.empty_like(values)
    kernels.sigmoid(values.reshape(-1), out.reshape(-1))
    if not (tensor.tracked and recording()):
        return out
    return record(Tensor(out), (tensor,), lambda grad: grad * out * (1 - out))
