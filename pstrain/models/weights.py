"""What a model is made of: its layers by name, its values on disk, and the table of its variables.

Knows variables and layers, not what they compute. Invariant: values are in the order of
``variables``.
"""

from __future__ import annotations

import math
import os
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from dataservice.runtime.arguments import check_callable, path_of
from pstrain.errors import InvalidArgumentError
from pstrain.variables.arrays import ArrayAccess
from pstrain.variables.freezing import Freezable


class Weights(ArrayAccess, Freezable):
    """A mixin for classes with ``variables`` and ``layers``."""

    layers: list[Any]

    @property
    @abstractmethod
    def variables(self) -> list[Any]:
        """All variables."""

    def _all_variables(self) -> list[Any]:
        return self.variables

    @property
    def weights(self) -> list[Any]:
        """The same as ``variables``."""
        return self.variables

    def get_layer(self, name: str | None = None, index: int | None = None) -> Any:
        """Returns the layer of this name, or at this place of ``layers``.

        InvalidArgumentError, which lists the names, if there is no such layer.
        """
        if (name is None) == (index is None):
            raise InvalidArgumentError(f"give a name or an index, got {name!r} and {index!r}")
        if index is not None and -len(self.layers) <= index < len(self.layers):
            return self.layers[index]
        found = next((layer for layer in self.layers if layer.name == name), None)
        if found is None:
            known = ", ".join(repr(layer.name) for layer in self.layers)
            raise InvalidArgumentError(f"no layer {name if index is None else index!r} in {known}")
        return found

    def save_weights(self, directory: str | os.PathLike[str]) -> str:
        """Writes a checkpoint of this model alone and returns its path."""
        from pstrain.checkpoints.checkpoint import Checkpoint

        return Checkpoint(model=self).save(directory)

    def load_weights(self, path: str | os.PathLike[str]) -> str:
        """Restores a checkpoint of ``save_weights``, or one with ``model=``; returns its path."""
        from pstrain.checkpoints.checkpoint import Checkpoint

        # Unlike for Checkpoint.restore, None would be a lost path, not a first start.
        return Checkpoint(model=self).restore(path_of(path, "path"))

    def summary(self, print_fn: Callable[[str], Any] = print) -> None:
        """Prints the variables with their shapes, numbers of values and places."""
        check_callable("print_fn", print_fn)
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
