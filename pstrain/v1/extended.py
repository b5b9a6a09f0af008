"""The ``extended`` attribute of the V1 strategy: device names, and who does one-time work.

Knows neither sessions nor training. Invariant: what is done once for all workers, the chief does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from pstrain.strategy.extended import Scoped, VariablePlaces
from pstrain.variables.local_parameters import LOCAL_DEVICE
from pstrain.variables.scope import Placement


class Extensible(Scoped, Protocol):
    """What this module needs of the strategy."""

    is_chief: bool
    placement: Placement

    def run(self, fn: Any, args: Any, kwargs: Any) -> Any: ...


class Extended(VariablePlaces):
    """The ``extended`` attribute of one strategy."""

    def __init__(self, strategy: Extensible) -> None:
        super().__init__(strategy, strategy.placement)
        self._run = strategy.run
        resolver = strategy.cluster_resolver
        spec = resolver.cluster_spec()
        servers = spec.num_tasks("ps") if spec else 0
        own = f"/job:{resolver.task_type}/task:{resolver.task_id}" if spec else LOCAL_DEVICE
        self.worker_devices = (own,)
        self.parameter_devices = tuple(f"/job:ps/task:{n}" for n in range(servers)) or (own,)
        self.should_checkpoint = strategy.is_chief
        self.should_save_summary = strategy.is_chief
        self.experimental_should_init = strategy.is_chief
        self.experimental_between_graph = True

    def call_for_each_replica(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...] | list[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Calls ``fn`` for this worker's only replica."""
        return self._run(fn, args, kwargs)
