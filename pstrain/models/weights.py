"""Access to a model's values as arrays, and the table of its variables.

Knows variables and layers, not what they compute. Invariant: arrays are in the order of
``variables``.
"""

from __future__ import annotations

import math
import os
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pstrain.errors import InvalidArgumentError
from pstrain.variables.freezing import Freezable
from pstrain.variables.joint_access import assign_together, read_together


class Weights(Freezable):
    """A mixin for classes with ``variables`` and ``layers``."""

    layers: list[Any]

    @property
    @abstractmethod
    def variables(self) -> list[Any]:
        """All variables."""

    @property
    def trainable_variables(self) -> list[Any]:
        """The variables that an optimizer may change."""
        return [variable for variable in self.variables if variable.trainable]

    @property
    def non_trainable_variables(self) -> list[Any]:
        """The variables of frozen layers, and the keys of online columns."""
        return [variable for variable in self.variables if not variable.trainable]

    @property
    def weights(self) -> list[Any]:
        """The same as ``variables``."""
        return self.variables

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
        return sum(math.prod(variable.shape) for variable in self.variables)

    def get_weights(self) -> list[NDArray[Any]]:
        """Returns copies of all values, large tables included."""
        return read_together(self.variables)

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Sets all values; InvalidArgumentError, before any change, if they do not fit."""
        variables = self.variables
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

    def save_weights(self, directory: str | os.PathLike[str]) -> str:
        """Writes a checkpoint of this model alone and returns its path."""
        from pstrain.checkpoints.checkpoint import Checkpoint

        return Checkpoint(model=self).save(directory)

    def load_weights(self, path: str | os.PathLike[str]) -> str:
        """Restores a checkpoint of ``save_weights``, or one with ``model=``; returns its path."""
        from pstrain.checkpoints.checkpoint import Checkpoint

        return Checkpoint(model=self).restore(path)

    def summary(self, print_fn: Callable[[str], Any] = print) -> None:
        """Prints the variables with their shapes, numbers of values and places."""
        rows = [("variable", "shape", "values", "where")]
        for variable in self.variables:
            places = variable.device
            where = places if isinstance(places, str) else f"{len(places)} shards"
            size = math.prod(variable.shape)
            rows.append((variable.name, str(tuple(variable.shape)), f"{size:,}", where))
        widths = [max(len(row[k]) for row in rows) for k in range(4)]
        print_fn(f"{type(self).__name__}: {len(self.layers)} layers")
        for row in rows:
            print_fn("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)))
        trained = sum(math.prod(v.shape) for v in self.trainable_variables)
        print_fn(f"{self.count_params():,} values, {trained:,} of them trained")
