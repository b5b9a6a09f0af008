"""The public losses, which turn outputs and labels into one scalar to be minimised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dataservice.runtime.arguments import nearest
from pstrain.errors import InvalidArgumentError
from pstrain.losses import base
from pstrain.losses.cross_entropy import BinaryCrossentropy, sigmoid
from pstrain.losses.regression import Huber, MeanAbsoluteError, MeanSquaredError
from pstrain.losses.standardized import Standardized
from pstrain.porting import foreign_names

__all__ = [
    "BinaryCrossentropy",
    "Huber",
    "MeanAbsoluteError",
    "MeanSquaredError",
    "Standardized",
    "sigmoid",
]

if not TYPE_CHECKING:  # type checkers still report unknown names
    __getattr__ = foreign_names.module_getattr(__name__, foreign_names.LOSSES)

_BY_NAME: dict[str, type[Any]] = {
    "binary_crossentropy": BinaryCrossentropy,
    "huber": Huber,
    "mean_absolute_error": MeanAbsoluteError,
    "mean_squared_error": MeanSquaredError,
}
_ALIASES = {
    "bce": "binary_crossentropy",
    "mae": "mean_absolute_error",
    "mse": "mean_squared_error",
}


def of_model(value: Any) -> base.Loss:
    """Returns the loss of a model's outputs, from a loss or a name such as "mse", as in Keras.

    InvalidArgumentError for anything else, and for a loss without a mean.
    """
    loss = _named(value) if isinstance(value, str) else value
    if isinstance(loss, type) and issubclass(loss, base.Loss):
        raise InvalidArgumentError(f"loss= is an object, got a class: write {loss.__name__}()")
    if not isinstance(loss, base.Loss):
        raise InvalidArgumentError(
            f"loss= is one of {', '.join(_BY_NAME)}, or an object of pstrain.losses, got "
            f"{value!r}: for another write a step with a GradientTape"
        )
    if loss.reduction != "mean":
        raise InvalidArgumentError(f"a model minimises the mean of a loss, got {loss!r}")
    return loss.of_outputs


def from_config(config: Mapping[str, Any]) -> base.Loss:
    """Returns the loss of a model's outputs that ``get_config`` has described."""
    options = dict(config) if isinstance(config, Mapping) else {"name": config}
    name = options.pop("name", None)
    if name == "standardized":
        return Standardized(from_config(options.pop("loss", {})), **options)
    if name not in _BY_NAME:
        raise InvalidArgumentError(f"unknown loss {name!r}: choose one of {', '.join(_BY_NAME)}")
    return of_model(_BY_NAME[name](**options))


def _named(value: str) -> base.Loss:
    plain = value.lower().replace("_", "")
    full = _ALIASES.get(plain, plain).replace("_", "")
    found = next((kind for name, kind in _BY_NAME.items() if name.replace("_", "") == full), None)
    if found is None:
        raise InvalidArgumentError(
            f"unknown loss {value!r}: choose one of {', '.join(_BY_NAME)}, or write a step with a "
            f"GradientTape{nearest(value, _BY_NAME)}"
        )
    loss: base.Loss = found()
    return loss
