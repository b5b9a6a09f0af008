"""The log loss of binary labels, from probabilities or logits, and probabilities from logits.

Knows nothing of models. Invariant: labels and probabilities lie between 0 and 1.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike

from dataservice.runtime.arguments import check_true_or_false
from pstrain.errors import InvalidArgumentError
from pstrain.features import columns
from pstrain.gradients.recording import record, recording
from pstrain.gradients.tensor import Tensor, as_tensor
from pstrain.kernels import losses as kernels
from pstrain.losses.base import Float32, Float64, Loss
from pstrain.metrics.mean import log_losses
from pstrain.porting import foreign_arguments
from pstrain.porting.foreign_arguments import refuse_arguments

_EPSILON: Final = 1e-7
_NO_WEIGHTS: Final = np.empty(0, np.float32)


class BinaryCrossentropy(Loss):
    """The mean log loss of binary labels; predictions are probabilities by default, as in Keras.

    Models and layers of this package output logits, which need ``from_logits=True``; that is also
    the numerically stable form. Labels and probabilities outside [0, 1] raise
    InvalidArgumentError. Call it with labels [n] and predictions [n]; it returns a float32 scalar
    Tensor. With ``sample_weight``, [n] or one number, each loss is multiplied by its weight before
    the sum is divided by n. An empty batch has loss 0. ``reduction="none"`` returns the loss of
    each example, float32 [n], from which a step computes its own scalar.
    """

    link = "sigmoid"
    packed_labels = np.uint8

    @refuse_arguments("BinaryCrossentropy", foreign_arguments.BINARY_CROSSENTROPY)
    def __init__(self, from_logits: bool = False, *, reduction: str = "mean") -> None:
        super().__init__(reduction)
        check_true_or_false(from_logits=from_logits)
        self.from_logits = from_logits

    @property
    def of_outputs(self) -> BinaryCrossentropy:
        return BinaryCrossentropy(from_logits=True, reduction=self.reduction)

    def predicted(self, outputs: Float32) -> Float32:
        probabilities: Float32 = sigmoid(outputs)
        return probabilities

    def read_labels(self, name: str, column: pa.Array) -> Float32:
        return columns.labels(name, column)

    def of_predictions(self, name: str, labels: ArrayLike, predictions: ArrayLike) -> Float64:
        return log_losses(name, labels, predictions, _EPSILON)

    def check_class_weight(self) -> None: ...

    def get_config(self) -> dict[str, Any]:
        return {"name": "binary_crossentropy"}

    def _check_labels(self, labels: Float32) -> None:
        columns.check_labels("BinaryCrossentropy", labels)

    def _mean(
        self, labels: Float32, values: Float32, weights: Float32 | None
    ) -> tuple[np.float32, Any]:
        if not self.from_logits:
            return super()._mean(labels, values, weights)
        gradient = np.empty_like(values)
        given = _NO_WEIGHTS if weights is None else weights
        return np.float32(kernels.cross_entropy(values, labels, given, gradient)), gradient

    def _each(self, labels: Float32, values: Float32) -> tuple[Float64, Float64]:
        return (_of_logits if self.from_logits else _of_probabilities)(labels, values)

    def __repr__(self) -> str:
        return f"BinaryCrossentropy(from_logits={self.from_logits}, reduction={self.reduction!r})"


def _of_logits(labels: Float32, logits: Float32) -> tuple[Float64, Float64]:
    """Returns the loss of each logit and its derivative."""
    z = logits.astype(np.float64)
    decay = np.exp(-np.abs(z))
    losses = np.maximum(z, 0) - z * labels + np.log1p(decay)
    return losses, np.where(z >= 0, 1, decay) / (1 + decay) - labels


def _of_probabilities(labels: Float32, probabilities: Float32) -> tuple[Float64, Float64]:
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
