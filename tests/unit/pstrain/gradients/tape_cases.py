"""Values, and one operation, that tests of tapes and tensors share."""

from __future__ import annotations

import numpy as np

from pstrain.gradients.recording import record
from pstrain.gradients.tensor import Tensor
from pstrain.layers.base import whole_leaf
from pstrain.variables.variable import Variable


def vector(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def read(variable: Variable) -> Tensor:
    return whole_leaf(variable, variable.numpy())


def total(tensor: Tensor) -> Tensor:
    """Sums all values, as an operation of its own on the tape."""
    return record(Tensor(tensor.value.sum()), (tensor,), lambda grad: np.full(tensor.shape, grad))
