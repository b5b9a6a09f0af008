"""The public optimizers, and the functions that make one from its name or its JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dataservice.runtime.arguments import nearest
from pstrain.errors import InvalidArgumentError, InvalidTypeError
from pstrain.optimizers import schedules
from pstrain.optimizers.adagrad import Adagrad, RowWiseAdagrad
from pstrain.optimizers.adam import Adam
from pstrain.optimizers.base import Optimizer
from pstrain.optimizers.ftrl import Ftrl
from pstrain.optimizers.rmsprop import RMSprop
from pstrain.optimizers.sgd import SGD, Momentum
from pstrain.porting import foreign_names

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

if not TYPE_CHECKING:  # type checkers still report unknown names
    __getattr__ = foreign_names.module_getattr(__name__, foreign_names.OPTIMIZERS)

_BY_NAME: dict[str, Any] = {
    cls.name: cls for cls in (SGD, Momentum, Adagrad, RowWiseAdagrad, RMSprop, Adam, Ftrl)
}


def named(value: Any) -> Optimizer | None:
    """Returns an optimizer or None unchanged, and a new one for a name such as "adagrad".

    InvalidTypeError for anything else, InvalidArgumentError for an unknown name.
    """
    if value is None or isinstance(value, Optimizer):
        return value
    if not isinstance(value, str):
        raise InvalidTypeError(
            f"an optimizer is one of pstrain.optimizers, such as Adagrad(0.02), got {value!r}"
        )
    plain = value.lower().replace("_", "")
    name = next((name for name in _BY_NAME if name.replace("_", "") == plain), value)
    optimizer: Optimizer = _class_of(name)()
    return optimizer


def _class_of(name: Any) -> Any:
    if name not in _BY_NAME:
        raise InvalidArgumentError(
            f"unknown optimizer {name!r}: choose one of {', '.join(_BY_NAME)}"
            f"{nearest(name, _BY_NAME)}"
        )
    return _BY_NAME[name]


def from_config(config: Mapping[str, Any]) -> Optimizer:
    """Makes an optimizer from :meth:`Optimizer.get_config`, with a new ``iterations`` variable."""
    optimizer: Optimizer = _class_of(config.get("name")).from_config(config)
    return optimizer
