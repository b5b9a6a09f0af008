"""One shard of one variable: its rows, their optimizer slots, and every change to them.

Knows no network, no ledger and no other shard. Invariant: every write holds the shard's lock, so no
update is lost; reads take no lock and may see a row in the middle of a change.
"""

from __future__ import annotations

import threading
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pstrain.buffers import read_only
from pstrain.errors import FailedPreconditionError
from pstrain.kernels import scatter
from pstrain.paramserver.initial import fill
from pstrain.paramserver.row_watchers import RowWatchers
from pstrain.paramserver.rules import BoundRule, apply_rule
from pstrain.paramserver.shard_keys import ShardKeys
from pstrain.paramserver.shard_rows import SCATTER, WHOLE, Array
from pstrain.paramserver.sharing import in_parts
from pstrain.paramserver.slab import Slab
from pstrain.paramserver.snapshot import Snapshot
from pstrain.vocabulary import OptimizerSpec, VariableSpec

_ROWS_AT_ONCE: Final = 1 << 16


class Shard(ShardKeys):
    """The values and optimizer slots of the rows of one shard.

    ``slots`` and ``row_slots`` count the optimizer's slots per value and per row; ``firsts`` are
    the initial values of these slots. ``version`` grows with every change. Values are [rows, width]
    of the variable's dtype; only float32 variables can be trained and have slots. With
    ``is_filled`` False the shard may be used only after :meth:`fill` has returned 0.
    """

    def __init__(
        self,
        spec: VariableSpec,
        index: int,
        value: Array | None = None,
        *,
        version: int = 0,
        is_filled: bool = True,
    ) -> None:
        super().__init__(spec, index)
        self.version = version
        self.optimizer: str | None = None
        self.slots = 0
        self.row_slots = 0
        self.firsts: tuple[float, ...] = ()
        self._last_reset = -1
        self._lock = threading.Lock()
        self._unfilled = self.row_start
        self._initial_version = version if value is None else None
        self._rows = Slab((self.row_stop - self.row_start, self.width), spec.dtype)
        self._watchers = RowWatchers(self._rows, self.row_start, self.row_stop)
        if value is not None:
            self.slab[...] = np.asarray(value).reshape(self.slab.shape)
            self._unfilled = self.row_stop
        elif is_filled:
            self.fill()

    @property
    def column_widths(self) -> list[int]:
        """The widths of the slab's columns: of the value, of each slot, and 1 for each row slot."""
        return [*[self.width] * (1 + self.slots), *[1] * self.row_slots]

    @property
    def slab(self) -> Array:
        """The rows with their slots side by side, [rows, sum of ``column_widths``]; not a copy."""
        return self._rows.array

    def fill(self, most_bytes: int | None = None) -> int:
        """Initializes at most ``most_bytes`` of rows, or all; returns how many rows are left."""
        with self._lock:
            stop = self.row_stop
            if most_bytes is not None:
                row_bytes = max(1, self.slab[:1].nbytes)
                stop = min(stop, self._unfilled + max(1, most_bytes // row_bytes))
            if self._unfilled < stop:
                fill(self.spec.initializer, self._view(self._unfilled, stop), self._unfilled)
                self._unfilled = stop
        return self.row_stop - stop

    @property
    def is_initial(self) -> bool:
        """Whether no row has changed since the initializer filled it, and none has slots."""
        return self.version == self._initial_version and len(self.column_widths) == 1

    def reset(self) -> None:
        """Gives all rows their initial values again, and removes their slots."""
        with self._lock:
            self._watchers.announce_range(self.row_start, self.row_stop)
            self._resize_slots(0, 0)
            self.optimizer, self.firsts = None, ()
            self.uses.forget()
            fill(self.spec.initializer, self.slab, self.row_start)
            self.version += 1

    def check_reset(self, ids: NDArray[np.int64]) -> None:
        """Raises InvalidArgumentError or FailedPreconditionError unless rows can be reset."""
        self.check_ids(ids)
        self._first_slots()

    def reset_rows(self, ids: NDArray[np.int64], number: int | None = None) -> None:
        """Gives rows ``ids`` their initial values, and their slots the initial values of slots.

        ``number``: rises from call to call. A call with a number that is not above the last one is
        a repetition and does nothing, as the rows may have been trained on since. Arguments must be
        checked.
        """
        with self._lock:
            if number is not None and number <= self._last_reset:
                return
            self._rows.move()
            slots = self._first_slots()
            self._watchers.announce(ids)
            for start in range(0, len(ids), _ROWS_AT_ONCE):
                part = ids[start : start + _ROWS_AT_ONCE]
                rows = np.empty((len(part), self.width), self.slab.dtype)
                fill(self.spec.initializer, rows, 0, part)
                self.slab[part - self.row_start, : self.width] = rows
                self.slab[part - self.row_start, self.width :] = slots
            self.version += 1
            self._last_reset = self._last_reset if number is None else number

    def _first_slots(self) -> Array:
        """Returns the initial values of a row's slots, as they follow its values in the slab."""
        if len(self.firsts) != self.slots + self.row_slots:
            raise FailedPreconditionError(
                f"the optimizer slots of variable {self.spec.name!r} come from a checkpoint that "
                "does not have their initial values: train for a step first"
            )
        widths = [self.width] * self.slots + [1] * self.row_slots
        return np.repeat(np.array(self.firsts, self.slab.dtype), widths)

    def gather(self, ids: NDArray[np.int64], out: Array) -> None:
        """Copies rows ``ids`` into ``out`` [n, width]; rounds to bfloat16 if ``out`` is uint16."""
        self.check_ids(ids)
        self.gather_checked(ids, out)

    def gather_checked(self, ids: NDArray[np.int64], out: Array) -> None:
        """Does the same for ids that were checked by :meth:`check_ids` and that nobody changes."""

        def gather(start: int, stop: int) -> None:
            self._rows.gather(self.width, ids[start:stop], self.row_start, out[start:stop])

        in_parts(len(ids), gather)

    def read(self, start: int, stop: int, out: Array) -> None:
        """Copies rows ``[start, stop)`` to ``out`` [stop - start, width] as :meth:`gather` does.

        They must be rows of this shard.
        """
        self._rows.read(start - self.row_start, stop - self.row_start, out)

    def update(
        self,
        optimizer: OptimizerSpec,
        ids: NDArray[np.int64] | None,
        gradient: Array,
        rule: BoundRule | None = None,
    ) -> None:
        """Makes one optimizer step on rows ``ids`` (distinct) or on all; arguments must be checked.

        ``rule`` is the rule of ``optimizer``, if the caller has it at hand.
        """
        rule = rule or BoundRule.of(optimizer)
        with self._lock:
            if self.optimizer != optimizer.name or self._rows.widening or not self.firsts:
                self._own_slots(optimizer)
            self._watchers.announce(ids)
            apply_rule(rule, self._rows.array, self.width, self.row_start, ids, gradient)
            self.version += 1

    def assign(self, op: str, start: int, value: Array) -> None:
        """Applies "set", "add" or "sub" with ``value`` [k, width] to rows from ``start`` on."""
        self.check_assign(op, start, len(value))
        with self._lock:
            self._rows.move()
            self._watchers.announce_range(start, start + len(value))
            self.uses.forget()
            WHOLE[op](self._view(start, start + len(value))[:, : self.width], value)
            self.version += 1

    def scatter(self, op: str, ids: NDArray[np.int64], rows: Array) -> None:
        """Applies ``op`` with ``rows`` [n, width] to rows ``ids``; repeated ids act in order."""
        self.check_scatter(op, ids)
        with self._lock:
            self._rows.move()
            self._watchers.announce(ids)
            self.uses.forget()
            self._scatter(op, ids, rows)
            self.version += 1

    def _scatter(self, op: str, ids: NDArray[np.int64], rows: Array) -> None:
        number, ufunc = SCATTER.get(op, (scatter.SET, None))
        if self.spec.dtype == "float32":
            given = read_only(ids), read_only(rows)
            scatter.scatter_rows(self.slab, self.width, self.row_start, *given, number)
        elif ufunc is None:
            self.slab[ids - self.row_start, : self.width] = rows
        else:
            ufunc.at(self.slab[:, : self.width], ids - self.row_start, rows)

    def restore(
        self,
        start: int,
        columns: list[Array],
        optimizer: str | None,
        *,
        row_slots: int = 0,
        firsts: tuple[float, ...] = (),
    ) -> None:
        """Overwrites rows from ``start`` on with values, then each slot, then each row slot.

        All rows of the shard then have as many slots as these; any further slots are lost.
        """
        stop = start + len(columns[0])
        self.check_range(start, stop)
        with self._lock:
            self._resize_slots(len(columns) - 1 - row_slots, row_slots)
            self._watchers.announce_range(start, stop)
            self.optimizer, self.firsts = optimizer, firsts
            self.uses.forget()
            rows, at = self._view(start, stop), 0
            for column in columns:
                rows[:, at : at + column.shape[1]] = column
                at += column.shape[1]
            self.version += 1

    def restore_rows(
        self,
        ids: NDArray[np.int64],
        columns: list[Array],
        optimizer: str | None,
        *,
        row_slots: int,
        firsts: tuple[float, ...],
    ) -> None:
        """Overwrites rows ``ids`` as :meth:`restore` overwrites a range."""
        self.check_ids(ids)
        with self._lock:
            self._resize_slots(len(columns) - 1 - row_slots, row_slots)
            self._watchers.announce(ids)
            self.optimizer, self.firsts = optimizer, firsts
            self.uses.forget()
            self.slab[ids - self.row_start] = np.concatenate(columns, axis=1)
            self.version += 1

    def snapshot(self, moment: str | None = None, since: str | None = None) -> Snapshot:
        """Takes a snapshot of rows and slots, to read while they change; the caller must close it.

        ``moment`` names the present moment, for a later snapshot to give as ``since``. The snapshot
        then knows which rows changed after the moment ``since``.
        """
        with self._lock:
            self._rows.move()
            changed = None if moment is None else self._watchers.next_moment(moment, since)
            snapshot = Snapshot(
                self.spec,
                self.row_start,
                self.slab,
                self.column_widths,
                self.row_slots,
                self.optimizer,
                self.firsts,
                changed,
            )
            self._watchers.add(snapshot)
        return snapshot

    def _view(self, start: int, stop: int) -> Array:
        return self.slab[start - self.row_start : stop - self.row_start]

    def make_slots(self, optimizer: OptimizerSpec, most_bytes: int | None = None) -> int:
        """Adds slots to at most ``most_bytes`` of rows, or to all; returns how many rows are left.

        An update does the rest of this work. Reads go on meanwhile. The rule must be checked.
        """
        with self._lock:
            return self._own_slots(optimizer, most_bytes)

    def make_ready(self) -> None:
        """Finishes what :meth:`make_slots` has begun, so that no later caller waits for it."""
        with self._lock:
            self._rows.move()

    def _own_slots(self, optimizer: OptimizerSpec, most_bytes: int | None = None) -> int:
        left = self._rows.move(most_bytes)
        if self.optimizer == optimizer.name and not self.firsts:
            # The slots come from an older checkpoint, which does not store their initial values.
            self.firsts = (*optimizer.slots, *optimizer.row_slots)
        if left or self.optimizer == optimizer.name:
            return left
        if not (optimizer.slots or optimizer.row_slots):
            return 0
        firsts = np.repeat(np.array(optimizer.slots, np.float32), self.width)
        firsts = np.append(firsts, np.array(optimizer.row_slots, np.float32))
        self._widen(len(optimizer.slots), len(optimizer.row_slots), firsts)
        self.optimizer, self.firsts = optimizer.name, (*optimizer.slots, *optimizer.row_slots)
        return self._rows.move(most_bytes)

    def _resize_slots(self, slots: int, row_slots: int) -> None:
        self._rows.move()
        if (self.slots, self.row_slots) != (slots, row_slots):
            columns = self.width * slots + row_slots
            self._widen(slots, row_slots, np.zeros(columns, self.spec.dtype))
            self._rows.move()

    def _widen(self, slots: int, row_slots: int, firsts: Array) -> None:
        self._rows.widen(self.width, firsts, is_kept=self._watchers.are_reading())
        self._watchers.forget_moments()
        self.slots, self.row_slots = slots, row_slots
