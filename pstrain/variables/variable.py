"""Creation of variables: on one server, cut into shards, or joined from other variables.

Leaves the choice of servers to the entered scope. Invariant: initial values that come from an
initializer or from a function of one shard are never whole in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from dataservice.runtime.arguments import check_text, check_true_or_false
from pstrain import initializers
from pstrain.errors import InvalidArgumentError
from pstrain.porting import foreign_arguments
from pstrain.porting.foreign_arguments import refuse_arguments
from pstrain.variables.base import Array, BaseVariable, new_handle
from pstrain.variables.creation import announce, create_spec, make
from pstrain.variables.initial_values import (
    as_array,
    called,
    check_dtype,
    check_initializer,
    check_shapes_agree,
    dtype_name,
    initial_array,
    sizes,
    value_of_call,
    value_of_shard,
    wants_shards,
)
from pstrain.variables.joined import JoinedParameters, joined_spec
from pstrain.variables.per_worker import PerWorkerVariable, create_per_worker_variable
from pstrain.variables.scope import current_placement
from pstrain.vocabulary import InitializerSpec, InitialValue


def create_variable(
    initializer: InitializerSpec | Callable[..., Any] | Array | float,
    *,
    shape: Sequence[int] | None = None,
    dtype: str = "float32",
    name: str,
    trainable: bool = True,
    cuts: Sequence[int] | None = None,
) -> Variable | ShardedVariable:
    """Makes a variable where the entered scope says: on parameter servers, or in this process.

    Raises FailedPreconditionError in a scheduled function, where each trainer would make a variable
    of its own.

    With an InitializerSpec, ``shape`` is required and the servers fill their own rows; a value is
    cast to ``dtype`` and broadcast to ``shape``. A function of ``shard_info``, or of
    ``partition_shape`` and ``partition_offset``, is called once per shard, so that this process
    holds at most one shard at a time. Only float32 variables can be trained. ``cuts`` lists the
    rows at which the variable may be cut; None allows any row.
    """
    check_dtype(dtype, name)
    value, by_shard = None, None
    if callable(initializer) and not isinstance(initializer, InitializerSpec):
        by_shard, initializer = initializer, initializers.zeros()
    if not isinstance(initializer, InitializerSpec):
        value = initial_array(initializer, shape, dtype, name)
        shape, initializer = value.shape, initializers.zeros()
    elif shape is None:
        raise InvalidArgumentError(f"variable {name!r} needs a shape with an InitializerSpec")
    else:
        check_initializer(initializer, dtype, name)
    placement = current_placement()
    spec = create_spec(placement, tuple(shape), dtype, name, trainable, initializer, cuts=cuts)
    kind = Variable if len(spec.shards) == 1 else ShardedVariable
    variable: Variable | ShardedVariable = make(kind, placement, spec, value)
    if by_shard is not None:
        for shard in spec.shards:
            part = value_of_shard(by_shard, spec, shard)
            placement.parameters.set_initial_values(spec, part, shard.row_start)
    announce(placement, variable)
    return variable


def _each_workers(
    initial: Any, shape: tuple[int, ...] | None, dtype: str, name: str
) -> PerWorkerVariable:
    check_dtype(dtype, name)
    if wants_shards(initial):
        raise InvalidArgumentError(
            f"variable {name!r} has a copy for each worker, which is not cut: give a value, an "
            "initializer, or a function without arguments, not one of a shard"
        )
    if isinstance(initial, InitializerSpec):
        check_initializer(initial, dtype, name)
    else:
        initial = initial_array(initial, shape, dtype, name)
        shape = initial.shape
    return create_per_worker_variable(initial, tuple(shape or ()), dtype, name)


class Variable(BaseVariable):
    """A variable that is in one place, or one part of a ShardedVariable.

    Inside a strategy scope ``Variable(value, ...)`` returns a ShardedVariable if the strategy's
    partitioner cuts it. A Python float makes float32, a Python int int64; arrays keep their dtype:
    float16, 32 or 64, int8, 16, 32 or 64, uint8, 32 or 64 or bool. Steps train float32 only.
    ``initial_value`` may also be a function without arguments or, so that the value is never whole
    in this process, an initializer applied to a shape (``initializers.uniform()((10, 4))``) or,
    with ``shape``, an initializer or a function of one shard. ``per_worker_variable=True`` makes a
    copy for each trainer.
    """

    @refuse_arguments(
        "Variable", foreign_arguments.NEW_VARIABLE, asking_by_false=("validate_shape",)
    )
    def __new__(
        cls,
        initial_value: Any = None,
        name: str | None = None,
        dtype: Any = None,
        trainable: bool = True,
        per_worker_variable: bool = False,
        shape: Sequence[int] | None = None,
    ) -> Any:
        if initial_value is None:
            raise InvalidArgumentError("initial_value must be given")
        check_true_or_false(trainable=trainable, per_worker_variable=per_worker_variable)
        if name is not None:
            check_text("the name of a variable", name)
        given = initial_value
        is_described = None not in (shape, dtype) and not per_worker_variable
        by_shard = wants_shards(given, is_described=is_described)
        if callable(given) and not isinstance(given, InitializerSpec) and not by_shard:
            given = value_of_call(given, name)
        if isinstance(given, InitialValue):
            check_shapes_agree(shape, given.shape, name)
            dtype, shape, given = dtype or given.dtype, given.shape, given.initializer
        if isinstance(given, InitializerSpec) or by_shard:
            if shape is None:
                raise InvalidArgumentError(f"{called(name)} needs shape= with an initializer")
            value, dtype = given, dtype or "float32"
        else:
            value = as_array(given, name)
            plain_float = value.dtype == np.float64 and not hasattr(given, "dtype")
            dtype = dtype or ("float32" if plain_float else value.dtype)
        kind = dtype_name(dtype, name)
        shape = None if shape is None else sizes(shape, name)
        if per_worker_variable:
            return _each_workers(value, shape, kind, name or "Variable")
        return create_variable(
            value, shape=shape, dtype=kind, name=name or "Variable", trainable=trainable
        )

    @property
    def name(self) -> str:
        whole = len(self.spec.shards) == 1
        return self.spec.name if whole else f"{self.spec.name}/part_{self._part}"

    @property
    def device(self) -> str:
        """The place that holds the values, such as ``/job:ps/task:0``."""
        return self.parameters.device(self.spec.shards[self._part].ps)

    @property
    def _part(self) -> int:
        starts = [shard.row_start for shard in self.spec.shards]
        return starts.index(self._start)


class ShardedVariable(BaseVariable):
    """A variable cut along its first axis; acts as one variable, and lists its parts.

    ``Variable`` and ``create_variable`` make one under a strategy with a partitioner. The
    constructor joins given variables, which must have one dtype and may differ in their first axis
    only. Joined variables stay variables of their own: an optimizer's ``clipnorm`` bounds each of
    them, so the result of training depends on how the rows are divided; ``global_clipnorm`` bounds
    all of them together and does not.
    """

    def __new__(cls, variables: Sequence[Any], name: str = "ShardedVariable") -> Any:
        spec = joined_spec(variables, name)
        return new_handle(cls, spec, JoinedParameters(variables), 0, spec.rows)

    @property
    def variables(self) -> list[Variable]:
        """The parts in row order, named ``<name>/part_<i>``."""
        if isinstance(self.parameters, JoinedParameters):
            return list(self.parameters.parts)
        return [
            new_handle(Variable, self.spec, self.parameters, shard.row_start, shard.row_stop)
            for shard in self.spec.shards
        ]

    @property
    def device(self) -> list[str]:
        """The place that holds each part, in row order."""
        return [self.parameters.device(shard.ps) for shard in self.spec.shards]

    def __iter__(self) -> Iterator[Variable]:
        return iter(self.variables)
