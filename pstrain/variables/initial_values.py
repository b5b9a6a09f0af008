"""Checks the initial value that a program gives for a variable, and converts it to an array.

Makes no variables and knows no servers. Invariant: no number changes silently.
"""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pstrain.errors import InvalidArgumentError, InvalidTypeError
from pstrain.variables.rows import check_range, shape_of_rows
from pstrain.vocabulary import VARIABLE_DTYPES, InitializerSpec, ShardSpec, VariableSpec

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """The part of a variable for which a function has to return the initial value."""

    shape: tuple[int, ...]
    offset: tuple[int, ...]


def check_dtype(dtype: str, name: str) -> None:
    """Raises InvalidArgumentError if variables cannot have this dtype."""
    if dtype not in VARIABLE_DTYPES:
        raise InvalidArgumentError(
            f"dtype of {name!r} must be one of {VARIABLE_DTYPES}, got {dtype!r}{_instead_of(dtype)}"
        )


def _instead_of(dtype: str) -> str:
    """Returns what to write instead of an unsupported dtype, or "" if there is no replacement."""
    if dtype == "bfloat16":
        return (
            ": give dtype='float32'; a strategy with transport_dtype='bfloat16' sends half as much"
        )
    if dtype == "uint16":
        return ": give dtype='uint32'"
    if dtype.startswith(("str", "bytes", "object")):
        return ": variables hold numbers; layers.StringLookup gives rows to words"
    return ""


def value_of_shard(initial: Callable[..., Any], spec: VariableSpec, shard: ShardSpec) -> Array:
    """Calls a function of one shard, and returns the initial value that it gives for ``shard``."""
    shape = shape_of_rows(spec, shard.row_stop - shard.row_start)
    offset = (shard.row_start, *(0 for _ in spec.shape[1:])) if spec.shape else ()
    if "shard_info" in inspect.signature(initial).parameters:
        value = initial(shard_info=ShardInfo(shape, offset))
    else:
        value = _of_partition(initial, shape, offset)
        if np.shape(value) == spec.shape != shape and _takes_any_name(initial):
            value = value[shard.row_start : shard.row_stop]
    array = as_array(value, spec.name)
    if array.shape != shape:
        raise InvalidArgumentError(
            f"the initial value of rows {offset} of variable {spec.name!r} has shape "
            f"{array.shape}, expected {shape}"
        )
    return _converted(array, spec.dtype, spec.name)


def _of_partition(
    initial: Callable[..., Any], shape: tuple[int, ...], offset: tuple[int, ...]
) -> Any:
    """Calls ``initial`` for one shard, or for the whole variable if it ignores its arguments.

    It ignores them if it hands them on to a function that does not take them.
    """
    try:
        return initial(partition_shape=shape, partition_offset=offset)
    except TypeError as error:
        passed_on = "partition_" in str(error) and "keyword argument" in str(error)
        if not (passed_on and _takes_any_name(initial)):
            raise
        return initial()


def wants_shards(initial: Any, *, is_described: bool = False) -> bool:
    """True if ``initial`` is a function that gives the initial value of one shard at a time.

    ``is_described`` means that shape and dtype are known without a call. A function that takes
    keyword arguments of any name, as TensorFlow's initializers do, then counts as such a function.
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


def initial_array(value: Any, shape: Sequence[int] | None, dtype: str, name: str) -> Array:
    """Converts a value to an array of ``dtype``, broadcast to ``shape`` if that is given."""
    array = _converted(np.asarray(value), dtype, name)
    try:
        return array if shape is None else np.broadcast_to(array, tuple(shape))
    except ValueError as error:
        raise InvalidArgumentError(
            f"initial value of shape {array.shape} does not fit variable {name!r} of shape "
            f"{tuple(shape or ())}"
        ) from error


def check_initializer(initial: InitializerSpec, dtype: str, name: str) -> None:
    """Raises InvalidArgumentError if an integer or bool ``dtype`` cannot hold what it gives."""
    if np.dtype(dtype).kind not in "iub":
        return
    if initial.name != "constant":
        raise InvalidArgumentError(
            f"variable {name!r} of {dtype} cannot hold what initializers.{initial.name} gives, "
            f"which is floats: give dtype='float32', or an array of {dtype}"
        )
    _converted(np.asarray(initial.parameters.get("value", 0.0)), dtype, name)


def value_of_call(initial: Callable[..., Any], name: str | None) -> Any:
    """Calls ``initial`` without arguments; raises InvalidTypeError if it needs arguments."""
    try:
        inspect.signature(initial).bind()
    except TypeError as error:
        raise InvalidTypeError(
            f"the function that gives {called(name)} its initial value is called without "
            f"arguments, or for each shard with shard_info: {error}"
        ) from error
    except ValueError:
        pass  # a function written in C may have no signature
    return initial()


def called(name: str | None) -> str:
    return "a variable" if name is None else f"variable {name!r}"


def dtype_name(dtype: Any, name: str | None) -> str:
    """Returns NumPy's name of a dtype, which :func:`check_dtype` may still refuse."""
    try:
        return np.dtype(dtype).name
    except TypeError as error:
        raise InvalidTypeError(
            f"dtype of {called(name)} must be one of {VARIABLE_DTYPES}, got {dtype!r}"
            f"{_instead_of(str(dtype))}"
        ) from error


def sizes(shape: Any, name: str | None) -> tuple[int, ...]:
    """Converts a shape to a tuple; an integer is the size of a single axis."""
    sizes = (shape,) if isinstance(shape, numbers.Integral) else shape
    is_shape = isinstance(sizes, Iterable) and not isinstance(sizes, str)
    if not is_shape or not all(isinstance(size, numbers.Integral) for size in sizes):
        raise InvalidTypeError(
            f"shape of {called(name)} must be the sizes of its axes, which are integers, got "
            f"{shape!r}"
        )
    return tuple(int(size) for size in sizes)


def check_shapes_agree(shape: Any, of_value: tuple[int, ...], name: str | None) -> None:
    """Raises InvalidArgumentError if a ``shape`` is given that is not that of the initial value."""
    if shape is not None and sizes(shape, name) != tuple(of_value):
        raise InvalidArgumentError(
            f"initial value of shape {tuple(of_value)} does not fit {called(name)} of shape "
            f"{sizes(shape, name)}: leave out shape=, or give the initializer alone"
        )


def as_array(value: Any, name: str | None) -> Array:
    """Converts a value to an array of the dtype that NumPy chooses for it."""
    try:
        return np.asarray(value)
    except ValueError as error:
        raise InvalidArgumentError(f"the initial value of {called(name)}: {error}") from error


def _converted(value: Array, dtype: str, name: str) -> Array:
    """Converts to ``dtype``; raises InvalidArgumentError if integers or bools would change."""
    try:
        check_range(value, dtype, name)
        array = value.astype(dtype, copy=False)
    except OverflowError as error:
        raise InvalidArgumentError(
            f"the initial value of variable {name!r} is outside of {dtype}: {error}"
        ) from error
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"the initial value of variable {name!r}: {error}") from error
    kind = array.dtype.kind
    if kind in "iub" and value.dtype.kind != kind and not np.all(array == value):
        raise InvalidArgumentError(
            f"the initial value of variable {name!r} cannot become {dtype} without loss: round it, "
            "or give another dtype"
        )
    return array
