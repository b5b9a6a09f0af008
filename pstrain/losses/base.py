"""The base of losses: labels and predictions to one scalar, and what a loss decides for a model.

Knows nothing of models or of loops. Invariant: of the outputs of a model, its loss alone says what
they mean: which labels they are compared with, and what is predicted from them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, DTypeLike, NDArray

from dataservice.runtime.arguments import check_choice
from pstrain.errors import InvalidArgumentError
from pstrain.features.columns import vector
from pstrain.gradients.recording import record
from pstrain.gradients.tensor import Tensor, as_tensor
from pstrain.porting import foreign_arguments
from pstrain.porting.foreign_arguments import refuse_arguments

# Keras accepts several names for the mean.
_REDUCTIONS: Final = ("mean", "sum_over_batch_size", "auto", "none")

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]


class Loss(ABC):
    """The base of losses of labels [n] and predictions [n] or [n, 1].

    Call it with both; it returns a float32 scalar Tensor, the mean. With ``sample_weight``, [n] or
    one number, each loss is multiplied by its weight before the sum is divided by n. An empty batch
    has loss 0. ``reduction="none"`` returns the loss of each example, float32 [n], from which a
    step computes its own scalar.
    """

    link: str
    """What makes predictions of a model's outputs: "sigmoid", "identity" or words of its own."""
    packed_labels: ClassVar[DTypeLike]
    """The smallest type that holds any label of a model."""

    def __init__(self, reduction: str = "mean") -> None:
        check_choice("reduction", reduction, _REDUCTIONS)
        self.reduction = "none" if reduction == "none" else "mean"

    @refuse_arguments("a loss", foreign_arguments.LOSS)
    def __call__(
        self,
        labels: ArrayLike,
        predictions: Tensor | Float32,
        sample_weight: ArrayLike | None = None,
    ) -> Tensor:
        tensor = as_tensor(predictions)
        targets = _writable(vector("labels", labels))
        self._check_labels(targets)
        values = _writable(np.ascontiguousarray(tensor.value, dtype=np.float32).reshape(-1))
        if len(targets) != len(values):
            raise InvalidArgumentError(f"{len(targets)} labels for {len(values)} predictions")
        weights = None if sample_weight is None else _weights(sample_weight, len(values))
        if self.reduction == "mean":
            return _with_slopes(*self._mean(targets, values, weights), tensor)
        losses, slopes = self._each(targets, values)
        if weights is not None:
            losses, slopes = losses * weights, slopes * weights
        with np.errstate(over="ignore"):  # what a float32 does not hold is infinite
            return _with_slopes(losses.astype(np.float32), slopes, tensor)

    @property
    def of_outputs(self) -> Loss:
        """The same loss of what layers put out, from which :meth:`predicted` makes predictions."""
        return self

    @abstractmethod
    def predicted(self, outputs: Float32) -> Float32:
        """Returns the predictions of a model that puts out ``outputs``."""

    @abstractmethod
    def read_labels(self, name: str, column: pa.Array) -> Float32:
        """Returns the labels in a column; DataError for values that a model is not trained on."""

    @abstractmethod
    def of_predictions(self, name: str, labels: ArrayLike, predictions: ArrayLike) -> Float64:
        """Returns the loss of each prediction of a model, for the metric of this name."""

    @abstractmethod
    def check_class_weight(self) -> None:
        """Raises InvalidArgumentError if the labels are no classes, which could be weighed."""

    @abstractmethod
    def get_config(self) -> dict[str, Any]:
        """Returns the JSON form, of which :func:`pstrain.losses.from_config` makes a loss."""

    @abstractmethod
    def _check_labels(self, labels: Float32) -> None:
        """Raises InvalidArgumentError for labels that the loss cannot take."""

    @abstractmethod
    def _each(self, labels: Float32, values: Float32) -> tuple[Float64, Float64]:
        """Returns the loss of each prediction, and its derivative."""

    def _mean(
        self, labels: Float32, values: Float32, weights: Float32 | None
    ) -> tuple[np.float32, NDArray[Any]]:
        """Returns the mean loss, and its derivative with respect to each prediction."""
        losses, slopes = self._each(labels, values)
        if weights is not None:
            losses, slopes = losses * weights, slopes * weights
        size = max(len(losses), 1)
        return np.float32(losses.sum() / size), slopes / size


def _weights(given: ArrayLike, count: int) -> Float32:
    """Returns ``given`` as one weight for each of ``count`` examples."""
    weights = vector("sample_weight", given)
    if np.ndim(given) == 0:
        weights = np.repeat(weights, count)
    if len(weights) != count:
        raise InvalidArgumentError(f"{len(weights)} weights for {count} predictions")
    return _writable(weights)


def _writable(values: Float32) -> Float32:
    """Returns ``values``, copied if need be: kernels are compiled for writable arrays."""
    return values if values.flags.writeable else values.copy()


def _with_slopes(loss: Any, slopes: NDArray[Any], predictions: Tensor) -> Tensor:
    """Returns ``loss``, scalar or per prediction, recorded with its derivatives ``slopes``."""
    shape = predictions.shape

    def backward(upstream: Float32) -> Float32:
        return (slopes * upstream).astype(np.float32, copy=False).reshape(shape)

    return record(Tensor(loss), (predictions,), backward)
