"""One shard of one variable: its rows, their optimizer slots, and every change to them.

No network, no ledger, no other shard. Invariant: every write holds the shard's lock, so no
update is lost; reads take no lock and may see a row in the middle of a change.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pstrain.errors import InvalidArgumentError
from pstrain.kernels import updates
from pstrain.kernels.prefetch import aligned_empty
from pstrain.paramserver.initial import fill
from pstrain.paramserver.rules import apply_rule, find_rule
from pstrain.paramserver.snapshot import Snapshot
from pstrain.vocabulary import OptimizerSpec, VariableSpec

Array = NDArray[Any]


_WHOLE: dict[str, Callable[[Array, Array], Any]] = {
    "set": lambda target, value: np.copyto(target, value, casting="same_kind"),
    "add": lambda target, value: np.add(target, value, out=target, casting="same_kind"),
    "sub": lambda target, value: np.subtract(target, value, out=target, casting="same_kind"),
}
_SCATTER: dict[str, np.ufunc] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "min": np.minimum,
    "max": np.maximum,
}


class Shard:
    """Rows ``[row_start, row_stop)`` of ``spec``; ids and row numbers are global everywhere.

    ``slots`` and ``row_slots`` count the optimizer's values per value and per row.
    ``version`` grows with every change. Values are [rows, width] of the variable's dtype; only
    float32 variables can be trained and so have slots.
    """

    def __init__(
        self, spec: VariableSpec, index: int, value: Array | None = None, *, version: int = 0
    ) -> None:
        place = spec.shards[index]
        self.spec = spec
        self.index = index
        self.row_start = place.row_start
        self.row_stop = place.row_stop
        self.width = spec.width
        self.version = version
        self.optimizer: str | None = None
        self.slots = 0
        self.row_slots = 0
        self._lock = threading.Lock()
        self._snapshots: list[Snapshot] = []
        self._slab = aligned_empty((self.row_stop - self.row_start, self.width), spec.dtype)
        if value is None:
            fill(spec.initializer, self._slab, self.row_start)
        else:
            self._slab[...] = np.asarray(value).reshape(self._slab.shape)

    @property
    def column_widths(self) -> list[int]:
        """Columns of the slab: the value's, each slot's, and 1 for each number kept per row."""
        return [*[self.width] * (1 + self.slots), *[1] * self.row_slots]

    @property
    def slab(self) -> Array:
        """Rows and slots side by side, [rows, sum of ``column_widths``]; not a copy."""
        return self._slab

    def check_ids(self, ids: NDArray[np.int64]) -> None:
        """Raises InvalidArgumentError naming the first id that is not a row of this shard."""
        bad = updates.first_outside(ids, self.row_start, self.row_stop)
        if bad >= 0:
            raise InvalidArgumentError(
                f"id {ids[bad]} is outside rows [{self.row_start}, {self.row_stop}) of shard "
                f"{self.index} of variable {self.spec.name!r}"
            )

    def gather(self, ids: NDArray[np.int64], out: Array) -> None:
        """Copies rows ``ids`` into ``out`` [n, width]."""
        self.check_ids(ids)
        if self._slab.dtype == np.float32:
            updates.gather_rows(self._slab, self.width, self.row_start, ids, out)
        else:
            np.take(self._slab, ids - self.row_start, axis=0, out=out, mode="clip")

    def read(self, start: int, stop: int, out: Array) -> None:
        """Copies rows ``[start, stop)`` into ``out`` [stop - start, width]."""
        self._check_range(start, stop)
        out[...] = self._rows(start, stop)[:, : self.width]

    def check_rule(self, optimizer: OptimizerSpec) -> None:
        """Raises InvalidArgumentError if the rule cannot be used on this variable."""
        find_rule(optimizer)
        if self._slab.dtype != np.float32:
            raise InvalidArgumentError(
                f"variable {self.spec.name!r} has dtype {self.spec.dtype}; only float32 variables "
                f"can be trained"
            )

    def check_gradient(self, ids: NDArray[np.int64] | None, gradient: Array) -> None:
        """Raises InvalidArgumentError unless ids and gradient fit this shard."""
        rows = self.row_stop - self.row_start if ids is None else len(ids)
        if gradient.shape != (rows, self.width) or gradient.dtype != np.float32:
            raise InvalidArgumentError(
                f"gradient of variable {self.spec.name!r} is {gradient.dtype} "
                f"{gradient.shape}, expected float32 {(rows, self.width)}"
            )
        if ids is not None:
            self.check_ids(ids)

    def update(
        self, optimizer: OptimizerSpec, ids: NDArray[np.int64] | None, gradient: Array
    ) -> None:
        """One optimizer step of rows ``ids`` (distinct), or of all. Arguments must be checked."""
        with self._lock:
            self._own_slots(optimizer)
            self._keep(ids)
            apply_rule(optimizer, self._slab, self.width, self.row_start, ids, gradient)
            self.version += 1

    def check_assign(self, op: str, start: int, rows: int) -> None:
        """Raises InvalidArgumentError unless :meth:`assign` can be done."""
        if op not in _WHOLE:
            raise InvalidArgumentError(f"assign op must be one of {sorted(_WHOLE)}, got {op!r}")
        self._check_range(start, start + rows)

    def assign(self, op: str, start: int, value: Array) -> None:
        """``set``, ``add`` or ``sub`` of ``value`` [k, width] to rows from ``start`` on."""
        self.check_assign(op, start, len(value))
        with self._lock:
            self._keep_range(start, start + len(value))
            _WHOLE[op](self._rows(start, start + len(value))[:, : self.width], value)
            self.version += 1

    def check_scatter(self, op: str, ids: NDArray[np.int64]) -> None:
        """Raises InvalidArgumentError unless :meth:`scatter` can be done."""
        if op != "set" and op not in _SCATTER:
            raise InvalidArgumentError(
                f"scatter op must be one of {['set', *sorted(_SCATTER)]}, got {op!r}"
            )
        self.check_ids(ids)

    def scatter(self, op: str, ids: NDArray[np.int64], rows: Array) -> None:
        """``op`` of ``rows`` [n, width] to rows ``ids``; repeated ids act in turn."""
        self.check_scatter(op, ids)
        with self._lock:
            self._keep(ids)
            values = self._slab[:, : self.width]
            if op == "set":
                values[ids - self.row_start] = rows
            else:
                _SCATTER[op].at(values, ids - self.row_start, rows)
            self.version += 1

    def restore(
        self, start: int, columns: list[Array], optimizer: str | None, *, row_slots: int = 0
    ) -> None:
        """Overwrites rows from ``start`` on: values, then each slot, then each row slot."""
        stop = start + len(columns[0])
        self._check_range(start, stop)
        with self._lock:
            self._resize_slots(len(columns) - 1 - row_slots, row_slots)
            self._keep_range(start, stop)
            self.optimizer = optimizer
            rows, at = self._rows(start, stop), 0
            for column in columns:
                rows[:, at : at + column.shape[1]] = column
                at += column.shape[1]
            self.version += 1

    def snapshot(self) -> Snapshot:
        """The rows and slots as they are now, to be read while they change; to be closed."""
        with self._lock:
            snapshot = Snapshot(
                self.spec,
                self.row_start,
                self._slab,
                self.column_widths,
                self.row_slots,
                self.optimizer,
            )
            self._snapshots.append(snapshot)
        return snapshot

    def _keep(self, ids: NDArray[np.int64] | None) -> None:
        """What is about to change stays in the snapshots; ``ids`` None: all rows."""
        if ids is None:
            self._keep_range(self.row_start, self.row_stop)
        elif self._snapshots:
            for snapshot in self._needing():
                snapshot.keep_rows(ids)

    def _keep_range(self, start: int, stop: int) -> None:
        if self._snapshots:
            for snapshot in self._needing():
                snapshot.keep_range(start, stop)

    def _needing(self) -> list[Snapshot]:
        self._snapshots = [each for each in self._snapshots if each.needs(self._slab)]
        return self._snapshots

    def _rows(self, start: int, stop: int) -> Array:
        return self._slab[start - self.row_start : stop - self.row_start]

    def _check_range(self, start: int, stop: int) -> None:
        if not self.row_start <= start <= stop <= self.row_stop:
            raise InvalidArgumentError(
                f"rows [{start}, {stop}) are outside rows [{self.row_start}, {self.row_stop}) of "
                f"shard {self.index} of variable {self.spec.name!r}"
            )

    def _own_slots(self, optimizer: OptimizerSpec) -> None:
        if self.optimizer == optimizer.name or not (optimizer.slots or optimizer.row_slots):
            return
        slots, row_slots = len(optimizer.slots), len(optimizer.row_slots)
        firsts = np.repeat(np.array(optimizer.slots, np.float32), self.width)
        firsts = np.append(firsts, np.array(optimizer.row_slots, np.float32))
        slab = aligned_empty((len(self._slab), self.width + len(firsts)), self.spec.dtype)
        updates.move_rows(self._slab, self.width, firsts, slab)
        self.slots, self.row_slots, self._slab = slots, row_slots, slab
        self.optimizer = optimizer.name

    def _resize_slots(self, slots: int, row_slots: int) -> None:
        if (self.slots, self.row_slots) == (slots, row_slots):
            return
        columns = self.width * (1 + slots) + row_slots
        slab = aligned_empty((self._slab.shape[0], columns), self.spec.dtype)
        slab[:, : self.width] = self._slab[:, : self.width]
        self.slots, self.row_slots, self._slab = slots, row_slots, slab
