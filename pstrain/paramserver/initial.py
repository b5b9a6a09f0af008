"""Fills the rows of a shard with the initial values that an ``InitializerSpec`` describes.

Knows nothing of shards or servers. Invariant: the values depend on (seed, global row, column) only,
so a variable starts the same however it is cut and placed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pstrain.buffers import read_only
from pstrain.errors import InvalidArgumentError
from pstrain.kernels.initializers import normal_rows, uniform_rows
from pstrain.vocabulary import InitializerSpec

_DEFAULTS: dict[str, dict[str, float]] = {
    "constant": {"value": 0.0},
    "uniform": {"low": -0.05, "high": 0.05, "zero_columns": 0.0},
    "normal": {"mean": 0.0, "stddev": 0.05, "zero_columns": 0.0},
    "truncated_normal": {"mean": 0.0, "stddev": 0.05, "zero_columns": 0.0},
}
_BEYOND_TWO_STDDEV = 0.022750131948179195


_FROM_START = np.empty(0, np.int64)


def fill(
    spec: InitializerSpec,
    out: NDArray[Any],
    row_start: int,
    row_numbers: NDArray[np.int64] = _FROM_START,
) -> None:
    """Fills ``out`` [rows, width], the rows of a variable from ``row_start`` on.

    ``row_numbers``: the numbers of the rows instead, if there are any. The first ``zero_columns``
    values of a row are 0. Raises InvalidArgumentError for an unknown initializer, or for a
    parameter that it does not have.
    """
    parameters = _checked(spec)
    if spec.name == "constant":
        out[...] = parameters["value"]
        return
    rows = out if out.dtype == np.float32 else np.empty(out.shape, np.float32)
    seed, width = spec.seed & 0x7FFFFFFFFFFFFFFF, out.shape[1]
    places = (rows, width, seed, row_start, read_only(row_numbers))
    if spec.name == "uniform":
        uniform_rows(*places, parameters["low"], parameters["high"])
    else:
        tail = _BEYOND_TWO_STDDEV if spec.name == "truncated_normal" else 0.0
        normal_rows(*places, parameters["mean"], parameters["stddev"], tail)
    if rows is not out:
        out[...] = rows
    out[:, : int(parameters["zero_columns"])] = 0


def _checked(spec: InitializerSpec) -> dict[str, float]:
    defaults = _DEFAULTS.get(spec.name)
    if defaults is None:
        raise InvalidArgumentError(
            f"unknown initializer {spec.name!r}; known: {', '.join(sorted(_DEFAULTS))}"
        )
    unknown = sorted(spec.parameters.keys() - defaults.keys())
    if unknown:
        raise InvalidArgumentError(
            f"initializer {spec.name!r} has no parameter {unknown[0]!r}; it takes "
            f"{', '.join(sorted(defaults))}"
        )
    return {**defaults, **{name: float(value) for name, value in spec.parameters.items()}}
