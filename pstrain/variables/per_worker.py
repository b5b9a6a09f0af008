"""Variables of which each trainer has a copy of its own.

The copies are rows of one variable on a parameter server, so they outlive trainers and are saved
like any other variable. Invariant: a scheduled function reads and changes only the copy of the
trainer that runs it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dataservice.runtime.number_arrays import to_axes
from pstrain.errors import FailedPreconditionError, UnimplementedError
from pstrain.trainer.context import current_position
from pstrain.variables.base import Array, BaseVariable
from pstrain.variables.creation import announce, create_spec, make
from pstrain.variables.scope import current_placement
from pstrain.vocabulary import InitializerSpec


class PerWorkerVariable(BaseVariable):
    """A variable with a copy per trainer: ``Variable(..., per_worker_variable=True)``.

    Never trainable. In a scheduled function it stands for the copy of that trainer. In the
    coordinator's program ``read_all`` lists the copies, and assignments change all of them.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one trainer's value."""
        return self.spec.shape[1:]

    @property
    def is_whole(self) -> bool:
        """False: the value is one of the copies, each of which is a row of ``spec``."""
        return False

    @property
    def device(self) -> str:
        """The place that holds all copies."""
        return self.parameters.device(self.spec.shards[0].ps)

    def numpy(self) -> Array:
        """Returns this trainer's copy; raises FailedPreconditionError outside scheduled functions.

        A variable with only one copy can be read anywhere.
        """
        row = self._row()
        if row is None:
            raise FailedPreconditionError(
                f"variable {self.name!r} has {self.spec.rows} copies, one per trainer: "
                "use read_all() outside of scheduled functions"
            )
        copy: Array = self.parameters.read(self.spec, row, row + 1)[0]
        return np.asarray(copy)

    def read_all(self) -> list[Array]:
        """Returns the copies of all trainers, in the order of the trainers."""
        return [np.asarray(copy) for copy in self.parameters.read(self.spec)]

    def sparse_read(self, ids: Any) -> Array:
        return self.numpy()[to_axes(ids)]

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
        """Returns the row of this trainer's copy, 0 if there is one copy, None in the program."""
        return 0 if self.spec.rows == 1 else current_position()


def create_per_worker_variable(
    initial: InitializerSpec | Array, shape: tuple[int, ...], dtype: str, name: str
) -> PerWorkerVariable:
    """Makes a variable with a copy per trainer of the entered strategy, or one if there is none.

    ``initial``, if it is an array, has the given shape and dtype already.
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
    variable: PerWorkerVariable = make(PerWorkerVariable, placement, spec, value)
    announce(placement, variable)
    return variable
