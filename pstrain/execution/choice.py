"""Chooses the executor that runs a model's functions, and how many steps one call takes.

The only module of the package that knows both executors. Invariant: a model that was made inside
``strategy.scope()`` runs on that strategy's trainers unless its user says otherwise.
"""

from __future__ import annotations

from typing import Any

from pstrain.consistency import ASYNC
from pstrain.errors import InvalidArgumentError
from pstrain.execution.executor import Executor
from pstrain.execution.local import LocalExecutor
from pstrain.strategy.parameter_server import ParameterServerStrategy
from pstrain.v1.strategy import ParameterServerStrategy as V1Strategy


def executor_of(model: Any, distributed: bool | None = None) -> Executor:
    """Returns an executor on the cluster of the model's variables, or in this process.

    In the V1 form each worker is a program of its own, and runs its functions in this process.
    ``distributed`` False: this process in any case; True: InvalidArgumentError if there is no
    cluster.
    """
    strategy = getattr(model, "strategy", None)
    worker = strategy if isinstance(strategy, V1Strategy) else None
    if not isinstance(strategy, ParameterServerStrategy):
        strategy = None
    if distributed and strategy is None:
        raise InvalidArgumentError(
            "distributed=True needs a model that was made inside strategy.scope()"
        )
    if strategy is None or distributed is False:
        return LocalExecutor(is_alone=getattr(model, "strategy", None) is None, worker=worker)
    # Imported here, because trainers import this module with their steps and need no coordinator.
    from pstrain.coordinator.client import ClusterCoordinator
    from pstrain.execution.cluster import ClusterExecutor

    return ClusterExecutor(ClusterCoordinator(strategy))


def allowed_steps(model: Any, wanted: int) -> int:
    """Returns ``wanted``, or 1 if the rule of consistency counts steps, or steps are repeated."""
    strategy = getattr(model, "strategy", None)
    if isinstance(strategy, V1Strategy) and strategy.parameters is not None:
        return 1
    if not isinstance(strategy, ParameterServerStrategy) or strategy.consistency == ASYNC:
        return wanted
    return 1
