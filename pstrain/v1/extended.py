"""The ``extended`` attribute of the V1 strategy: device names, and who does one-time work.

Knows neither sessions nor training. Invariant: what is done once for all workers, the chief does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from pstrain.cluster import ClusterResolver
from pstrain.strategy_extended import server_of
from pstrain.v1.placement import Beside
from pstrain.variables.scope import Placement, placement_scope


class Extensible(Protocol):
    """What this module needs of the strategy."""

    is_chief: bool
    placement: Placement

    @property
    def cluster_resolver(self) -> ClusterResolver: ...
    def scope(self) -> AbstractContextManager[Any]: ...
    def run(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...] | list[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any: ...


class Extended:
    """The ``extended`` attribute of one strategy."""

    def __init__(self, strategy: Extensible) -> None:
        spec = strategy.cluster_resolver.cluster_spec()
        resolver = strategy.cluster_resolver
        self._strategy = strategy
        servers = spec.num_tasks("ps") if spec else 0
        own = f"/job:{resolver.task_type}/task:{resolver.task_id}" if spec else "/job:localhost"
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
        return self._strategy.run(fn, args, kwargs)

    def variable_created_in_scope(self, variable: Any) -> bool:
        """True if ``variable`` lives where this strategy's scope places its variables."""
        return getattr(variable, "parameters", None) is self._strategy.placement.parameters

    @contextmanager
    def colocate_vars_with(self, colocate_with_variable: Any) -> Iterator[None]:
        """Places variables made inside on the server of ``colocate_with_variable``.

        InvalidArgumentError if that is a variable of another strategy or of none.
        """
        server = server_of(colocate_with_variable, self)
        with (
            self._strategy.scope(),
            placement_scope(Beside(self._strategy.placement, server)),
        ):
            yield
