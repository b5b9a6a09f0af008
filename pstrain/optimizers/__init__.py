"""Public optimizers, and the way back from their JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pstrain.errors import InvalidArgumentError
from pstrain.optimizers import schedules
from pstrain.optimizers.adagrad import Adagrad, RowWiseAdagrad
from pstrain.optimizers.adam import Adam
from pstrain.optimizers.base import Optimizer, rate_of
from pstrain.optimizers.ftrl import Ftrl
from pstrain.optimizers.rmsprop import RMSprop
from pstrain.optimizers.sgd import SGD, Momentum

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "Ftrl",
    "Momentum",
    "Optimizer",
    "RMSprop",
    "RowWiseAdagrad",
    "schedules",
]

_BY_NAME: dict[str, Any] = {
    cls.name: cls for cls in (SGD, Momentum, Adagrad, RowWiseAdagrad, RMSprop, Adam, Ftrl)
}


def from_config(config: Mapping[str, Any]) -> Optimizer:
    """Inverse of :meth:`Optimizer.get_config`; makes a new ``iterations`` variable."""
    make = _BY_NAME.get(config.get("name", ""))
    if make is None:
        raise InvalidArgumentError(
            f"unknown optimizer {config.get('name')!r}: choose one of {', '.join(_BY_NAME)}"
        )
    arguments = {k: v for k, v in config.items() if k not in ("name", "learning_rate")}
    optimizer: Optimizer = make(rate_of(config["learning_rate"]), **arguments)
    return optimizer
