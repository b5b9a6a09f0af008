"""Reads rows of a variable as a tensor, so that a tape assigns their gradient to these rows only.

Knows nothing of layers or of how values travel. Invariant: an id that is asked for several times is
one row of the lookup, and the gradient of this row is the sum over the repetitions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pstrain import buffers
from pstrain.gradients.recording import leaf, record
from pstrain.gradients.tensor import Tensor, joined
from pstrain.kernels import embedding as kernels
from pstrain.variables.rows import shape_of_rows
from pstrain.vocabulary import Fetch

Array = NDArray[Any]


def tracked_rows(variable: Any, ids: NDArray[np.int64]) -> Tensor:
    """Returns rows [n, *shape[1:]] of ``ids``, given as rows of ``spec``, as leaves of the tape."""
    if hasattr(variable.parameters, "parts"):
        return _of_parts(variable, ids)
    (lookup,) = variable.parameters.fetch([Fetch(variable.spec, ids)])
    rows = leaf(Tensor(lookup.rows), variable, lookup)
    inverse = lookup.inverse
    flat = buffers.empty((len(inverse), variable.spec.width))
    kernels.gather_fields(lookup.rows, inverse, 1, flat)

    def backward(grad: Array) -> Array:
        total = buffers.zeros(rows.shape)
        # Kernels are compiled for arrays that can be written to.
        given = np.require(grad.reshape(flat.shape), np.float32, ("C", "W"))
        kernels.scatter_fields(given, inverse, 1, total)
        return total

    return record(Tensor(flat.reshape(shape_of_rows(variable.spec, len(ids)))), (rows,), backward)


def _of_parts(variable: Any, ids: NDArray[np.int64]) -> Tensor:
    """Does the same for joined variables; reads, and trains, each row in the part that holds it."""
    found, places = [], []
    for part, mine, part_ids in variable.parameters.by_part(variable.spec, ids):
        rows = part.sparse_read(part_ids)
        found.append(rows if isinstance(rows, Tensor) else Tensor(rows))
        places.append(mine)
    if not found:
        return Tensor(np.empty(shape_of_rows(variable.spec, 0), variable.dtype))
    return joined(found)[np.argsort(np.concatenate(places))]
