"""Losses of regression: labels and predictions are any finite numbers.

Knows nothing of models. Invariant: a model's predictions are its outputs, unchanged.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike

from dataservice.runtime.arguments import positive
from pstrain.errors import InvalidArgumentError
from pstrain.features import columns
from pstrain.kernels import regression as kernels
from pstrain.losses.base import Float32, Float64, Loss
from pstrain.metrics.base import pairs
from pstrain.porting import foreign_arguments
from pstrain.porting.foreign_arguments import refuse_arguments

_NO_WEIGHTS: Final = np.empty(0, np.float32)


class _OfErrors(Loss):
    """The base of losses that depend on prediction - label alone."""

    link = "identity"
    packed_labels = np.float32
    _name: str

    def predicted(self, outputs: Float32) -> Float32:
        # compute() of a subclass may return a column of the batch, or float64.
        return np.array(outputs, np.float32)

    def read_labels(self, name: str, column: pa.Array) -> Float32:
        return columns.number_labels(name, column)

    def of_predictions(self, name: str, labels: ArrayLike, predictions: ArrayLike) -> Float64:
        truth, given = pairs(name, labels, predictions, np.float64)
        return self._of_errors(given - truth)[0]

    def check_class_weight(self) -> None:
        raise InvalidArgumentError(
            f"class_weight weighs classes, and labels of {self!r} are numbers: give sample_weight, "
            "a weight for each row"
        )

    def get_config(self) -> dict[str, Any]:
        return {"name": self._name}

    def _check_labels(self, labels: Float32) -> None:
        wrong = ~np.isfinite(labels)
        if wrong.any():
            raise InvalidArgumentError(
                f"{type(self).__name__} needs finite labels, got {labels[wrong][0]:g}: filter such "
                "rows out, or scale labels that a float32 does not hold"
            )

    def _each(self, labels: Float32, values: Float32) -> tuple[Float64, Float64]:
        return self._of_errors(values.astype(np.float64) - labels.astype(np.float64))

    def _mean(
        self, labels: Float32, values: Float32, weights: Float32 | None
    ) -> tuple[np.float32, Float32]:
        gradient = np.empty_like(values)
        given = _NO_WEIGHTS if weights is None else weights
        mean = self._kernel(values, labels, given, gradient)
        with np.errstate(over="ignore"):  # what a float32 does not hold is infinite
            return np.float32(mean), gradient

    @abstractmethod
    def _kernel(self, *arrays: Float32) -> float:
        """Returns the mean loss of (predictions, labels, weights, gradient); sets the last."""

    @abstractmethod
    def _of_errors(self, errors: Float64) -> tuple[Float64, Float64]:
        """Returns the loss of each error, and its derivative."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(reduction={self.reduction!r})"


class MeanSquaredError(_OfErrors):
    """The mean of (prediction - label)^2, for labels that are any finite numbers.

    Arguments and weights are as for :class:`BinaryCrossentropy`. A model that minimises it predicts
    the mean label of rows like the one given.
    """

    _name = "mean_squared_error"

    @refuse_arguments("MeanSquaredError", foreign_arguments.NEW_LOSS)
    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(reduction)

    def _kernel(self, *arrays: Float32) -> float:
        return kernels.squared_errors(*arrays)  # type: ignore[no-any-return]

    def _of_errors(self, errors: Float64) -> tuple[Float64, Float64]:
        return errors * errors, 2 * errors


class MeanAbsoluteError(_OfErrors):
    """The mean of |prediction - label|, on which single wild labels have less influence.

    Arguments and weights are as for :class:`BinaryCrossentropy`. A model that minimises it predicts
    the median label of rows like the one given. The slope is 0 where prediction and label agree.
    """

    _name = "mean_absolute_error"

    @refuse_arguments("MeanAbsoluteError", foreign_arguments.NEW_LOSS)
    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(reduction)

    def _kernel(self, *arrays: Float32) -> float:
        return kernels.absolute_errors(*arrays)  # type: ignore[no-any-return]

    def _of_errors(self, errors: Float64) -> tuple[Float64, Float64]:
        return np.abs(errors), np.sign(errors)


class Huber(_OfErrors):
    """The mean of e^2 / 2 for errors up to ``delta``, and of delta * (|e| - delta / 2) beyond it.

    Smooth like :class:`MeanSquaredError` near the label, linear like :class:`MeanAbsoluteError` far
    from it. Arguments and weights are otherwise as for :class:`BinaryCrossentropy`.
    """

    _name = "huber"

    @refuse_arguments("Huber", foreign_arguments.NEW_LOSS)
    def __init__(self, delta: float = 1.0, *, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.delta = positive(delta, "delta")

    def get_config(self) -> dict[str, Any]:
        return {"name": self._name, "delta": self.delta}

    def _kernel(self, *arrays: Float32) -> float:
        predictions, labels, weights, gradient = arrays
        return kernels.huber_errors(predictions, labels, weights, gradient, self.delta)  # type: ignore[no-any-return]

    def _of_errors(self, errors: Float64) -> tuple[Float64, Float64]:
        size, delta = np.abs(errors), self.delta
        linear = delta * (size - 0.5 * delta)
        is_far = size > delta
        slopes = np.where(is_far, delta * np.sign(errors), errors)
        return np.where(is_far, linear, 0.5 * errors * errors), slopes

    def __repr__(self) -> str:
        return f"Huber(delta={self.delta:g}, reduction={self.reduction!r})"
