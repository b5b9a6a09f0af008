"""Rows and their row numbers as one value."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pstrain.errors import InvalidArgumentError


class IndexedSlices(NamedTuple):
    """``values[i]`` belongs to row ``indices[i]``."""

    values: Any
    indices: Any
    dense_shape: Any = None


def ids_and_rows(ids: Any, rows: Any, name: str) -> tuple[NDArray[Any], Any]:
    """Returns (ids, rows), given either as two arguments or as ``IndexedSlices`` alone."""
    if isinstance(ids, IndexedSlices):
        if rows is not None:
            raise InvalidArgumentError(
                f"variable {name!r}: give IndexedSlices, or ids and rows, not both"
            )
        return np.asarray(ids.indices), ids.values
    if rows is None:
        raise InvalidArgumentError(f"variable {name!r}: ids need rows, or use IndexedSlices")
    return np.asarray(ids), rows
