"""The shards of one parameter server, and the parts of closures that change them.

Knows no network: the server and ``LocalParameters`` both use it. Thread-safe. Invariant: a part is
applied to all of its shards or to none, because everything is checked before the part is held or
decided; a checkpoint contains only whole parts.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from numpy.typing import NDArray

from pstrain.errors import AlreadyExistsError, NotFoundError
from pstrain.paramserver.commits import Commits, Entry, FenceReport, PartKey
from pstrain.paramserver.gate import Gate
from pstrain.paramserver.held_snapshots import HeldSnapshots, Named
from pstrain.paramserver.loading import NOTHING, ReadAhead
from pstrain.paramserver.rules import BoundRule
from pstrain.paramserver.saved import Tracking
from pstrain.paramserver.shard import Shard
from pstrain.paramserver.steps import (
    Change,
    GradientStep,
    ShardUpdate,
    changes_of_round,
    check_round,
)
from pstrain.vocabulary import OptimizerSpec, VariableSpec

Array = NDArray[Any]
ShardKey = tuple[int, int]

# How long a request works on a long task, and how much it does between two looks at the clock.
_WORK_S = 1.0
_WORK_BYTES = 16 << 20


class Store:
    """The shards by (variable id, shard index), and the commits of closures.

    ``first_version`` is the initial version of every shard; servers draw it at random so that a
    version that a client remembers from before a restart never matches.
    """

    def __init__(self, *, first_version: int = 0) -> None:
        self._first_version = first_version
        self._shards: dict[ShardKey, Shard] = {}
        self._unfilled: dict[ShardKey, Shard] = {}
        self._commits: Commits[list[Change]] = Commits()
        self._low_water = 0
        self._lock = threading.Lock()
        self._changes = Gate()
        self._snapshots = HeldSnapshots()
        self.read_ahead: tuple[str, ReadAhead] = ("", NOTHING)
        """The id of a load, and the tables that were read ahead for it."""

    def create(self, spec: VariableSpec, index: int, value: NDArray[Any] | None = None) -> Shard:
        """Adds shard ``index`` of ``spec``, filled with ``value`` or by its initializer.

        Raises AlreadyExistsError if the id is taken by a variable with another spec. A shard that
        exists already is left as it is, so that a repeated request is harmless.
        """
        if value is not None and (spec.id, index) not in self._shards:
            with self._lock:
                shard = Shard(spec, index, value, version=self._first_version)
                self._shards.setdefault((spec.id, index), shard)
        while self.make(spec, index):
            pass
        return self._shards[spec.id, index]

    def make(self, spec: VariableSpec, index: int) -> int:
        """Works on :meth:`create` for about a second, and returns how many rows are left.

        The shard can be used only once no row is left.
        """
        key = (spec.id, index)
        with self._lock:
            shard = self._shards.get(key) or self._unfilled.get(key)
            if shard is None:
                shard = Shard(spec, index, version=self._first_version, is_filled=False)
                self._unfilled[key] = shard
        if shard.spec != spec:
            raise AlreadyExistsError(
                f"variable id {spec.id} belongs to {shard.spec.name!r} {shard.spec.shape}; "
                f"it cannot also be {spec.name!r} {spec.shape}"
            )
        try:
            left = _work(shard.fill)
        except BaseException:
            # Otherwise a shard that cannot be made would keep its id taken.
            with self._lock:
                self._unfilled.pop(key, None)
            raise
        if not left:
            with self._lock:
                # It is not there if it was deleted meanwhile, or was complete before.
                if self._unfilled.pop(key, None) is shard:
                    self._shards[key] = shard
        return left

    def make_slots(self, shards: Sequence[Shard], optimizer: OptimizerSpec) -> int:
        """Works on the slots of ``shards`` for about a second, and returns how many rows are left.

        Updates make missing slots too; this is for tables so large that an update would take too
        long.
        """
        for shard in shards:
            shard.check_rule(optimizer)
        for shard in shards:
            left = _work(functools.partial(shard.make_slots, optimizer))
            if left:
                return left
        return 0

    def delete(self, variables: Iterable[int]) -> None:
        """Removes all shards of these variables, which no later request names. Idempotent.

        Snapshots and parts of closures that have some of them keep those until they end.
        """
        deleted = set(variables)
        if not deleted:
            return
        # Kept until the lock is free again: to free the memory of a large table takes a while.
        removed: list[Shard] = []
        with self._lock:
            for shards in (self._shards, self._unfilled):
                removed += [shards.pop(key) for key in list(shards) if key[0] in deleted]

    def shard(self, variable: int, index: int) -> Shard:
        """Returns the shard; raises NotFoundError, with the usual reason, if it is not here."""
        try:
            return self._shards[variable, index]
        except KeyError:
            raise _not_here(variable, index) from None

    def shards_of(self, items: Sequence[Sequence[int]]) -> list[Shard]:
        """Returns :meth:`shard` of each item, which begins with variable and index."""
        try:
            return [self._shards[item[0], item[1]] for item in items]
        except KeyError as missing:
            raise _not_here(*missing.args[0]) from None

    def shards(self) -> list[Shard]:
        """Returns all shards in the order of (variable id, shard index)."""
        with self._lock:
            return [self._shards[key] for key in sorted(self._shards)]

    def checked_update(
        self,
        updates: Sequence[ShardUpdate],
        optimizer: OptimizerSpec,
        iterations: Shard | None,
        owner: int | None = None,
    ) -> GradientStep:
        """Checks an optimizer step and returns it; the caller makes the step by calling it."""
        BoundRule.of(optimizer)
        if iterations is not None:
            iterations.check_counter()
        for shard, ids, gradient in updates:
            shard.check_gradient(ids, gradient)
        return GradientStep(list(updates), optimizer, iterations, owner)

    def apply(self, changes: Iterable[Change]) -> None:
        """Makes checked changes that belong to no closure. A checkpoint waits for all of them."""
        with self._changes:
            for change in changes:
                change()

    def claim(
        self,
        shard: Shard,
        keys: Array,
        starts: Array,
        stops: Array,
        may_claim: Array,
        *,
        is_training: bool,
    ) -> Array:
        """Claims rows outside closures, see :meth:`Shard.claim`; a checkpoint sees all or none.

        ``is_training``: notes that the keys are trained on.
        """
        shard.check_claim(keys, starts, stops)
        with self._changes:
            rows = shard.claim(keys, starts, stops, may_claim)
        if is_training:
            shard.note_trained(rows)
        return rows

    def prepare(self, trainer: str, key: PartKey, changes: list[Change], tries: int = 0) -> None:
        """Holds a part of a closure until :meth:`commit` or :meth:`complete`."""
        with self._lock:
            self._commits.prepare(trainer, key, changes, tries)

    def decide(
        self,
        trainer: str,
        key: PartKey,
        changes: list[Change],
        entries: Sequence[Entry],
        rows: Sequence[dict[str, Any]],
    ) -> bool:
        """Decides and applies a part; False, without any change, if it was decided before."""
        with self._changes:
            with self._lock:
                new = self._commits.decide(trainer, key, entries, rows)
            for change in changes if new else ():
                change()
        return new

    def commit(self, trainer: str, key: PartKey) -> None:
        """Applies the changes held for a part, unless they have been applied."""
        with self._changes:
            with self._lock:
                changes = self._commits.commit(trainer, key)
            for change in changes or ():
                change()

    def apply_round(self, parts: Sequence[tuple[str, PartKey]], gradients: int) -> None:
        """Applies the held parts of a round as one step with the mean of so many ``gradients``."""
        with self._changes:
            with self._lock:
                check = functools.partial(check_round, gradients=gradients)
                held = self._commits.take_round(parts, check)
            for change in changes_of_round(held, gradients):
                change()

    def abort(self, trainer: str, key: PartKey, tries: int = 0) -> None:
        """Drops the changes held for a part from this try, or from an earlier one."""
        with self._lock:
            self._commits.abort(trainer, key, tries)

    def fence(self, trainer: str) -> FenceReport:
        """Refuses all further requests of ``trainer``; returns what it left behind here."""
        with self._lock:
            return self._commits.fence(trainer)

    def complete(self, trainer: str, decided: Iterable[PartKey]) -> None:
        """Applies the decided parts of a fenced trainer, and drops its other parts."""
        with self._changes:
            with self._lock:
                parts = self._commits.complete(trainer, decided)
            for change in (change for part in parts for change in part):
                change()

    def take_snapshot(
        self, snapshot: str, names: Mapping[int, str], tracking: Tracking | None
    ) -> tuple[Named, dict[str, Any]]:
        """Takes a snapshot of all shards of the variables in ``names`` (by id), with the ledger.

        Rows that change are kept until :meth:`drop_snapshot`. A repeated request returns the same
        snapshot, with any further variables added. Raises NotFoundError for a snapshot that was
        dropped, as can happen if the request was delayed.
        """
        moment, since = (None, None) if tracking is None else (snapshot, tracking.since)
        for shard in self.shards():
            shard.make_ready()
        with self.quiet():
            held = self._snapshots.find(snapshot) or []
            there = {each.spec.id for _, each in held}
            shards = [s for s in self.shards() if s.spec.id in names and s.spec.id not in there]
            new: Named = []
            try:
                for shard in shards:
                    new.append((names[shard.spec.id], shard.snapshot(moment, since)))
            except BaseException:
                # Otherwise rows would be kept for a snapshot that nobody can drop.
                for _, taken in new:
                    taken.close()
                raise
            return self._snapshots.hold(snapshot, [*held, *new]), self.ledger_state()

    def snapshot(self, snapshot: str) -> Named:
        """Returns a held snapshot; raises NotFoundError if it is not here or was dropped."""
        taken = self._snapshots.find(snapshot)
        if taken is None:
            raise NotFoundError(
                f"no snapshot {snapshot} on this parameter server: it was restarted, or the "
                "checkpoint was given up; save again"
            )
        return taken

    def drop_snapshot(self, snapshot: str) -> None:
        """Releases everything that is kept for the snapshot. Idempotent."""
        self._snapshots.drop(snapshot)

    @property
    def snapshots(self) -> int:
        """The number of snapshots that are held."""
        return len(self._snapshots)

    def quiet(self) -> AbstractContextManager[None]:
        """Returns a scope in which no change is in progress and none begins; reads go on."""
        return self._changes.exclusive()

    def take_read_ahead(self, load: str) -> ReadAhead:
        """Returns, once, what was read ahead for ``load``. Must be called inside :meth:`quiet`."""
        name, ahead = self.read_ahead
        if name != load:
            return NOTHING
        self.read_ahead = ("", NOTHING)
        return ahead

    def advance(self, low_water: int) -> None:
        """Forgets the closures below ``low_water``, which have all ended."""
        if low_water > self._low_water:
            with self._lock:
                self._low_water = low_water
                self._commits.advance(low_water)

    def ledger_state(self) -> dict[str, Any]:
        """Returns the ledger in JSON form, for checkpoints."""
        with self._lock:
            return self._commits.state()

    def restore_ledger(self, state: dict[str, Any]) -> None:
        """Adds the changes that a checkpoint's ledger lists as applied."""
        with self._lock:
            self._commits.restore(state)

    def commit_counts(self) -> dict[str, int]:
        """Returns how many parts are held, aborted and decided, and the size of the ledger."""
        with self._lock:
            return self._commits.counts()

    def size_bytes(self) -> int:
        """Returns the bytes of all slabs."""
        return sum(shard.slab.nbytes for shard in self.shards())


def _not_here(variable: int, index: int) -> NotFoundError:
    return NotFoundError(
        f"no shard {index} of variable {variable} here; the variables of a restarted "
        f"parameter server must be created or restored first"
    )


def _work(some: Callable[[int], int]) -> int:
    """Calls ``some(bytes to handle)`` until it has nothing left to do or the time is up."""
    end_s = time.monotonic() + _WORK_S
    left = some(_WORK_BYTES)
    while left and time.monotonic() < end_s:
        left = some(_WORK_BYTES)
    return left
