"""The part of a strategy that trainers have too: ``run``, reductions and distributed datasets.

Each trainer has one replica. Knows nothing of servers. Invariant: inside ``run`` a function is in
replica context, where a strategy's reductions over replicas are refused.
"""

from __future__ import annotations

import enum
import numbers
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from dataservice.runtime.arguments import HintingEnumType, check_callable
from pstrain.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    UnimplementedError,
)
from pstrain.gradients.tensor import Tensor
from pstrain.porting import foreign_names
from pstrain.porting.foreign_names import Hinting
from pstrain.strategy.input_sharding import DistributedDataset, DistributedDatasetFunction
from pstrain.trainer.context import current_position
from pstrain.variables.indexed_slices import IndexedSlices
from pstrain.vocabulary import Update


class ReduceOp(enum.Enum, metaclass=HintingEnumType):
    """How values are combined into one."""

    SUM = "SUM"
    MEAN = "MEAN"

    @classmethod
    def of(cls, value: Any) -> ReduceOp:
        """Returns the operation for itself or its name, in upper or lower case.

        InvalidArgumentError for anything else.
        """
        name = str(getattr(value, "name", value)).rpartition(".")[2].upper()
        if name not in cls.__members__:
            raise InvalidArgumentError(f"reduce_op must be SUM or MEAN, got {value!r}")
        return cls[name]


@dataclass(frozen=True, slots=True)
class ValueContext:
    """The replica that a value is made for."""

    replica_id_in_sync_group: int = 0
    num_replicas_in_sync: int = 1


class ReplicaContext:
    """The replica that a function called by ``run`` is in, the only one of its trainer.

    ``num_replicas_in_sync``: that of the strategy. ``replica_id_in_sync_group``: 0, except in
    rounds (sync): there it is the trainer's position among all trainers. With ``backup_workers`` it
    may be ``num_replicas_in_sync`` or larger, because the closures that make a step are only known
    once they are ready; ids are distinct, so seeds and file names made from them are too.
    Reductions cover only the trainer's own replica: the gradients of a round are combined on the
    parameter servers.
    """

    def __init__(self, strategy: Replica) -> None:
        self.strategy = strategy
        self.num_replicas_in_sync = strategy.num_replicas_in_sync
        self.replica_id_in_sync_group = _replica_id(strategy)

    def all_reduce(self, reduce_op: Any, value: Any) -> Any:
        """Returns ``value`` unchanged: the trainer has no other replica."""
        ReduceOp.of(reduce_op)
        return value

    def all_gather(self, value: Any, axis: int) -> Any:
        """Returns the value as an array, like :meth:`Replica.gather`."""
        return _gathered(value, axis)

    def merge_call(
        self, merge_fn: Callable[..., Any], args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Calls ``merge_fn(strategy, *args)`` outside the replica context."""
        with _replica_scope(None):
            return merge_fn(self.strategy, *args, **(kwargs or {}))


_OUTSIDE: Final = object()
# None inside merge_call, which leaves the replica context.
_replica: ContextVar[Any] = ContextVar("replica", default=_OUTSIDE)


def is_outside_replica() -> bool:
    """True outside of ``run``; False inside, and inside a ``merge_call`` there."""
    return _replica.get() is _OUTSIDE


def replica_context() -> ReplicaContext | None:
    """Returns the context that ``run`` has entered; None in ``merge_call`` and outside of both."""
    context = _replica.get()
    return None if context is _OUTSIDE else context


@contextmanager
def _replica_scope(context: ReplicaContext | None) -> Iterator[None]:
    reset = _replica.set(context)
    try:
        yield
    finally:
        _replica.reset(reset)


def _replica_id(strategy: Replica) -> int:
    return current_position() or 0 if strategy.num_replicas_in_sync > 1 else 0


def call_arguments(args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments for ``fn(*args, **kwargs)``.

    InvalidTypeError unless ``args`` is a tuple, list or None and ``kwargs`` a dict by name or None.
    """
    if not isinstance(args, tuple | list | None):
        raise InvalidTypeError(
            f"args must be a tuple or list, got {type(args).__name__}: for a single argument "
            "write args=(argument,)"
        )
    if not isinstance(kwargs, Mapping | None):
        raise InvalidTypeError(f"kwargs must be a dict, got {type(kwargs).__name__}")
    named = dict(kwargs or {})
    for name in named:
        if not isinstance(name, str):
            raise InvalidTypeError(f"kwargs are named by strings, got {name!r}")
    return tuple(args or ()), named


class Replica(Hinting):
    """The part of a strategy that both the program and trainers have; one replica per process."""

    _replicas = 1
    _remedies = foreign_names.STRATEGY

    def __init__(self, num_replicas_in_sync: int = 1) -> None:
        self._replicas = num_replicas_in_sync

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of closures whose gradients make one step: 1 if trainers are asynchronous."""
        return self._replicas

    @property
    def num_input_pipelines(self) -> int | None:
        """The number of trainers that read datasets; None if only the coordinator knows it."""
        return None

    def scope(self) -> Any:
        """Raises FailedPreconditionError: only the strategy in the program has a scope."""
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
        """Calls ``fn`` once, for the only replica; for use inside scheduled functions."""
        check_callable("the function that run calls", fn)
        positional, named = call_arguments(args, kwargs)
        with _replica_scope(ReplicaContext(self)):
            return fn(*positional, **named)

    def reduce(self, reduce_op: Any, value: Any, axis: int | Sequence[int] | None = None) -> Any:
        """Reduces ``value`` of the only replica, over ``axis``, or several, if given.

        ``reduce_op``: SUM or MEAN. ``value``: a number, an array, a Tensor or a list of numbers, or
        a tuple, list or dict of these.
        """
        op = ReduceOp.of(reduce_op)
        _refuse_in_replica("reduce")
        return _mapped(value, lambda leaf: _reduced(op, leaf, axis))

    def gather(self, value: Any, axis: int) -> Any:
        """Concatenates the values of all replicas along ``axis``: returns that of the only one."""
        _refuse_in_replica("gather")
        return _mapped(value, lambda leaf: _gathered(leaf, axis))

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """Returns the only replica's value in a tuple."""
        return (value,)

    def experimental_distribute_values_from_function(
        self, value_fn: Callable[[ValueContext], Any]
    ) -> Any:
        """Returns ``value_fn(ValueContext(...))`` for the only replica of this process."""
        check_callable("value_fn", value_fn)
        return value_fn(ValueContext(_replica_id(self), self.num_replicas_in_sync))

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
        """Returns a distributed dataset, of which each trainer reads its own share.

        ``options``: an ``AutoShardPolicy``, or ``InputOptions`` with one; AUTO by default. Pass the
        result to ``coordinator.create_per_worker_dataset``.
        """
        return DistributedDataset(dataset, options, self.num_input_pipelines)

    def distribute_datasets_from_function(
        self,
        dataset_fn: Callable[..., Any],
        options: Any = None,  # noqa: ARG002
    ) -> Any:
        """Returns a distributed dataset: each trainer's is made there by ``dataset_fn(context)``.

        The datasets are read as ``dataset_fn`` makes them, without further division. ``context`` is
        an InputContext. Pass the result to ``coordinator.create_per_worker_dataset``.
        """
        return DistributedDatasetFunction(dataset_fn)

    def experimental_distribute_datasets_from_function(
        self, dataset_fn: Callable[..., Any], options: Any = None
    ) -> Any:
        """Calls :meth:`distribute_datasets_from_function`, of which this is the older name."""
        return self.distribute_datasets_from_function(dataset_fn, options)


def _refuse_in_replica(name: str) -> None:
    if replica_context() is not None:
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


def _reduced(op: ReduceOp, value: Any, axis: int | Sequence[int] | None) -> Any:
    if axis is None:
        return value
    array = _array(value)
    axes = tuple(axis) if isinstance(axis, list | tuple) else (axis,)
    for each in axes:
        _check_axis(array, each)
    if len({int(each) % array.ndim for each in axes}) < len(axes):
        raise InvalidArgumentError(f"axis {axis} has an axis twice: give each once")
    return array.sum(axis=axes) if op is ReduceOp.SUM else array.mean(axis=axes)


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
        raise InvalidTypeError(f"an axis must be an integer, got {type(axis).__name__}") from error
    if isinstance(axis, bool):
        raise InvalidTypeError("an axis must be an integer, got bool")
    if not -array.ndim <= number < array.ndim:
        raise InvalidArgumentError(f"axis {number} is outside of a value of shape {array.shape}")
