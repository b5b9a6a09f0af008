"""A loss of regression for labels of any size: a network puts out numbers near 0 all the same.

Knows nothing of models. Invariant: outputs, labels and predictions are in the same unit whenever
they are compared: that of the outputs in the loss, that of the labels outside of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from dataservice.runtime.arguments import check_number, positive
from pstrain.errors import InvalidArgumentError
from pstrain.losses.base import Float32, Float64, Loss
from pstrain.metrics.base import pairs


class Standardized(Loss):
    """Another loss of regression, of (label - mean) / scale and what a network puts out.

    A model that minimises it predicts outputs * scale + mean, so labels such as prices are learnt
    as fast as small numbers: outputs begin near 0. ``loss``: of ``pstrain.losses``, for numbers; it
    measures errors in units of ``scale``, as does ``delta`` of :class:`Huber`. ``mean`` and
    ``scale``: best those of the labels, as ``labels.mean()`` and ``labels.std()``. Called in a step
    of your own, it takes labels, and outputs that are not scaled back yet.
    """

    link = "identity"
    packed_labels = np.float32

    def __init__(self, loss: Loss, mean: float, scale: float) -> None:
        if not isinstance(loss, Loss) or loss.link == "sigmoid":
            raise InvalidArgumentError(
                f"only losses of numbers are standardized, got {loss!r}: give one such as "
                "MeanSquaredError()"
            )
        super().__init__(loss.reduction)
        check_number("mean", mean)
        self.loss, self.mean, self.scale = loss, float(mean), positive(scale, "scale")
        # Values that were learnt by another mean or scale are of no use.
        self.link = f"{loss.link} * {self.scale:.9g} + {self.mean:.9g}"

    def predicted(self, outputs: Float32) -> Float32:
        numbers = np.asarray(self.loss.predicted(outputs), np.float64) * self.scale + self.mean
        with np.errstate(over="ignore"):  # what a float32 does not hold is infinite
            return numbers.astype(np.float32)

    def read_labels(self, name: str, column: pa.Array) -> Float32:
        return self.loss.read_labels(name, column)

    def of_predictions(self, name: str, labels: ArrayLike, predictions: ArrayLike) -> Float64:
        truth, given = pairs(name, labels, predictions, np.float64)
        return self.loss.of_predictions(name, self._standardized(truth), self._standardized(given))

    def check_class_weight(self) -> None:
        self.loss.check_class_weight()

    def get_config(self) -> dict[str, Any]:
        return {
            "name": "standardized",
            "loss": self.loss.get_config(),
            "mean": self.mean,
            "scale": self.scale,
        }

    def _check_labels(self, labels: Float32) -> None:
        self.loss._check_labels(labels)

    def _each(self, labels: Float32, values: Float32) -> tuple[Float64, Float64]:
        return self.loss._each(self._standardized(labels).astype(np.float32), values)

    def _mean(
        self, labels: Float32, values: Float32, weights: Float32 | None
    ) -> tuple[np.float32, NDArray[Any]]:
        return self.loss._mean(self._standardized(labels).astype(np.float32), values, weights)

    def _standardized(self, numbers: NDArray[Any]) -> Float64:
        return (numbers.astype(np.float64) - self.mean) / self.scale

    def __repr__(self) -> str:
        return f"Standardized({self.loss!r}, mean={self.mean:g}, scale={self.scale:g})"
