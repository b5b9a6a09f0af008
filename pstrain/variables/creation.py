"""The steps of creating any variable: making its spec, and announcing it to registered callbacks.

Knows no kind of variable. Invariant: a variable is announced once, when it has its values.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

from pstrain.errors import FailedPreconditionError, InvalidArgumentError
from pstrain.partition import split_rows, split_rows_at
from pstrain.variables.base import Array, BaseVariable, new_handle
from pstrain.variables.parameters import current_step
from pstrain.variables.scope import Placement, is_placed
from pstrain.vocabulary import InitializerSpec, ShardSpec, VariableSpec


def create_spec(
    placement: Placement,
    shape: tuple[int, ...],
    dtype: str,
    name: str,
    trainable: bool,
    initializer: InitializerSpec,
    servers: Sequence[int] | None = None,
    cuts: Sequence[int] | None = None,
) -> VariableSpec:
    """Returns the spec of a new variable; ``servers`` overrides the placement's choice of servers.

    ``cuts`` lists the rows at which the variable may be cut, in ascending order; None allows any.
    Raises FailedPreconditionError (a RuntimeError) in a scheduled function.
    """
    if current_step() is not None and not is_placed():
        raise FailedPreconditionError(
            f"variable {name!r} would be made anew by each run of a scheduled function, and be of "
            "one trainer only: make it once, inside strategy.scope(), and use it in the function "
            "(per_worker_variable=True: a copy for each trainer)"
        )
    if any(size < 0 for size in shape):
        raise InvalidArgumentError(f"shape {shape} of variable {name!r} has an axis of less than 0")
    servers = placement.place(shape, dtype) if servers is None else servers
    rows, shards = shape[0] if shape else 1, len(servers)
    ranges = split_rows(rows, shards) if cuts is None else split_rows_at(cuts, rows, shards)
    return VariableSpec(
        id=placement.next_id(),
        name=name,
        shape=tuple(int(size) for size in shape),
        dtype=dtype,
        trainable=trainable,
        initializer=initializer,
        shards=tuple(
            ShardSpec(ps=ps, row_start=start, row_stop=stop)
            for ps, (start, stop) in zip(servers, ranges, strict=cuts is None)
        ),
    )


def make(kind: type[Any], placement: Placement, spec: VariableSpec, value: Array | None) -> Any:
    """Makes the values of a variable; returns its first handle, a ``kind``."""
    lifetime = placement.parameters.lifetimes.begin(spec, kind)
    placement.parameters.create(spec, value)
    handle = new_handle(kind, spec, placement.parameters, 0, spec.rows)
    lifetime.first_handle = weakref.ref(handle)
    return handle


class Maker:
    """Base class of objects that make their variables late, and declare them as their own."""

    @contextmanager
    def making(self) -> Iterator[None]:
        """Enters a scope in which variables that this thread makes belong to this object."""
        reset = _maker.set(self)
        try:
            yield
        finally:
            _maker.reset(reset)

    def make_variables(self) -> None:
        """Makes the variables that can be made before first use, so that they can be saved."""


_maker: ContextVar[Maker | None] = ContextVar("maker", default=None)

CreationCallback: TypeAlias = "Callable[[BaseVariable, Maker | None], None]"


def announce(placement: Placement, variable: BaseVariable) -> None:
    """Passes ``variable``, which has its values, to the placement and all registered callbacks."""
    placement.created(variable)
    for callback in tuple(_creation_callbacks):
        callback(variable, _maker.get())


_creation_callbacks: list[CreationCallback] = []


def on_creation(callback: CreationCallback) -> None:
    """Registers a callback for each variable that this process makes, once it has its values.

    ``callback`` is called with the variable and the ``Maker`` to which it belongs, or None.
    """
    _creation_callbacks.append(callback)
