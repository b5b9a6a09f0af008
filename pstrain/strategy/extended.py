"""The ``extended`` attribute of a strategy: device names, and control over where variables go.

Knows neither servers nor sessions. Invariant: whatever it reports about a variable's placement is
taken from the variable's own parameters and spec.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, Protocol

from pstrain.cluster import ClusterResolver
from pstrain.errors import InvalidArgumentError
from pstrain.strategy.replica import ReduceOp
from pstrain.variables.local_parameters import LOCAL_DEVICE, LocalParameters
from pstrain.variables.scope import OneServerPlacement, Placement, placement_scope


class Scoped(Protocol):
    """What this module needs of a strategy."""

    @property
    def cluster_resolver(self) -> ClusterResolver: ...
    def scope(self) -> AbstractContextManager[Any]: ...


class VariablePlaces:
    """Control over where the variables of a strategy go, as ``placement`` says by default."""

    def __init__(self, strategy: Scoped, placement: Placement) -> None:
        self._strategy = strategy
        self._placement = placement

    def variable_created_in_scope(self, variable: Any) -> bool:
        """True if ``variable`` lives where this strategy's scope places its variables."""
        return getattr(variable, "parameters", None) is self._placement.parameters

    @contextmanager
    def colocate_vars_with(self, colocate_with_variable: Any) -> Iterator[None]:
        """Places variables made inside, uncut, on the server of the given variable's first rows.

        InvalidArgumentError for a variable of another strategy or of none.
        """
        if not self.variable_created_in_scope(colocate_with_variable):
            raise _nothing_beside(colocate_with_variable)
        server = _server_of(colocate_with_variable)
        with (
            self._strategy.scope(),
            placement_scope(OneServerPlacement(self._placement, server)),
        ):
            yield


class OnlyReplica:
    """Reductions to devices and updates of variables, for the only replica of a process."""

    def __init__(self) -> None:
        self.should_checkpoint = True
        self.should_save_summary = True

    def reduce_to(
        self,
        reduce_op: Any,
        value: Any,
        destinations: Any,  # noqa: ARG002
        options: Any = None,  # noqa: ARG002
    ) -> Any:
        """Returns ``value`` unchanged: it is that of the only replica."""
        ReduceOp.of(reduce_op)
        return value

    def batch_reduce_to(
        self,
        reduce_op: Any,
        value_destination_pairs: Any,
        options: Any = None,  # noqa: ARG002
    ) -> list[Any]:
        """Calls :meth:`reduce_to` for each pair (value, destinations)."""
        return [self.reduce_to(reduce_op, value, to) for value, to in value_destination_pairs]

    def update(
        self,
        var: Any,
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        group: bool = True,
    ) -> Any:
        """Calls ``fn(var, *args)``; returns its value if ``group``, else a tuple with the value."""
        result = fn(var, *args, **(kwargs or {}))
        return result if group else (result,)


class Extended(VariablePlaces, OnlyReplica):
    """The object behind ``strategy.extended``, with TensorFlow's names."""

    def __init__(self, strategy: Scoped, placement: Placement) -> None:
        VariablePlaces.__init__(self, strategy, placement)
        OnlyReplica.__init__(self)
        spec = strategy.cluster_resolver.cluster_spec()
        self.worker_devices = _devices("worker", spec.task_indices("worker"))
        self.parameter_devices = _devices("ps", range(spec.num_tasks("ps")))


class DefaultExtended(OnlyReplica):
    """The ``extended`` of the default strategy: this process is the only device."""

    worker_devices: Final = (LOCAL_DEVICE,)
    parameter_devices: Final = (LOCAL_DEVICE,)

    def __init__(self, scope: Callable[[], AbstractContextManager[Any]]) -> None:
        super().__init__()
        self._scope = scope

    def variable_created_in_scope(self, variable: Any) -> bool:
        """True if ``variable`` lives in this process."""
        return isinstance(getattr(variable, "parameters", None), LocalParameters)

    @contextmanager
    def colocate_vars_with(self, colocate_with_variable: Any) -> Iterator[None]:
        """Enters the default scope, whose variables are all in one place.

        InvalidArgumentError for a variable that lives elsewhere.
        """
        if not self.variable_created_in_scope(colocate_with_variable):
            raise _nothing_beside(colocate_with_variable)
        with self._scope():
            yield


def _nothing_beside(variable: Any) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{variable!r} was not made in this strategy's scope, so nothing can be placed beside it"
    )


def _server_of(variable: Any) -> int:
    """Returns the server that holds a variable's first rows."""
    shards = variable.spec.shards
    # A part of a ShardedVariable carries the spec of the whole variable.
    own = next((each for each in shards if each.row_stop > variable.first_row), shards[0])
    server: int = own.ps
    return server


def _devices(job: str, indices: Iterable[int]) -> tuple[str, ...]:
    return tuple(f"/job:{job}/task:{index}" for index in indices)
