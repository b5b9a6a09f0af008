"""The shards of one parameter server, and the parts of closures that change them.

No network: the server and ``LocalParameters`` both stand on it. Thread-safe. Invariant: a part is
applied to all of its shards or to none, because everything is checked before it is held or
decided; a checkpoint sees whole parts only.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from numpy.typing import NDArray

from pstrain.errors import AlreadyExistsError, NotFoundError
from pstrain.paramserver.commits import Commits, Entry, PartKey, Report
from pstrain.paramserver.gate import Gate
from pstrain.paramserver.held_snapshots import HeldSnapshots, Named
from pstrain.paramserver.loading import NOTHING, Staged
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

# What a request does of work that takes long, and what is done between two looks at the clock.
_WORK_S = 1.0
_WORK_BYTES = 16 << 20


class Store:
    """Shards by (variable id, shard index), and what is known of closures.

    ``first_version`` starts every shard's version; servers draw it at random so that a version
    a client remembers from before a restart never matches.
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
        self.staged: tuple[str, Staged] = ("", NOTHING)
        """What was read ahead for a load, which is named by an id."""

    def create(self, spec: VariableSpec, index: int, value: NDArray[Any] | None = None) -> Shard:
        """Adds shard ``index`` of ``spec``, filled with ``value`` or by its initializer.

        Raises AlreadyExistsError if the id is taken by a variable of another name or shape; the
        same variable again is left as it is, so that a repeated request is harmless.
        """
        if value is not None and (spec.id, index) not in self._shards:
            with self._lock:
                shard = Shard(spec, index, value, version=self._first_version)
                self._shards.setdefault((spec.id, index), shard)
        while self.make(spec, index):
            pass
        return self._shards[spec.id, index]

    def make(self, spec: VariableSpec, index: int) -> int:
        """Works on :meth:`create` for a second or so; how many rows are left.

        The shard is not here before none is.
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
            # Else its id were taken, by what can never be made.
            with self._lock:
                self._unfilled.pop(key, None)
            raise
        if not left:
            with self._lock:
                self._unfilled.pop(key, None)
                self._shards.setdefault(key, shard)
        return left

    def make_slots(self, shards: Sequence[Shard], optimizer: OptimizerSpec) -> int:
        """Works on the slots of shards for a second or so; how many rows are left.

        Updates make them too: this is for tables for which that would take them too long.
        """
        for shard in shards:
            shard.check_rule(optimizer)
        for shard in shards:
            left = _work(functools.partial(shard.make_slots, optimizer))
            if left:
                return left
        return 0

    def shard(self, variable: int, index: int) -> Shard:
        """The shard, or NotFoundError saying what usually explains its absence."""
        try:
            return self._shards[variable, index]
        except KeyError:
            raise NotFoundError(
                f"no shard {index} of variable {variable} here; the variables of a restarted "
                f"parameter server must be created or restored first"
            ) from None

    def shards(self) -> list[Shard]:
        """All shards, in order of (variable id, shard index)."""
        with self._lock:
            return [self._shards[key] for key in sorted(self._shards)]

    def checked_update(
        self,
        updates: Sequence[ShardUpdate],
        optimizer: OptimizerSpec,
        iterations: Shard | None,
        owner: int | None = None,
    ) -> GradientStep:
        """One optimizer step, to be done by calling it; raises where that cannot be done."""
        BoundRule.of(optimizer)
        if iterations is not None:
            iterations.check_counter()
        for shard, ids, gradient in updates:
            shard.check_trainable()
            shard.check_gradient(ids, gradient)
        return GradientStep(list(updates), optimizer, iterations, owner)

    def apply(self, changes: Iterable[Change]) -> None:
        """Makes changes that were checked, of no closure. Checkpoints wait for all of them."""
        with self._changes:
            for change in changes:
                change()

    def claim(
        self, shard: Shard, keys: Array, starts: Array, stops: Array, may_claim: Array
    ) -> Array:
        """See :meth:`Shard.claim`. Of no closure, and a checkpoint sees it whole."""
        shard.check_claim(keys, starts, stops)
        with self._changes:
            return shard.claim(keys, starts, stops, may_claim)

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
        """Decides and applies a part; False if it was decided before (nothing changes then)."""
        with self._changes:
            with self._lock:
                new = self._commits.decide(trainer, key, entries, rows)
            for change in changes if new else ():
                change()
        return new

    def commit(self, trainer: str, key: PartKey) -> None:
        """Applies what is held of a part, unless it was applied."""
        with self._changes:
            with self._lock:
                changes = self._commits.commit(trainer, key)
            for change in changes or ():
                change()

    def apply_round(self, parts: Sequence[tuple[str, PartKey]], gradients: int) -> None:
        """Applies what is held of a round: one step with the mean of so many gradients."""
        with self._changes:
            with self._lock:
                check = functools.partial(check_round, gradients=gradients)
                held = self._commits.take_round(parts, check)
            for change in changes_of_round(held, gradients):
                change()

    def abort(self, trainer: str, key: PartKey, tries: int = 0) -> None:
        """Drops what is held of a part since this try, or before."""
        with self._lock:
            self._commits.abort(trainer, key, tries)

    def fence(self, trainer: str) -> Report:
        """Accepts nothing more of a trainer, and says what it left."""
        with self._lock:
            return self._commits.fence(trainer)

    def complete(self, trainer: str, decided: Iterable[PartKey]) -> None:
        """Applies what a fenced trainer's decided parts change here, and drops the others."""
        with self._changes:
            with self._lock:
                parts = self._commits.complete(trainer, decided)
            for change in (change for part in parts for change in part):
                change()

    def take_snapshot(
        self, snapshot: str, names: Mapping[int, str], tracking: Tracking | None
    ) -> tuple[Named, dict[str, Any]]:
        """All shards of the variables in ``names`` (by id), and the ledger, at one moment.

        They keep what changes until :meth:`drop_snapshot`. The same again gives the same, and other
        variables are added to those of before; NotFoundError for one that was dropped, as a request
        that was held up may be.
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
                # Else rows were kept for what nobody can drop.
                for _, taken in new:
                    taken.close()
                raise
            return self._snapshots.hold(snapshot, [*held, *new]), self.ledger_state()

    def snapshot(self, snapshot: str) -> Named:
        """One that was taken; NotFoundError where it was dropped."""
        taken = self._snapshots.find(snapshot)
        if taken is None:
            raise NotFoundError(
                f"no snapshot {snapshot} on this parameter server: it was restarted, or the "
                "checkpoint was given up; save again"
            )
        return taken

    def drop_snapshot(self, snapshot: str) -> None:
        """Nothing is kept for it any more. Idempotent."""
        self._snapshots.drop(snapshot)

    @property
    def snapshots(self) -> int:
        """How many are kept."""
        return len(self._snapshots)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Scope in which no change is half done and none begins; reads go on."""
        with self._changes.exclusive():
            yield

    def take_staged(self, load: str) -> Staged:
        """What was read ahead for ``load``, once. To be asked for while it is quiet."""
        name, staged = self.staged
        if name != load:
            return NOTHING
        self.staged = ("", NOTHING)
        return staged

    def advance(self, low_water: int) -> None:
        """All closures below ``low_water`` are finished: their changes need no memory."""
        if low_water > self._low_water:
            with self._lock:
                self._low_water = low_water
                self._commits.advance(low_water)

    def ledger_state(self) -> dict[str, Any]:
        """JSON form of the ledger, for checkpoints."""
        with self._lock:
            return self._commits.state()

    def restore_ledger(self, state: dict[str, Any]) -> None:
        """Takes over the applied changes of a checkpoint."""
        with self._lock:
            self._commits.restore(state)

    def commit_counts(self) -> dict[str, int]:
        """What is remembered of closures."""
        with self._lock:
            return self._commits.counts()

    def size_bytes(self) -> int:
        """Memory of all slabs."""
        return sum(shard.slab.nbytes for shard in self.shards())


def _work(some: Callable[[int], int]) -> int:
    """Calls ``some``, with as much as it should do, until it has left nothing or time is up."""
    end_s = time.monotonic() + _WORK_S
    left = some(_WORK_BYTES)
    while left and time.monotonic() < end_s:
        left = some(_WORK_BYTES)
    return left
