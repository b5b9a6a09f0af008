"""Access to the values of an object's variables as arrays, by Keras' names.

Knows neither models nor layers. Invariant: arrays are in the order of the object's variables.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pstrain.errors import InvalidArgumentError, InvalidTypeError
from pstrain.variables.joint_access import assign_together, read_together


class ArrayAccess:
    """A mixin for classes whose ``_all_variables()`` lists what they are saved with."""

    def _all_variables(self) -> list[Any]:
        raise NotImplementedError

    @property
    def trainable_variables(self) -> list[Any]:
        """The variables that an optimizer may change."""
        return [variable for variable in self._all_variables() if variable.trainable]

    @property
    def non_trainable_variables(self) -> list[Any]:
        """The variables that no optimizer changes: those of frozen layers, and counters."""
        return [variable for variable in self._all_variables() if not variable.trainable]

    @property
    def trainable_weights(self) -> list[Any]:
        """The same as ``trainable_variables``."""
        return self.trainable_variables

    @property
    def non_trainable_weights(self) -> list[Any]:
        """The same as ``non_trainable_variables``."""
        return self.non_trainable_variables

    def count_params(self) -> int:
        """Returns the number of values in all variables."""
        return sum(math.prod(variable.shape) for variable in self._all_variables())

    def get_weights(self) -> list[NDArray[Any]]:
        """Returns copies of all values, large tables included; of a sharded variable one array."""
        return read_together(self._all_variables())

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Sets all values; InvalidArgumentError, before any change, if they do not fit."""
        variables = self._all_variables()
        if not isinstance(weights, Sequence | np.ndarray):
            raise InvalidTypeError(
                f"set_weights takes a list of arrays, as get_weights() returns, got "
                f"{type(weights).__name__}"
            )
        if not variables and len(weights):
            raise InvalidArgumentError(
                f"{len(weights)} arrays, but {self!r} has no variables yet: call it once before, "
                "or give it the size of its inputs"
            )
        if len(weights) != len(variables):
            raise InvalidArgumentError(
                f"{len(weights)} arrays for {len(variables)} variables: give one for each of "
                f"{', '.join(variable.name for variable in variables)}"
            )
        for variable, value in zip(variables, weights, strict=True):
            if np.shape(value) != tuple(variable.shape):
                raise InvalidArgumentError(
                    f"an array of shape {np.shape(value)} for variable {variable.name!r} of shape "
                    f"{tuple(variable.shape)}"
                )
        assign_together(variables, weights)
