"""Variables: named values that live in some ``Parameters``, whole or cut into shards.

A variable object is a handle: a spec, the parameters that hold the values, and the rows it stands
for. It pickles as that, so in a trainer it speaks to the servers through the trainer's own
parameters. Must not know how values travel. Invariant: a handle never caches values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pstrain import initializers
from pstrain.errors import InvalidArgumentError
from pstrain.parameters import LocalParameters, Parameters
from pstrain.partition import split_rows
from pstrain.vocabulary import InitializerSpec, ShardSpec, VariableSpec

Array = NDArray[Any]

_DTYPES = ("float32", "float64", "int32", "int64", "bool")


class Placement(Protocol):
    """Where new variables go."""

    @property
    def parameters(self) -> Parameters:
        """Holds the values."""

    def next_id(self) -> int:
        """An id that no other variable of these parameters has."""

    def place(self, shape: tuple[int, ...], dtype: str) -> list[int]:
        """The parameter server of each shard, in row order; one entry: not cut."""

    def created(self, variable: BaseVariable) -> None:
        """Told of each variable made under this placement."""


class LocalPlacement:
    """Variables of this process, never cut."""

    def __init__(self, parameters: LocalParameters | None = None) -> None:
        self.parameters = LocalParameters() if parameters is None else parameters

    def next_id(self) -> int:
        return self.parameters.next_id()

    def place(self, shape: tuple[int, ...], dtype: str) -> list[int]:  # noqa: ARG002
        return [0]

    def created(self, variable: BaseVariable) -> None:
        """Local variables need no list: nobody has to restore them."""


_placement: ContextVar[Placement | None] = ContextVar("pstrain_placement", default=None)


@functools.cache
def _process_placement() -> LocalPlacement:
    return LocalPlacement()


def current_placement() -> Placement:
    """Of the scope that is entered, else the one of this process."""
    return _placement.get() or _process_placement()


@contextmanager
def placement_scope(placement: Placement) -> Iterator[None]:
    """Variables created inside, in this thread, go where ``placement`` says."""
    reset = _placement.set(placement)
    try:
        yield
    finally:
        _placement.reset(reset)


@contextmanager
def local_parameters() -> Iterator[LocalParameters]:
    """Scope whose variables live in parameters of their own, freed with the last variable."""
    placement = LocalPlacement()
    with placement_scope(placement):
        yield placement.parameters


def create_variable(
    initializer: InitializerSpec | Array | float,
    *,
    shape: Sequence[int] | None = None,
    dtype: str = "float32",
    name: str,
    trainable: bool = True,
) -> Variable | ShardedVariable:
    """Makes a variable where the entered scope says: on parameter servers, or in this process.

    With an InitializerSpec, ``shape`` is required and the servers fill their own rows; a value is
    cast to ``dtype`` and broadcast to ``shape``. Only float32 variables can be trained.
    """
    if dtype not in _DTYPES:
        raise InvalidArgumentError(f"dtype of {name!r} must be one of {_DTYPES}, got {dtype!r}")
    value = None
    if not isinstance(initializer, InitializerSpec):
        value = _initial_value(initializer, shape, dtype, name)
        shape, initializer = value.shape, initializers.zeros()
    elif shape is None:
        raise InvalidArgumentError(f"variable {name!r} needs a shape with an InitializerSpec")
    placement = current_placement()
    spec = _new_spec(placement, tuple(shape), dtype, name, trainable, initializer)
    placement.parameters.create(spec, value)
    kind = Variable if len(spec.shards) == 1 else ShardedVariable
    variable = _handle(kind, spec, placement.parameters, 0, spec.rows)
    placement.created(variable)
    for told in tuple(_told_of_creations):
        told(variable)
    return variable


_told_of_creations: list[Callable[[BaseVariable], None]] = []


def tell_of_creations(told: Callable[[BaseVariable], None]) -> None:
    """``told`` is called with each variable that this process makes, once it has values."""
    _told_of_creations.append(told)


def _initial_value(value: Any, shape: Sequence[int] | None, dtype: str, name: str) -> Array:
    array = np.asarray(value, dtype)
    try:
        return array if shape is None else np.broadcast_to(array, tuple(shape))
    except ValueError as error:
        raise InvalidArgumentError(
            f"initial value of shape {array.shape} does not fit variable {name!r} of shape "
            f"{tuple(shape or ())}"
        ) from error


def _new_spec(
    placement: Placement,
    shape: tuple[int, ...],
    dtype: str,
    name: str,
    trainable: bool,
    initializer: InitializerSpec,
) -> VariableSpec:
    if any(size < 1 for size in shape):
        raise InvalidArgumentError(f"shape {shape} of variable {name!r} has an axis without size")
    servers = placement.place(shape, dtype)
    ranges = split_rows(shape[0] if shape else 1, len(servers))
    return VariableSpec(
        id=placement.next_id(),
        name=name,
        shape=tuple(int(size) for size in shape),
        dtype=dtype,
        trainable=trainable,
        initializer=initializer,
        shards=tuple(
            ShardSpec(ps=ps, row_start=start, row_stop=stop)
            for ps, (start, stop) in zip(servers, ranges, strict=True)
        ),
    )


class BaseVariable:
    """What whole, cut and part variables have in common."""

    spec: VariableSpec
    parameters: Parameters
    _start: int
    _stop: int

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def shape(self) -> tuple[int, ...]:
        return (self._stop - self._start, *self.spec.shape[1:]) if self.spec.shape else ()

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.spec.dtype)

    @property
    def trainable(self) -> bool:
        return self.spec.trainable

    def numpy(self) -> Array:
        """All values, as a new array; one read from each server that holds some."""
        return self.parameters.read(self.spec, self._start, self._stop)

    def read_value(self) -> Array:
        """The same as :meth:`numpy`."""
        return self.numpy()

    def assign(self, value: Any) -> None:
        """Sets all values; a scalar is broadcast, any other shape must be the variable's."""
        self._assign("set", value)

    def assign_add(self, delta: Any) -> None:
        """Adds to all values, at the servers: concurrent additions are all kept."""
        self._assign("add", delta)

    def assign_sub(self, delta: Any) -> None:
        """Subtracts from all values, at the servers."""
        self._assign("sub", delta)

    def scatter_update(self, ids: Array, rows: Any) -> None:
        """Sets rows ``ids``; where an id repeats, its last row stays."""
        self._scatter("set", ids, rows)

    def scatter_add(self, ids: Array, rows: Any) -> None:
        """Adds to rows ``ids``; repeated ids add up."""
        self._scatter("add", ids, rows)

    def scatter_sub(self, ids: Array, rows: Any) -> None:
        """Subtracts from rows ``ids``; repeated ids add up."""
        self._scatter("sub", ids, rows)

    def scatter_mul(self, ids: Array, rows: Any) -> None:
        """Multiplies rows ``ids``."""
        self._scatter("mul", ids, rows)

    def scatter_div(self, ids: Array, rows: Any) -> None:
        """Divides rows ``ids``."""
        self._scatter("div", ids, rows)

    def scatter_min(self, ids: Array, rows: Any) -> None:
        """Takes the smaller of present and given values of rows ``ids``."""
        self._scatter("min", ids, rows)

    def scatter_max(self, ids: Array, rows: Any) -> None:
        """Takes the larger of present and given values of rows ``ids``."""
        self._scatter("max", ids, rows)

    def sparse_read(self, ids: Any) -> Array:
        """Rows [n, *shape[1:]] in the order of ``ids`` (rank 1), reading only those rows."""
        array = np.asarray(ids)
        if array.ndim != 1:
            raise InvalidArgumentError(f"ids must have one axis, got shape {array.shape}")
        return self.parameters.read_rows(self.spec, self._global(array))

    def embedding_lookup(self, ids: Any) -> Array:
        """Rows [*ids.shape, *shape[1:]] in the order of ``ids`` of any rank."""
        array = np.asarray(ids)
        return self.sparse_read(array.reshape(-1)).reshape(array.shape + self.shape[1:])

    def __getitem__(self, key: Any) -> Array:
        """Indexes as NumPy does, reading only the rows asked for where the first index tells."""
        first, rest = (key[0], key[1:]) if isinstance(key, tuple) and key else (key, ())
        if not self.shape or not isinstance(first, int | np.integer | slice):
            return self._masked(key)
        if isinstance(first, slice):
            rows = self._slice(*first.indices(self.shape[0]))
            return rows[(slice(None), *rest)]
        index = int(first) + (self.shape[0] if first < 0 else 0)
        if not 0 <= index < self.shape[0]:
            raise IndexError(
                f"index {first} is outside variable {self.name!r} with {self.shape[0]} rows"
            )
        return self._slice(index, index + 1, 1)[(0, *rest)]

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"variable {self.name!r} is a scalar and has no length")
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError(f"the values of variable {self.name!r} are always copied")
        return self.numpy().astype(dtype or self.dtype, copy=False)

    def __float__(self) -> float:
        return float(self.numpy())

    def __int__(self) -> int:
        return int(self.numpy())

    def __add__(self, other: Any) -> Array:
        return self.numpy() + np.asarray(other)

    def __sub__(self, other: Any) -> Array:
        return self.numpy() - np.asarray(other)

    def __rsub__(self, other: Any) -> Array:
        return np.asarray(other) - self.numpy()

    def __mul__(self, other: Any) -> Array:
        return self.numpy() * np.asarray(other)

    def __truediv__(self, other: Any) -> Array:
        return self.numpy() / np.asarray(other)

    def __neg__(self) -> Array:
        return -self.numpy()

    __radd__ = __add__
    __rmul__ = __mul__

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} shape={self.shape} dtype={self.dtype}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _handle, (type(self), self.spec, self.parameters, self._start, self._stop)

    def _assign(self, op: str, value: Any) -> None:
        if np.shape(value) not in ((), self.shape):
            raise InvalidArgumentError(
                f"value of shape {np.shape(value)} does not fit variable {self.name!r} of shape "
                f"{self.shape}"
            )
        if self.shape:
            value = np.broadcast_to(value, self.shape)
        self.parameters.assign(self.spec, op, value, self._start)

    def _scatter(self, op: str, ids: Any, rows: Any) -> None:
        self.parameters.scatter(self.spec, op, self._global(np.asarray(ids)), rows)

    def _global(self, ids: Array) -> NDArray[np.int64]:
        if ids.size and not np.issubdtype(ids.dtype, np.integer):
            raise InvalidArgumentError(
                f"ids for variable {self.name!r} must be integers, got {ids.dtype}"
            )
        if self._start or self._stop < self.spec.rows:
            outside = (ids < 0) | (ids >= self._stop - self._start)
            if outside.any():
                raise InvalidArgumentError(
                    f"id {ids[outside][0]} is outside [0, {self.shape[0]}) of variable "
                    f"{self.name!r}"
                )
        return ids.astype(np.int64) + self._start

    def _slice(self, start: int, stop: int, step: int) -> Array:
        if step == 1:
            first = self._start + start
            return self.parameters.read(self.spec, first, self._start + max(start, stop))
        return self.sparse_read(np.arange(start, stop, step))

    def _masked(self, key: Any) -> Array:
        if not isinstance(key, list | np.ndarray):
            return self.numpy()[key]
        index = np.asarray(key)
        if index.dtype == np.bool_ and index.shape == self.shape[:1]:
            return self.sparse_read(np.flatnonzero(index))
        if index.ndim == 1 and np.issubdtype(index.dtype, np.integer):
            return self.sparse_read(np.where(index < 0, index + self.shape[0], index))
        return self.numpy()[key]


class Variable(BaseVariable):
    """A variable in one place, or one part of a ShardedVariable.

    ``Variable(value, ...)`` inside a strategy scope gives a ShardedVariable where the strategy's
    partitioner cuts it. A Python float makes float32, a Python int int64; arrays keep their dtype.
    ``initial_value`` may be a function without arguments.
    """

    def __new__(
        cls,
        initial_value: Any = None,
        name: str | None = None,
        dtype: Any = None,
        trainable: bool = True,
    ) -> Any:
        if initial_value is None:
            raise InvalidArgumentError("initial_value must be given")
        value = initial_value() if callable(initial_value) else initial_value
        value = np.asarray(value)
        if dtype is None:
            plain_float = value.dtype == np.float64 and not hasattr(initial_value, "dtype")
            dtype = "float32" if plain_float else value.dtype
        return create_variable(
            value, dtype=np.dtype(dtype).name, name=name or "Variable", trainable=trainable
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

    Made by ``Variable`` or ``create_variable`` under a strategy with a partitioner.
    """

    @property
    def variables(self) -> list[Variable]:
        """The parts in row order, named ``<name>/part_<i>``."""
        return [
            _handle(Variable, self.spec, self.parameters, shard.row_start, shard.row_stop)
            for shard in self.spec.shards
        ]

    @property
    def device(self) -> list[str]:
        """Where each part is."""
        return [self.parameters.device(shard.ps) for shard in self.spec.shards]

    def __iter__(self) -> Iterator[Variable]:
        return iter(self.variables)


def _handle(
    kind: type[Any], spec: VariableSpec, parameters: Parameters, start: int, stop: int
) -> Any:
    variable = object.__new__(kind)
    variable.spec = spec
    variable.parameters = parameters
    variable._start = start
    variable._stop = stop
    return variable
