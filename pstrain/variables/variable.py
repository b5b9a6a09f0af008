"""Making variables: in one place, cut into shards, joined from others.

Decides nothing about places: the entered scope does. Invariant: initial values that an initializer
or a function of shards gives are never whole in this process.
"""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dataservice.runtime.arguments import check_text, check_true_or_false
from pstrain import foreign_names, initializers
from pstrain.errors import InvalidArgumentError, InvalidTypeError
from pstrain.foreign_names import instead_of
from pstrain.variables.base import Array, BaseVariable, new_handle
from pstrain.variables.creation import announce, create_spec
from pstrain.variables.joined import JoinedParameters, joined_spec
from pstrain.variables.per_worker import PerWorkerVariable, create_per_worker_variable
from pstrain.variables.rows import check_range
from pstrain.variables.scope import current_placement
from pstrain.vocabulary import VARIABLE_DTYPES, InitializerSpec, InitialValue


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """Which part of a variable an initial value is asked for."""

    shape: tuple[int, ...]
    offset: tuple[int, ...]


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

    FailedPreconditionError in a scheduled function, whose trainer would have it for itself.

    With an InitializerSpec, ``shape`` is required and the servers fill their own rows; a value is
    cast to ``dtype`` and broadcast to ``shape``. A function of ``shard_info``, or of
    ``partition_shape`` and ``partition_offset``, is called for each shard, so that at most one of
    them is in this process. Only float32 variables can be trained. ``cuts``: the rows at which it
    may be cut; None: at any.
    """
    _check_dtype(dtype, name)
    value, by_shard = None, None
    if callable(initializer) and not isinstance(initializer, InitializerSpec):
        by_shard, initializer = initializer, initializers.zeros()
    if not isinstance(initializer, InitializerSpec):
        value = _initial_value(initializer, shape, dtype, name)
        shape, initializer = value.shape, initializers.zeros()
    elif shape is None:
        raise InvalidArgumentError(f"variable {name!r} needs a shape with an InitializerSpec")
    placement = current_placement()
    spec = create_spec(placement, tuple(shape), dtype, name, trainable, initializer, cuts=cuts)
    placement.parameters.create(spec, value)
    kind = Variable if len(spec.shards) == 1 else ShardedVariable
    variable = new_handle(kind, spec, placement.parameters, 0, spec.rows)
    if by_shard is not None:
        _assign_by_shard(variable, by_shard)
    announce(placement, variable)
    return variable


def _check_dtype(dtype: str, name: str) -> None:
    if dtype not in VARIABLE_DTYPES:
        raise InvalidArgumentError(
            f"dtype of {name!r} must be one of {VARIABLE_DTYPES}, got {dtype!r}{_instead_of(dtype)}"
        )


def _instead_of(dtype: str) -> str:
    """What to write for a dtype that variables do not have; empty where nothing stands for it."""
    if dtype == "bfloat16":
        return (
            ": give dtype='float32'; a strategy with transport_dtype='bfloat16' sends half as much"
        )
    if dtype == "uint16":
        return ": give dtype='int32'"
    if dtype in ("uint32", "uint64"):
        return ": give dtype='int64'"
    if dtype.startswith(("str", "bytes", "object")):
        return ": variables hold numbers; layers.StringLookup gives rows to words"
    return ""


def _assign_by_shard(variable: BaseVariable, initial: Callable[..., Any]) -> None:
    rest = variable.spec.shape[1:]
    takes_info = "shard_info" in inspect.signature(initial).parameters
    for shard in variable.spec.shards:
        shape = (shard.row_stop - shard.row_start, *rest) if variable.spec.shape else ()
        offset = (shard.row_start, *(0 for _ in rest)) if variable.spec.shape else ()
        if takes_info:
            value = initial(shard_info=ShardInfo(shape, offset))
        else:
            value = _of_partition(initial, shape, offset)
            if np.shape(value) == variable.spec.shape != shape and _takes_any_name(initial):
                value = value[shard.row_start : shard.row_stop]
        if np.shape(value) != shape:
            raise InvalidArgumentError(
                f"the initial value of rows {offset} of variable {variable.name!r} has shape "
                f"{np.shape(value)}, expected {shape}"
            )
        part = np.asarray(value, variable.dtype)
        variable.parameters.assign(variable.spec, "set", part, shard.row_start)


def _of_partition(
    initial: Callable[..., Any], shape: tuple[int, ...], offset: tuple[int, ...]
) -> Any:
    """What a function gives for one shard; for all of them, where it looks at no arguments."""
    try:
        return initial(partition_shape=shape, partition_offset=offset)
    except TypeError as error:
        passed_on = "partition_" in str(error) and "keyword argument" in str(error)
        if not (passed_on and _takes_any_name(initial)):
            raise
        return initial()


def wants_shards(initial: Any, *, is_described: bool = False) -> bool:
    """Whether a function gives the initial value of one shard at a time.

    ``is_described``: shape and dtype are known without calling it. Then one that takes arguments of
    any name is taken for one, as TensorFlow's initializers are.
    """
    if not callable(initial) or isinstance(initial, InitializerSpec):
        return False
    try:
        names = set(inspect.signature(initial).parameters)
    except (TypeError, ValueError):
        return False
    if "shard_info" in names or {"partition_shape", "partition_offset"} <= names:
        return True
    return is_described and _takes_any_name(initial)


def _takes_any_name(initial: Callable[..., Any]) -> bool:
    parameters = inspect.signature(initial).parameters.values()
    return any(each.kind is each.VAR_KEYWORD for each in parameters)


def _initial_value(value: Any, shape: Sequence[int] | None, dtype: str, name: str) -> Array:
    array = _converted(np.asarray(value), dtype, name)
    try:
        return array if shape is None else np.broadcast_to(array, tuple(shape))
    except ValueError as error:
        raise InvalidArgumentError(
            f"initial value of shape {array.shape} does not fit variable {name!r} of shape "
            f"{tuple(shape or ())}"
        ) from error


def _called(initial: Callable[..., Any], name: str | None) -> Any:
    try:
        inspect.signature(initial).bind()
    except TypeError as error:
        raise InvalidTypeError(
            f"the function that gives variable {name!r} its initial value is called without "
            f"arguments, or for each shard with shard_info: {error}"
        ) from error
    except ValueError:
        pass  # one that is written in C does not say what it takes
    return initial()


def _dtype_name(dtype: Any, name: str | None) -> str:
    try:
        return np.dtype(dtype).name
    except TypeError as error:
        raise InvalidTypeError(
            f"dtype of {name!r} must be one of {VARIABLE_DTYPES}, got {dtype!r}"
            f"{_instead_of(str(dtype))}"
        ) from error


def _sizes(shape: Any, name: str | None) -> tuple[int, ...]:
    """A shape as a tuple; an integer is that of one axis."""
    sizes = (shape,) if isinstance(shape, numbers.Integral) else shape
    is_shape = isinstance(sizes, Iterable) and not isinstance(sizes, str)
    if not is_shape or not all(isinstance(size, numbers.Integral) for size in sizes):
        raise InvalidTypeError(
            f"shape of variable {name!r} must be the sizes of its axes, which are integers, got "
            f"{shape!r}"
        )
    return tuple(int(size) for size in sizes)


def _as_array(given: Any, name: str | None) -> Array:
    try:
        return np.asarray(given)
    except ValueError as error:
        which = "a variable" if name is None else f"variable {name!r}"
        raise InvalidArgumentError(f"the initial value of {which}: {error}") from error


def _converted(given: Array, dtype: str, name: str) -> Array:
    """InvalidArgumentError where whole numbers or bools would be others than were given."""
    try:
        check_range(given, dtype, name)
        array = given.astype(dtype, copy=False)
    except OverflowError as error:
        raise InvalidArgumentError(
            f"the initial value of variable {name!r} is outside of {dtype}: {error}"
        ) from error
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"the initial value of variable {name!r}: {error}") from error
    kind = array.dtype.kind
    if kind in "iub" and given.dtype.kind != kind and not np.all(array == given):
        raise InvalidArgumentError(
            f"the initial value of variable {name!r} cannot become {dtype} without loss: round it, "
            "or give another dtype"
        )
    return array


def _each_workers(
    initial: Any, shape: tuple[int, ...] | None, dtype: str, name: str
) -> PerWorkerVariable:
    _check_dtype(dtype, name)
    if wants_shards(initial):
        raise InvalidArgumentError(
            f"variable {name!r} has a copy for each worker, which is not cut: give a value, an "
            "initializer, or a function without arguments, not one of a shard"
        )
    if not isinstance(initial, InitializerSpec):
        initial = _initial_value(initial, shape, dtype, name)
        shape = initial.shape
    return create_per_worker_variable(initial, tuple(shape or ()), dtype, name)


class Variable(BaseVariable):
    """A variable in one place, or one part of a ShardedVariable.

    ``Variable(value, ...)`` inside a strategy scope gives a ShardedVariable where the strategy's
    partitioner cuts it. A Python float makes float32, a Python int int64; arrays keep their dtype:
    float16, 32 or 64, int8, 16, 32 or 64, uint8 or bool, of which steps train float32.
    ``initial_value`` may be a function without arguments, what an initializer gives for a shape
    (``initializers.uniform()((10, 4))``), or, with ``shape``, an initializer or a function of one
    shard: these are never whole in this process. ``per_worker_variable``: a copy for each trainer.
    """

    @instead_of("Variable", foreign_names.NEW_VARIABLE)
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
            given = _called(given, name)
        if isinstance(given, InitialValue):
            dtype, shape, given = dtype or given.dtype, given.shape, given.initializer
        if isinstance(given, InitializerSpec) or by_shard:
            if shape is None:
                raise InvalidArgumentError(f"variable {name!r} needs shape= with an initializer")
            value, dtype = given, dtype or "float32"
        else:
            value = _as_array(given, name)
            plain_float = value.dtype == np.float64 and not hasattr(given, "dtype")
            dtype = dtype or ("float32" if plain_float else value.dtype)
        kind = _dtype_name(dtype, name)
        shape = None if shape is None else _sizes(shape, name)
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
        """Where the values are, such as ``/job:ps/task:0``."""
        return self.parameters.device(self.spec.shards[self._part].ps)

    @property
    def _part(self) -> int:
        starts = [shard.row_start for shard in self.spec.shards]
        return starts.index(self._start)


class ShardedVariable(BaseVariable):
    """A variable cut along its first axis; acts as one, and lists its parts.

    Made by ``Variable`` or ``create_variable`` under a strategy with a partitioner, or of given
    variables of one dtype, which must differ in their first axis at most.
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
        """Where each part is."""
        return [self.parameters.device(shard.ps) for shard in self.spec.shards]

    def __iter__(self) -> Iterator[Variable]:
        return iter(self.variables)
