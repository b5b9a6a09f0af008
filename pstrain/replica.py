"""What a strategy offers a trainer, which has one replica: calls, reductions, datasets for all.

The same object in the program and on trainers; it knows nothing of servers. Invariant: inside of
``run`` a function is in replica context, where reductions over replicas have no meaning.
"""

from __future__ import annotations

import enum
import numbers
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from dataservice.runtime.arguments import HintingEnumType, check_callable
from pstrain import foreign_names
from pstrain.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    UnimplementedError,
)
from pstrain.foreign_names import Telling
from pstrain.gradients.tensor import Tensor
from pstrain.input_sharding import DistributedDataset, DistributedDatasetFunction
from pstrain.strategy_scope import has_strategy
from pstrain.trainer.context import current_position
from pstrain.variables.indexed_slices import IndexedSlices
from pstrain.vocabulary import Update


class ReduceOp(enum.Enum, metaclass=HintingEnumType):
    """How values become one."""

    SUM = "SUM"
    MEAN = "MEAN"

    @classmethod
    def of(cls, value: Any) -> ReduceOp:
        """The operation itself or its name, in any case; InvalidArgumentError for another."""
        name = str(getattr(value, "name", value)).rpartition(".")[2].upper()
        if name not in cls.__members__:
            raise InvalidArgumentError(f"reduce_op must be SUM or MEAN, got {value!r}")
        return cls[name]


@dataclass(frozen=True, slots=True)
class ValueContext:
    """Which replica a value is made for."""

    replica_id_in_sync_group: int = 0
    num_replicas_in_sync: int = 1


class ReplicaContext:
    """What a function called by ``run`` can ask of its replica, the only one of its trainer.

    ``num_replicas_in_sync``: the strategy's. ``replica_id_in_sync_group``: 0, but in rounds (sync)
    the trainer's place among all trainers: with ``backup_workers`` it may be as large as
    ``num_replicas_in_sync`` or larger, because which closures make a step is only known once they
    have come; ids stay different, so that seeds and file names made of them are. Reductions are
    over the trainer's own replica: gradients of a round meet at the parameter servers.
    """

    def __init__(self, strategy: Replica) -> None:
        self.strategy = strategy
        self.num_replicas_in_sync = strategy.num_replicas_in_sync
        self.replica_id_in_sync_group = _replica_id(strategy)

    def all_reduce(self, reduce_op: Any, value: Any) -> Any:
        """The value itself: there is nothing to add to it."""
        ReduceOp.of(reduce_op)
        return value

    def all_gather(self, value: Any, axis: int) -> Any:
        """The value itself, as :meth:`Replica.gather`."""
        return _gathered(value, axis)

    def merge_call(
        self, merge_fn: Callable[..., Any], args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Calls ``merge_fn(strategy, *args)`` outside of the replica's context."""
        reset = _replica.set(None)
        try:
            return merge_fn(self.strategy, *args, **(kwargs or {}))
        finally:
            _replica.reset(reset)


_OUTSIDE: Final = object()
# None inside of merge_call, which has left the replica.
_replica: ContextVar[Any] = ContextVar("replica", default=_OUTSIDE)


def get_replica_context() -> ReplicaContext | None:
    """Of the function that ``strategy.run`` calls; None elsewhere inside of a strategy's scope.

    Outside of any scope this process is the only replica.
    """
    context = _replica.get()
    if context is not _OUTSIDE:
        return context  # type: ignore[no-any-return]
    return None if has_strategy() else ReplicaContext(Replica())


def in_cross_replica_context() -> bool:
    """Whether what is called here is for all replicas: inside of a strategy's scope, or of a
    scheduled function, but not inside of ``strategy.run``."""
    return get_replica_context() is None


@contextmanager
def _replica_scope(context: ReplicaContext) -> Iterator[None]:
    reset = _replica.set(context)
    try:
        yield
    finally:
        _replica.reset(reset)


def _replica_id(strategy: Replica) -> int:
    return current_position() or 0 if strategy.num_replicas_in_sync > 1 else 0


def call_arguments(args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """For ``fn(*args, **kwargs)``; InvalidTypeError for what is no tuple or list, or no dict."""
    if not isinstance(args, tuple | list | None):
        raise InvalidTypeError(
            f"args must be a tuple or list, got {type(args).__name__}: for a single argument "
            "write args=(argument,)"
        )
    if not isinstance(kwargs, Mapping | None):
        raise InvalidTypeError(f"kwargs must be a dict, got {type(kwargs).__name__}")
    return tuple(args or ()), dict(kwargs or {})


class Replica(Telling):
    """What a strategy offers, in the program and on trainers, each of which has one replica."""

    _replicas = 1
    _foreign = foreign_names.STRATEGY

    def __init__(self, num_replicas_in_sync: int = 1) -> None:
        self._replicas = num_replicas_in_sync

    @property
    def num_replicas_in_sync(self) -> int:
        """Closures whose gradients make one step: 1 where trainers work asynchronously."""
        return self._replicas

    @property
    def num_input_pipelines(self) -> int | None:
        """Trainers that read datasets side by side; None where only the coordinator knows."""
        return None

    def scope(self) -> Any:
        """Only the program's strategy has one: FailedPreconditionError on trainers."""
        raise FailedPreconditionError(
            "a scheduled function makes no variables on parameter servers: make them in the "
            "program, inside strategy.scope(), and use them here"
        )

    def run(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...] | list[Any] = (),
        kwargs: dict[str, Any] | None = None,
        options: Any = None,  # noqa: ARG002
    ) -> Any:
        """Calls ``fn`` once, for the only replica; meant for functions given to ``schedule``."""
        check_callable("the function that run calls", fn)
        positional, named = call_arguments(args, kwargs)
        with _replica_scope(ReplicaContext(self)):
            return fn(*positional, **named)

    def reduce(self, reduce_op: Any, value: Any, axis: int | None = None) -> Any:
        """``SUM`` or ``MEAN`` over the only replica, and over ``axis`` where one is given.

        ``value``: a number, an array, a Tensor or a list of numbers, or a tuple, list or dict of
        them.
        """
        op = ReduceOp.of(reduce_op)
        _refuse_in_replica("reduce")
        return _mapped(value, lambda leaf: _reduced(op, leaf, axis))

    def gather(self, value: Any, axis: int) -> Any:
        """The values of all replicas one after the other along ``axis``: that of the only one."""
        _refuse_in_replica("gather")
        return _mapped(value, lambda leaf: _gathered(leaf, axis))

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """The values of the only replica, as a tuple."""
        return (value,)

    def experimental_distribute_values_from_function(
        self, value_fn: Callable[[ValueContext], Any]
    ) -> Any:
        """``value_fn(ValueContext(...))``, for the only replica of this process."""
        return value_fn(ValueContext(_replica_id(self), self.num_replicas_in_sync))

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
        """The dataset, of which each trainer reads its own share.

        ``options``: an ``AutoShardPolicy``, or ``InputOptions`` with one; AUTO without. Read it
        through ``coordinator.create_per_worker_dataset``.
        """
        return DistributedDataset(dataset, options, self.num_input_pipelines)

    def distribute_datasets_from_function(
        self,
        dataset_fn: Callable[..., Any],
        options: Any = None,  # noqa: ARG002
    ) -> Any:
        """One dataset per trainer, made there by ``dataset_fn(InputContext)``, as it makes it.

        Give it to ``coordinator.create_per_worker_dataset``.
        """
        return DistributedDatasetFunction(dataset_fn)

    def experimental_distribute_datasets_from_function(
        self, dataset_fn: Callable[..., Any], options: Any = None
    ) -> Any:
        """The older name of :meth:`distribute_datasets_from_function`."""
        return self.distribute_datasets_from_function(dataset_fn, options)


def _refuse_in_replica(name: str) -> None:
    if isinstance(_replica.get(), ReplicaContext):
        raise FailedPreconditionError(
            f"strategy.{name}() has no meaning inside of strategy.run(): call it on what run() "
            "returns, or use get_replica_context()"
        )


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, list) and all(isinstance(item, numbers.Number) for item in value):
        return change(value)
    if isinstance(value, dict):
        return {key: _mapped(item, change) for key, item in value.items()}
    if isinstance(value, IndexedSlices):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(item, change) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(_mapped(item, change) for item in value)
    return change(value)


def _array(value: Any) -> Any:
    return value.value if isinstance(value, Tensor) else np.asarray(value)


def _reduced(op: ReduceOp, value: Any, axis: int | None) -> Any:
    if axis is None:
        return value
    array = _array(value)
    _check_axis(array, axis)
    return array.sum(axis=axis) if op is ReduceOp.SUM else array.mean(axis=axis)


def _gathered(value: Any, axis: int) -> Any:
    if isinstance(value, IndexedSlices) or (isinstance(value, Update) and value.lookup is not None):
        raise UnimplementedError("gather of sparse gradients is not offered: gather their arrays")
    array = _array(value)
    _check_axis(array, axis)
    return array


def _check_axis(array: Any, axis: Any) -> None:
    try:
        number = operator.index(axis)
    except TypeError as error:
        raise InvalidTypeError(f"axis must be an integer, got {type(axis).__name__}") from error
    if isinstance(axis, bool):
        raise InvalidTypeError("axis must be an integer, got bool")
    if not -array.ndim <= number < array.ndim:
        raise InvalidArgumentError(f"axis {number} is outside of a value of shape {array.shape}")
