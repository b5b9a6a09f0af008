"""Initial values of a shard's rows, by the name in an ``InitializerSpec``.

The values depend on (seed, global row, column) alone, so they are the same however a variable is
placed. Knows nothing of shards or servers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataservice.errors import InvalidArgumentError
from pstrain.kernels.initializers import normal_rows, uniform_rows
from pstrain.vocabulary import InitializerSpec

_TAIL_BEYOND_TWO_STDDEV = 0.022750131948179195
# A normal distribution cut at two standard deviations has this one.
_TRUNCATED_STDDEV = 0.87962566103423978

Array = NDArray[Any]
Parameters = Mapping[str, float]


def fill(
    initializer: InitializerSpec, shape: tuple[int, ...], seed: int, row_start: int, out: Array
) -> None:
    """Fills ``out`` [rows, width], the rows from ``row_start`` on of a variable of ``shape``.

    Names and parameters: ``zeros``; ``ones``; ``constant`` (value); ``uniform`` (low, high);
    ``normal`` and ``truncated_normal`` (mean, stddev); ``glorot_uniform``, ``glorot_normal``,
    ``he_uniform`` and ``he_normal`` (scale from the first and last axis of ``shape``).
    """
    kind = _FILLERS.get(initializer.name)
    if kind is None:
        raise InvalidArgumentError(
            f"unknown initializer {initializer.name!r}; known: {', '.join(sorted(_FILLERS))}"
        )
    parameters = {**kind[1], **initializer.parameters}
    unknown = sorted(parameters.keys() - kind[1].keys())
    if unknown:
        raise InvalidArgumentError(
            f"initializer {initializer.name!r} has no parameter {unknown[0]!r}; "
            f"it takes {sorted(kind[1]) or 'none'}"
        )
    kind[0](out, seed, row_start, shape, parameters)


def _constant(out: Array, _seed: int, _row: int, _shape: Any, p: Parameters) -> None:
    out[...] = p["value"]


def _uniform(out: Array, seed: int, row_start: int, _shape: Any, p: Parameters) -> None:
    rows = _float32(out)
    uniform_rows(rows, out.shape[1], seed, row_start, float(p["low"]), float(p["high"]))
    _give(rows, out)


def _normal(tail: float) -> Callable[..., None]:
    def filler(out: Array, seed: int, row_start: int, _shape: Any, p: Parameters) -> None:
        rows = _float32(out)
        mean, stddev = float(p["mean"]), float(p["stddev"])
        normal_rows(rows, out.shape[1], seed, row_start, mean, stddev, tail)
        _give(rows, out)

    return filler


def _scaled(normal: bool, both_fans: bool) -> Callable[..., None]:
    """Glorot & Bengio 2010 (both fans) and He et al. 2015 (fan in)."""

    def filler(
        out: Array, seed: int, row_start: int, shape: tuple[int, ...], p: Parameters
    ) -> None:  # noqa: ARG001
        fan_in, fan_out = (shape[0], shape[-1]) if len(shape) > 1 else (out.size, out.size)
        variance = 2.0 / max(1, fan_in + fan_out) if both_fans else 2.0 / max(1, fan_in)
        if normal:
            scale = {"mean": 0.0, "stddev": math.sqrt(variance) / _TRUNCATED_STDDEV}
            _normal(_TAIL_BEYOND_TWO_STDDEV)(out, seed, row_start, shape, scale)
        else:
            limit = math.sqrt(3.0 * variance)
            _uniform(out, seed, row_start, shape, {"low": -limit, "high": limit})

    return filler


def _float32(out: Array) -> NDArray[np.float32]:
    return out if out.dtype == np.float32 else np.empty(out.shape, np.float32)


def _give(rows: NDArray[np.float32], out: Array) -> None:
    if rows is not out:
        out[...] = rows


_MEAN = {"mean": 0.0, "stddev": 0.05}
_FILLERS: dict[str, tuple[Callable[..., None], dict[str, float]]] = {
    "zeros": (lambda out, *_: out.fill(0), {}),
    "ones": (lambda out, *_: out.fill(1), {}),
    "constant": (_constant, {"value": 0.0}),
    "uniform": (_uniform, {"low": -0.05, "high": 0.05}),
    "normal": (_normal(0.0), _MEAN),
    "truncated_normal": (_normal(_TAIL_BEYOND_TWO_STDDEV), _MEAN),
    "glorot_uniform": (_scaled(normal=False, both_fans=True), {}),
    "glorot_normal": (_scaled(normal=True, both_fans=True), {}),
    "he_uniform": (_scaled(normal=False, both_fans=False), {}),
    "he_normal": (_scaled(normal=True, both_fans=False), {}),
}
