"""Loss functions: from what a model puts out and labels to one scalar to be minimised."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dataservice.runtime.arguments import check_true_or_false, in_words, nearest
from pstrain import foreign_names
from pstrain.columns import vector
from pstrain.errors import InvalidArgumentError
from pstrain.foreign_names import instead_of
from pstrain.kernels import losses as kernels
from pstrain.recording import record
from pstrain.tensor import Tensor

if not TYPE_CHECKING:  # checkers shall go on to report unknown names
    __getattr__ = foreign_names.module_getattr(__name__, foreign_names.LOSSES)

# What Keras calls it as well.
_MEANS = ("mean", "sum_over_batch_size", "auto")


class BinaryCrossentropy:
    """Mean log loss of binary labels, of probabilities unless told otherwise, as in Keras.

    What models and layers here put out are logits: give ``from_logits=True`` for those, which is
    the stable way too. Values outside of [0, 1] are no probabilities: InvalidArgumentError.
    Call with labels [n] and predictions [n]; gives a float32 scalar Tensor. An empty batch has
    loss 0.
    """

    @instead_of("BinaryCrossentropy", foreign_names.BINARY_CROSSENTROPY)
    def __init__(self, from_logits: bool = False, *, reduction: str = "mean") -> None:
        if reduction not in _MEANS:
            raise InvalidArgumentError(
                f"reduction must be one of {in_words(_MEANS)}, got {reduction!r}"
                f"{nearest(reduction, _MEANS)}: the loss is the mean over the batch, a scalar, of "
                "which a tape takes gradients"
            )
        check_true_or_false(from_logits=from_logits)
        self.from_logits = from_logits

    @instead_of("BinaryCrossentropy", foreign_names.LOSS)
    def __call__(self, labels: ArrayLike, predictions: Tensor | NDArray[np.float32]) -> Tensor:
        tensor = predictions if isinstance(predictions, Tensor) else Tensor(predictions)
        targets = vector("labels", labels)
        values = np.ascontiguousarray(tensor.value, dtype=np.float32).reshape(-1)
        if len(targets) != len(values):
            raise InvalidArgumentError(f"{len(targets)} labels for {len(values)} predictions")
        gradient = np.empty_like(values)
        if not self.from_logits:
            return self._from_probabilities(targets, values, tensor)
        mean = kernels.cross_entropy(values, targets, gradient)
        shape = tensor.shape

        def backward(upstream: NDArray[np.float32]) -> NDArray[np.float32]:
            return (gradient * upstream).reshape(shape)

        return record(Tensor(np.float32(mean)), (tensor,), backward)

    def __repr__(self) -> str:
        return f"BinaryCrossentropy(from_logits={self.from_logits})"

    @staticmethod
    def _from_probabilities(
        labels: NDArray[np.float32], probabilities: NDArray[np.float32], tensor: Tensor
    ) -> Tensor:
        outside = ~((probabilities >= 0) & (probabilities <= 1))
        if outside.any():
            raise InvalidArgumentError(
                f"BinaryCrossentropy() takes probabilities, got {probabilities[outside][0]:g}: for "
                "logits, which models and layers put out, write "
                "BinaryCrossentropy(from_logits=True)"
            )
        epsilon = 1e-7
        each = np.empty(len(labels), dtype=np.float64)
        kernels.log_losses(labels, probabilities, epsilon, each)
        size, shape = max(len(labels), 1), tensor.shape

        def backward(upstream: NDArray[np.float32]) -> NDArray[np.float32]:
            p = np.clip(probabilities, epsilon, 1 - epsilon)
            inside = (probabilities >= epsilon) & (probabilities <= 1 - epsilon)
            slope = np.where(inside, (p - labels) / (p * (1 - p)), 0)
            return (slope * (upstream / size)).astype(np.float32).reshape(shape)

        return record(Tensor(np.float32(each.sum() / size)), (tensor,), backward)


def sigmoid(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Probabilities from logits, float32 of the same shape."""
    values = np.ascontiguousarray(logits, dtype=np.float32)
    out = np.empty_like(values)
    kernels.sigmoid(values.reshape(-1), out.reshape(-1))
    return out
