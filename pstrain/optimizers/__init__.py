"""Public optimizers, and the way back from their JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pstrain.errors import InvalidArgumentError
from pstrain.optimizers.adagrad import Adagrad
from pstrain.optimizers.base import Optimizer
from pstrain.optimizers.sgd import SGD

__all__ = ["SGD", "Adagrad", "Optimizer", "from_config"]


def from_config(config: Mapping[str, Any]) -> Optimizer:
    """Inverse of :meth:`Optimizer.get_config`; makes a new ``iterations`` variable."""
    rate = config["learning_rate"]
    match config["name"]:
        case "sgd":
            return SGD(rate)
        case "adagrad":
            return Adagrad(rate, config["slot_init"], config["parameters"]["epsilon"])
        case name:
            raise InvalidArgumentError(f"unknown optimizer {name!r}: choose 'sgd' or 'adagrad'")
