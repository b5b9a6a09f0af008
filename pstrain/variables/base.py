"""The operations that all variables share: read, assign, scatter, index and arithmetic.

A variable object is a handle: a spec, the parameters that hold the values, and the range of rows
that the handle covers. A handle pickles as these three, so in a trainer it reaches the servers
through the trainer's own parameters. Must not know how values travel. Invariant: a handle never
caches values.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from dataservice.runtime.number_arrays import to_axes
from pstrain.errors import InvalidArgumentError, InvalidTypeError
from pstrain.gradients import numpy_calls
from pstrain.gradients.recording import recording, wants_gradient
from pstrain.gradients.tensor import value_of
from pstrain.porting import foreign_arguments, foreign_names
from pstrain.porting.foreign_arguments import Called, refuse_arguments
from pstrain.porting.foreign_names import Hinting
from pstrain.variables.batch_scatter import set_rows
from pstrain.variables.indexed_slices import ids_and_rows
from pstrain.variables.lifetimes import Lifetime
from pstrain.variables.operators import ValueOperators
from pstrain.variables.parameters import Parameters, in_closure
from pstrain.variables.rows import shape_of_rows
from pstrain.variables.sparse_reads import tracked_rows
from pstrain.vocabulary import VariableSpec

Array = NDArray[Any]


def _changes(name: str) -> Callable[[Called], Called]:
    return refuse_arguments(name, foreign_arguments.CHANGE_OF_VARIABLE)


class BaseVariable(ValueOperators, Hinting):
    """The base class of whole, sharded and per-worker variables, and of parts of sharded ones."""

    _remedies = foreign_names.VARIABLE
    spec: VariableSpec
    parameters: Parameters
    _start: int
    _stop: int
    lifetime: Lifetime | None
    """Held so that the values are not dropped; None if another process has made the variable."""
    is_unread: bool
    """True of what a change returns in a closure: as the closure's result it travels as None."""

    @property
    def name(self) -> str:
        """The name of the variable, as messages show it."""
        return self.spec.name

    @property
    def shape(self) -> tuple[int, ...]:
        return shape_of_rows(self.spec, self._stop - self._start)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of values in the variable."""
        return math.prod(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.spec.dtype)

    @property
    def first_row(self) -> int:
        """The row of the whole variable at which this part begins; 0 for a whole variable."""
        return self._start

    @property
    def is_whole(self) -> bool:
        """Whether the value of the variable is all rows of ``spec``."""
        return self._start == 0 and self._stop == self.spec.rows

    @property
    def trainable(self) -> bool:
        return self.spec.trainable

    def to_be_trained(self, trainable: bool) -> Self:
        """Returns a handle through which steps train the variable, or leave it as it is."""
        spec = replace(self.spec, trainable=trainable)
        handle: Self = new_handle(type(self), spec, self.parameters, self._start, self._stop)
        return handle

    def numpy(self) -> Array:
        """Returns all values as a new array, read from every server that holds a shard."""
        return self.parameters.read(self.spec, self._start, self._stop)

    def read_value(self) -> Array:
        """Returns the same as :meth:`numpy`."""
        return self.numpy()

    @_changes("assign")
    def assign(self, value: Any) -> Any:
        """Sets all values; a scalar is broadcast, any other shape must be the variable's.

        All ``assign*`` methods return the variable, whose value is read only where it is used, as
        in ``variable.assign_add(1).numpy()``. If a scheduled function returns what they return, its
        result is None, since nobody has used the value; the variable itself, or what
        :meth:`read_value` gives, is sent back as an array.
        """
        self._assign("set", value)
        return self._after_change()

    @_changes("assign_add")
    def assign_add(self, delta: Any) -> Any:
        """Adds to all values. The servers do the addition, so no concurrent addition is lost."""
        self._assign("add", delta)
        return self._after_change()

    @_changes("assign_sub")
    def assign_sub(self, delta: Any) -> Any:
        """Subtracts from all values. The servers do the subtraction, as in :meth:`assign_add`."""
        self._assign("sub", delta)
        return self._after_change()

    @_changes("scatter_update")
    def scatter_update(self, ids: Any, rows: Any = None) -> Any:
        """Sets rows ``ids``; where an id repeats, the last of its rows wins.

        All ``scatter_*`` methods take ids and rows, or one ``IndexedSlices`` with both, and return
        the variable, as ``assign*`` do.
        """
        self.scatter("set", ids, rows)
        return self._after_change()

    @_changes("scatter_add")
    def scatter_add(self, ids: Any, rows: Any = None) -> Any:
        """Adds to rows ``ids``; repeated ids add up."""
        self.scatter("add", ids, rows)
        return self._after_change()

    @_changes("scatter_sub")
    def scatter_sub(self, ids: Any, rows: Any = None) -> Any:
        """Subtracts from rows ``ids``; repeated ids add up."""
        self.scatter("sub", ids, rows)
        return self._after_change()

    @_changes("scatter_mul")
    def scatter_mul(self, ids: Any, rows: Any = None) -> Any:
        """Multiplies rows ``ids``."""
        self.scatter("mul", ids, rows)
        return self._after_change()

    @_changes("scatter_div")
    def scatter_div(self, ids: Any, rows: Any = None) -> Any:
        """Divides rows ``ids``."""
        self.scatter("div", ids, rows)
        return self._after_change()

    @_changes("scatter_min")
    def scatter_min(self, ids: Any, rows: Any = None) -> Any:
        """Sets each value of rows ``ids`` to the smaller of the present and the given value."""
        self.scatter("min", ids, rows)
        return self._after_change()

    @_changes("scatter_max")
    def scatter_max(self, ids: Any, rows: Any = None) -> Any:
        """Sets each value of rows ``ids`` to the larger of the present and the given value."""
        self.scatter("max", ids, rows)
        return self._after_change()

    @_changes("batch_scatter_update")
    def batch_scatter_update(self, ids: Any, rows: Any = None) -> Any:
        """Sets rows; the last axis of ``ids`` selects rows within each element of the axes before.

        With ids of one axis it is the same as :meth:`scatter_update`. With more axes the whole
        variable is read, changed and written, so concurrent writes would be lost.
        """
        where, values = ids_and_rows(ids, rows, self.name)
        if where.ndim == 1:
            self.scatter("set", where, values)
            return self._after_change()
        current = self.numpy()
        set_rows(current, where, values, self.name)
        return self.assign(current)

    @refuse_arguments("sparse_read", foreign_arguments.READ_OF_VARIABLE)
    def sparse_read(self, ids: Any) -> Any:
        """Returns rows [n, *shape[1:]] in the order of ``ids`` (rank 1); reads only those rows.

        Returns an array. For a trainable variable under a GradientTape it returns a tensor, whose
        gradient goes to these rows.
        """
        array = self._ids(ids)
        if array.ndim != 1:
            raise InvalidArgumentError(f"ids must have one axis, got shape {array.shape}")
        if not self.spec.shape:
            raise InvalidArgumentError(f"variable {self.name!r} is a scalar without rows")
        return self._taken(array)

    @refuse_arguments("embedding_lookup", foreign_arguments.READ_OF_VARIABLE)
    def embedding_lookup(self, ids: Any) -> Any:
        """Returns rows [*ids.shape, *shape[1:]]: :meth:`sparse_read` for ``ids`` of any rank."""
        array = self._ids(ids)
        return self.sparse_read(array.reshape(-1)).reshape(array.shape + self.shape[1:])

    def __getitem__(self, key: Any) -> Any:
        """Indexes as NumPy does; reads only the needed rows where the first index names them.

        Returns an array. For a trainable variable under a GradientTape it returns a tensor, whose
        gradient goes to the indexed values.
        """
        first, rest = (key[0], key[1:]) if isinstance(key, tuple) and key else (key, ())
        listed = self._listed(first)
        if listed is not None:
            return self._indexed(listed, rest)
        is_mask = isinstance(first, bool)
        if not self.shape or is_mask or not isinstance(first, int | np.integer | slice):
            return value_of(self)[key]
        if isinstance(first, slice):
            rows = self._slice(*first.indices(self.shape[0]))
            return rows[(slice(None), *rest)]
        index = int(self._places(np.asarray(first)))
        return self._slice(index, index + 1, 1)[(0, *rest)]

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        raise InvalidTypeError(
            f"variable {self.name!r} is not changed by variable[...] = value: write "
            "variable.scatter_update(ids, rows) for rows, variable.assign(value) for all"
        )

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"variable {self.name!r} is a scalar and has no length")
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError(f"the values of variable {self.name!r} are always copied")
        if recording() and self.trainable and self.dtype == np.float32:
            numpy_calls.check_keeps_gradient(sys._getframe(1))
        return self.numpy().astype(dtype or self.dtype, copy=False)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} shape={self.shape} dtype={self.dtype}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return new_handle, (type(self), self.spec, self.parameters, self._start, self._stop)

    def __deepcopy__(self, _memo: dict[int, Any]) -> NoReturn:
        raise InvalidTypeError(
            f"variable {self.name!r} has no deep copy, since what is copied has its values where "
            "they are: write Variable(variable.numpy()) for another one; for another model "
            "models.from_config(model.get_config()) and set_weights(model.get_weights())"
        )

    def _assign(self, op: str, value: Any) -> None:
        self._check_fits(op, value)
        if self.shape:
            value = np.broadcast_to(np.asarray(value), self.shape)
        self.parameters.assign(self.spec, op, value, self._start)

    def _check_fits(self, op: str, value: Any) -> None:
        try:
            shape = np.shape(value)
        except ValueError as error:
            raise InvalidArgumentError(
                f"the value for variable {self.name!r} of shape {self.shape} is not an array: "
                f"{error}"
            ) from error
        if shape not in ((), self.shape):
            raise InvalidArgumentError(
                f"value of shape {shape} does not fit variable {self.name!r} of shape {self.shape}"
            )
        self._check_operation(op)

    def _after_change(self) -> Self:
        if not in_closure():
            return self
        handle: Self = new_handle(
            type(self), self.spec, self.parameters, self._start, self._stop, is_unread=True
        )
        return handle

    def scatter(self, op: str, ids: Any, rows: Any = None) -> None:
        """Changes rows ``ids`` by ``op``: "set", "add", "sub", "mul", "div", "min" or "max"."""
        where, values = ids_and_rows(ids, rows, self.name)
        self._check_operation(op)
        if op == "div" and self.dtype.kind in "iu" and not np.all(values):
            raise InvalidArgumentError(
                f"variable {self.name!r} of dtype {self.dtype} cannot be divided by 0"
            )
        self.parameters.scatter(self.spec, op, self.global_ids(where), values)

    def _check_operation(self, op: str) -> None:
        if op in ("sub", "div") and self.dtype == np.bool_:
            raise InvalidArgumentError(
                f"variable {self.name!r} holds bool, from which nothing can be subtracted or "
                "divided: use assign or scatter_update"
            )

    def global_ids(self, ids: Array) -> NDArray[np.int64]:
        """Converts ``ids`` of this variable, which may be a part, to rows of ``spec``."""
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

    def _ids(self, ids: Any) -> Array:
        try:
            return to_axes(ids)
        except ValueError as error:
            raise InvalidArgumentError(
                f"ids for variable {self.name!r} must be an array, and lists of several lengths "
                "are none: look them up one after the other; layers.Embedding(combiner=) pools "
                f"them ({error})"
            ) from error

    def _slice(self, start: int, stop: int, step: int) -> Any:
        if step == 1 and not wants_gradient(self):
            first = self._start + start
            return self.parameters.read(self.spec, first, self._start + max(start, stop))
        return self._taken(np.arange(start, stop, step))

    def _taken(self, rows: Array) -> Any:
        ids = self.global_ids(rows)
        if wants_gradient(self):
            return tracked_rows(self, ids)
        return self.parameters.read_rows(self.spec, ids)

    def _listed(self, index: Any) -> Array | None:
        """Returns row numbers if ``index`` is an array of them or a mask of rows, else None."""
        if not self.shape or not isinstance(index, list | np.ndarray):
            return None
        array = np.asarray(index)
        if array.dtype == np.bool_ and array.shape == self.shape[:1]:
            return np.flatnonzero(array)
        return self._places(array) if np.issubdtype(array.dtype, np.integer) else None

    def _indexed(self, rows: Array, rest: tuple[Any, ...]) -> Any:
        if rest:
            # NumPy broadcasts the other indices against this one, so it must keep its shape.
            distinct, places = np.unique(rows, return_inverse=True)
            return self._taken(distinct)[(places.reshape(rows.shape), *rest)]
        found = self._taken(rows.reshape(-1))
        return found if rows.ndim == 1 else found.reshape(rows.shape + self.shape[1:])

    def _places(self, index: Array) -> Array:
        """Converts indices to row numbers; an index below 0 counts from the end."""
        rows = self.shape[0]
        outside = (index < -rows) | (index >= rows)
        if outside.any():
            raise IndexError(
                f"index {index[outside].flat[0]} is outside variable {self.name!r} with {rows} rows"
            )
        # The dtype of the indices, such as uint8, may be too narrow for the number of rows.
        places = index.astype(np.int64)
        return np.where(places < 0, places + rows, places)


def new_handle(
    kind: type[Any],
    spec: VariableSpec,
    parameters: Parameters,
    start: int,
    stop: int,
    *,
    is_unread: bool = False,
) -> Any:
    """Returns a ``kind`` that covers rows ``[start, stop)`` of ``spec``; creates no values."""
    variable = object.__new__(kind)
    variable.spec = spec
    variable.parameters = parameters
    variable.lifetime = parameters.lifetimes.find(spec.id)
    variable._start = start
    variable._stop = stop
    variable.is_unread = is_unread
    return variable


def handle_of(lifetime: Lifetime, parameters: Parameters) -> Any:
    """Returns the first handle of a variable, or one like it if that is gone."""
    first = None if lifetime.first_handle is None else lifetime.first_handle()
    if first is not None:
        return first
    return new_handle(lifetime.kind, lifetime.spec, parameters, 0, lifetime.spec.rows)
