"""Initializers: descriptions of a variable's first values, from which servers fill their rows.

Knows no server and computes no values. Invariant: an initializer is plain data, so it can be sent
to the servers of a variable with any number of shards.
"""

from __future__ import annotations

import math
import zlib
from typing import TYPE_CHECKING, cast

from dataservice.runtime.arguments import check_number, integer_at_least, is_integer, non_negative
from pstrain.errors import InvalidArgumentError, InvalidTypeError
from pstrain.porting import foreign_arguments, foreign_names
from pstrain.porting.foreign_arguments import refuse_arguments
from pstrain.vocabulary import InitializerSpec

if not TYPE_CHECKING:  # type checkers still report unknown names
    __getattr__ = foreign_names.module_getattr(__name__, foreign_names.INITIALIZERS)


def zeros() -> InitializerSpec:
    """Initializes all values to 0."""
    return constant(0.0)


def ones() -> InitializerSpec:
    """Initializes all values to 1."""
    return constant(1.0)


def constant(value: float) -> InitializerSpec:
    """Initializes all values to ``value``."""
    return InitializerSpec(name="constant", parameters=_numbers(value=value))


@refuse_arguments("uniform", foreign_arguments.UNIFORM)
def uniform(
    low: float = -0.05, high: float = 0.05, *, seed: int = 0, zero_columns: int = 0
) -> InitializerSpec:
    """Draws values from ``[low, high)``; the first ``zero_columns`` values of a row are 0."""
    integer_at_least(zero_columns, 0, "zero_columns")
    parameters = _numbers(low=low, high=high, zero_columns=zero_columns)
    if low > high:
        raise InvalidArgumentError(f"low must not be above high, got low={low} and high={high}")
    return InitializerSpec(name="uniform", parameters=parameters, seed=_whole(seed))


def normal(
    mean: float = 0.0, stddev: float = 0.05, *, seed: int = 0, zero_columns: int = 0
) -> InitializerSpec:
    """Draws normally distributed values; the first ``zero_columns`` values of a row are 0."""
    non_negative(stddev, "stddev")
    integer_at_least(zero_columns, 0, "zero_columns")
    parameters = _numbers(mean=mean, stddev=stddev, zero_columns=zero_columns)
    return InitializerSpec(name="normal", parameters=parameters, seed=_whole(seed))


def truncated_normal(
    mean: float = 0.0, stddev: float = 0.05, *, seed: int = 0, zero_columns: int = 0
) -> InitializerSpec:
    """Draws values like :func:`normal`, but within two standard deviations of the mean."""
    non_negative(stddev, "stddev")
    integer_at_least(zero_columns, 0, "zero_columns")
    parameters = _numbers(mean=mean, stddev=stddev, zero_columns=zero_columns)
    return InitializerSpec(name="truncated_normal", parameters=parameters, seed=_whole(seed))


def glorot_uniform(fan_in: int, fan_out: int, *, seed: int = 0) -> InitializerSpec:
    """Draws uniform values up to +-sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio, 2010)."""
    integer_at_least(fan_in, 1, "fan_in")
    integer_at_least(fan_out, 1, "fan_out")
    limit = math.sqrt(6.0 / (fan_in + fan_out))
    return uniform(-limit, limit, seed=seed)


def seed_for(name: str, seed: int = 0) -> int:
    """Returns a seed that differs between variable names and is the same in every process."""
    return zlib.crc32(name.encode()) ^ (_whole(seed) * 0x9E3779B1 & 0x7FFFFFFF)


def _whole(seed: object) -> int:
    if not is_integer(seed):
        raise InvalidTypeError(f"seed must be an integer, got {seed!r}; it is 0 unless given")
    return int(cast("int", seed))


def _numbers(**values: float) -> dict[str, float]:
    for name, value in values.items():
        check_number(name, value)
    return {name: float(value) for name, value in values.items()}
