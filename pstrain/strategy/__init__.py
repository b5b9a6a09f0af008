"""Strategies: where variables go, which scope is active, and each trainer's share of the input.

- `parameter_server`: ParameterServerStrategy, for the coordinator; `scope`, `extended`: its parts;
- `replica`: the part that trainers have too; `input_sharding`: distributed datasets;
- `default`: the strategy outside of all scopes, of one replica without a cluster.

Its name is imported when first used: trainers need the replica without the strategy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pstrain.public_names import lazy_getattr

if TYPE_CHECKING:
    from pstrain.strategy.parameter_server import ParameterServerStrategy

_HOMES = {"ParameterServerStrategy": "pstrain.strategy.parameter_server"}

__all__ = ["ParameterServerStrategy"]

if not TYPE_CHECKING:  # type checkers still report unknown names
    __getattr__ = lazy_getattr(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
