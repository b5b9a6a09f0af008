"""The V1 form: every worker runs the same script, without a coordinator.

Its names are imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pstrain.public_names import lazy_getattr

if TYPE_CHECKING:
    from pstrain.v1.strategy import ParameterServerStrategy
    from pstrain.v1.training import TrainingSession

_HOMES = {
    "ParameterServerStrategy": "pstrain.v1.strategy",
    "TrainingSession": "pstrain.v1.training",
}

__all__ = ["ParameterServerStrategy", "TrainingSession"]

if not TYPE_CHECKING:  # type checkers still report unknown names
    __getattr__ = lazy_getattr(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
