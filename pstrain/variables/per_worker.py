"""A variable of which each trainer has a copy of its own.

The copies are rows of one variable on a parameter server, so they outlive trainers and are saved
like any other. Invariant: a scheduled function reads and changes its own trainer's copy only.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pstrain.errors import FailedPreconditionError, UnimplementedError
from pstrain.trainer.context import current_position
from pstrain.variables.base import Array, BaseVariable, new_handle
from pstrain.variables.creation import announce, create_spec
from pstrain.variables.scope import current_placement
from pstrain.vocabulary import InitializerSpec


class PerWorkerVariable(BaseVariable):
    """Made by ``Variable(..., per_worker_variable=True)``; never trainable.

    In a scheduled function it is the copy of that trainer. In the program ``read_all`` lists the
    copies, and assignments change all of them.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.shape[1:]

    @property
    def device(self) -> str:
        """Where all copies are."""
        return self.parameters.device(self.spec.shards[0].ps)

    def numpy(self) -> Array:
        """This trainer's copy."""
        row = self._row()
        if row is None:
            raise FailedPreconditionError(
                f"variable {self.name!r} has {self.spec.rows} copies, one per trainer: "
                "use read_all() outside of scheduled functions"
            )
        copy: Array = self.parameters.read(self.spec, row, row + 1)[0]
        return np.asarray(copy)

    def read_all(self) -> list[Array]:
        """Every trainer's copy, in their order."""
        return [np.asarray(copy) for copy in self.parameters.read(self.spec)]

    def sparse_read(self, ids: Any) -> Array:
        return self.numpy()[np.asarray(ids)]

    def scatter(self, op: str, ids: Any, rows: Any = None) -> None:  # noqa: ARG002
        raise UnimplementedError(
            f"per-worker variable {self.name!r} has no rows to scatter to: assign it whole"
        )

    def __getitem__(self, key: Any) -> Array:
        return self.numpy()[key]

    def _assign(self, op: str, value: Any) -> None:
        self._check_fits(op, value)
        row = self._row()
        copies = self.spec.rows if row is None else 1
        full = np.broadcast_to(np.asarray(value), (copies, *self.shape))
        self.parameters.assign(self.spec, op, full, row or 0)

    def _row(self) -> int | None:
        """Of this trainer; of the only copy; None in the program of a cluster."""
        return 0 if self.spec.rows == 1 else current_position()


def create_per_worker_variable(
    initial: InitializerSpec | Array, shape: tuple[int, ...], dtype: str, name: str
) -> PerWorkerVariable:
    """One copy for each trainer of the entered strategy, one in all without any.

    An array is of the shape and dtype.
    """
    placement = current_placement()
    copies, value = placement.num_workers, None
    if isinstance(initial, InitializerSpec):
        initializer = initial
    else:
        value = np.broadcast_to(initial, (copies, *shape))
        initializer = InitializerSpec(name="constant", parameters={"value": 0.0})
    servers = placement.place((), dtype)
    spec = create_spec(placement, (copies, *shape), dtype, name, False, initializer, servers)
    placement.parameters.create(spec, value)
    variable: PerWorkerVariable = new_handle(
        PerWorkerVariable, spec, placement.parameters, 0, spec.rows
    )
    announce(placement, variable)
    return variable
