"""The parts of closures that this server holds (prepared), has decided and has applied.

Pure: no lock, no clock, no network; the changes of a part are opaque here. A part that changes one
server is *decided* there. A part that changes several servers is *prepared* on all but one, decided
on that one, its home, and then *committed* on the others, so either all of them apply it or none
does. A trainer that is taken for lost is *fenced*: its further requests are refused, the
coordinator *completes* the parts that were decided, and parts that were only prepared are dropped.
Invariants: a part is applied at most once, whatever is repeated or late; a held part is undecided
here.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, TypeVar

from pstrain.errors import AbortedError
from pstrain.paramserver.ledger import Ledger
from pstrain.reader_marks import Marks, note_marks

# More closures than a trainer runs at a time: the ends of older ones have reached the coordinator,
# as a trainer lets few others end while one is not reported.
ENDED_KEPT: Final = 256
NOTES_MAX_BYTES: Final = 32 << 20
"""Limit for one trainer: a multiple of what its running closures may note, half a header's size."""
_PARTS_MAX: Final = 1 << 20

Payload = TypeVar("Payload")


class PartKey(NamedTuple):
    """Names one part of one run of a closure."""

    closure: int
    attempt: int
    part: int


class Entry(NamedTuple):
    """What a decision says of one closure: its part, and its outcome, or None if it still runs.

    ``plain`` counts the parts without an element that the closure has finished by then. ``note`` is
    what the closure has noted about the part, in case its end is never reported.
    """

    closure: int
    attempt: int
    part: int
    outcome: dict[str, Any] | None
    plain: int = 0
    note: str | None = None

    @property
    def part_key(self) -> PartKey:
        return PartKey(self.closure, self.attempt, self.part)


class FenceReport(NamedTuple):
    """What a fenced trainer left behind. ``rows`` has the marks of its readers, by reader.

    For a closure that was still running, ``decided`` has the newest entry, after the earlier
    entries that have notes.
    """

    decided: list[Entry]
    held: list[PartKey]
    rows: Marks


class _Notes:
    """The entries with notes of closures that still run, as far as this server knows.

    The end of a closure may be decided on another server. So when the notes exceed the limit, those
    of the closures whose last note is oldest are dropped: these closures have ended.
    """

    def __init__(self) -> None:
        self._entries: OrderedDict[int, list[Entry]] = OrderedDict()
        self._bytes = 0

    def of(self, closure: int) -> list[Entry]:
        return self._entries.get(closure, [])

    def add(self, entry: Entry) -> None:
        if entry.note is None:
            return
        self._entries.setdefault(entry.closure, []).append(entry)
        self._entries.move_to_end(entry.closure)
        self._bytes += len(entry.note)
        while self._bytes > NOTES_MAX_BYTES and len(self._entries) > 1:
            self.drop(next(iter(self._entries)))

    def drop(self, closure: int) -> None:
        for entry in self._entries.pop(closure, ()):
            self._bytes -= len(entry.note or "")


@dataclass(slots=True)
class _Trainer(Generic[Payload]):
    held: dict[PartKey, tuple[int, Payload]] = field(default_factory=dict)
    aborted: dict[PartKey, int] = field(default_factory=dict)
    decided: OrderedDict[int, Entry] = field(default_factory=OrderedDict)
    notes: _Notes = field(default_factory=_Notes)
    rows: Marks = field(default_factory=dict)
    closures: set[int] = field(default_factory=set)  # those that may have an entry above

    def note(self, entry: Entry) -> None:
        """Records the newest entry of a closure; drops the notes of a closure that has ended."""
        if entry.outcome is None:
            self.notes.add(entry)
        else:
            self.notes.drop(entry.closure)
        self.decided[entry.closure] = entry._replace(note=None)
        self.decided.move_to_end(entry.closure)

    def forget(self, closure: int) -> None:
        self.decided.pop(closure, None)
        self.notes.drop(closure)

    def forget_all_of(self, closure: int) -> None:
        self.closures.discard(closure)
        self.forget(closure)
        for parts in (self.held, self.aborted):
            for key in [key for key in parts if key.closure == closure]:
                del parts[key]

    def report(self) -> FenceReport:
        decided = []
        for closure, newest in self.decided.items():
            noted = self.notes.of(closure)
            is_noted = bool(noted) and noted[-1].part_key == newest.part_key
            decided += noted if is_noted else [*noted, newest]
        return FenceReport(decided, list(self.held), dict(self.rows))


class Commits(Generic[Payload]):
    """The parts of all trainers of a session. Not thread-safe."""

    def __init__(self) -> None:
        self._ledger = Ledger()
        self._trainers: dict[str, _Trainer[Payload]] = {}
        self._fenced: dict[str, _Trainer[Payload]] = {}
        # Closures with their trainers, as a heap: most requests advance the low-water mark, and
        # must not look at every trainer for that.
        self._lowest: list[tuple[int, str]] = []

    def prepare(self, trainer: str, key: PartKey, payload: Payload, tries: int = 0) -> None:
        """Holds a part until it is decided elsewhere; raises AbortedError for a fenced trainer.

        ``tries`` grows each time that a part is prepared again with other changes. A message of an
        earlier try, or of a try that was aborted, is late and ignored.
        """
        known = self._live(trainer)
        newest = max(known.held.get(key, (0,))[0], known.aborted.get(key, -1) + 1)
        if tries >= newest and not self._is_applied(key):
            known.held[key] = tries, payload
            self._note_closure(trainer, known, key.closure)

    def decide(
        self,
        trainer: str,
        key: PartKey,
        entries: Iterable[Entry],
        rows: Sequence[dict[str, Any]] = (),
    ) -> bool:
        """Records a decision; True if the part must be applied now, False if it was or is late.

        ``rows`` has, for each reader, all marks that its dispatcher may not know of; they replace
        older marks of that reader.
        """
        known = self._live(trainer)
        if not self._mark_applied(key):
            return False
        for entry in entries:
            known.note(entry)
            self._note_closure(trainer, known, entry.closure)
        note_marks(known.rows, rows)
        self._forget_ended(known)
        return True

    def commit(self, trainer: str, key: PartKey) -> Payload | None:
        """Returns the held changes of a part that was decided elsewhere; None if it was applied."""
        return self._take(self._live(trainer), key)

    def take_round(
        self,
        parts: Sequence[tuple[str, PartKey]],
        check: Callable[[list[Payload]], None] = lambda _: None,
    ) -> list[Payload]:
        """Returns the held changes of a round's parts, in order, without those already applied.

        Takes nothing if it raises: AbortedError if a part is not held, or any error of ``check``,
        which is called with the changes.
        """
        fresh = [(trainer, key) for trainer, key in parts if not self._is_applied(key)]
        for trainer, key in fresh:
            if key not in self._live(trainer).held:
                raise AbortedError(
                    f"closure {key.closure} of {trainer} is in a round, but was not prepared here: "
                    "this parameter server was restored to an earlier state"
                )
        check([self._live(trainer).held[key][1] for trainer, key in fresh])
        taken = (self._take(self._live(trainer), key) for trainer, key in fresh)
        return [payload for payload in taken if payload is not None]

    def abort(self, trainer: str, key: PartKey, tries: int = 0) -> None:
        """Drops a part as it was prepared in this try or earlier: it will not be decided so."""
        known = self._live(trainer)
        known.aborted[key] = max(tries, known.aborted.get(key, 0))
        self._note_closure(trainer, known, key.closure)
        if key in known.held and known.held[key][0] <= tries:
            del known.held[key]

    def fence(self, trainer: str) -> FenceReport:
        """Refuses all further requests of ``trainer``, and returns what it left.

        A repeat returns the same until :meth:`complete` is called.
        """
        known = self._trainers.pop(trainer, None)
        left = self._fenced.setdefault(trainer, known or _Trainer())
        return left.report()

    def complete(self, trainer: str, decided: Iterable[PartKey]) -> list[Payload]:
        """Returns the held changes of a fenced trainer's decided parts, and drops its other parts.

        Raises AbortedError if ``trainer`` is not fenced.
        """
        left = self._fenced.get(trainer)
        if left is None:
            raise AbortedError(f"trainer {trainer} is not fenced")
        found = [self._take(left, key) for key in decided]
        self._fenced[trainer] = _Trainer()
        return [payload for payload in found if payload is not None]

    def advance(self, low_water: int) -> None:
        """Forgets the closures below ``low_water``, which have ended for good."""
        self._ledger.advance(low_water)
        while self._lowest and self._lowest[0][0] < low_water:
            closure, trainer = heapq.heappop(self._lowest)
            if trainer in self._trainers:
                self._trainers[trainer].forget_all_of(closure)

    def state(self) -> dict[str, Any]:
        """Returns the JSON form for checkpoints, which are taken while no closure runs."""
        return {**self._ledger.state(), "fenced": sorted(self._fenced)}

    def restore(self, state: dict[str, Any]) -> None:
        """Adds the applied parts and the fenced trainers of ``state``."""
        self._ledger.restore(state)
        for trainer in state.get("fenced", ()):
            self.fence(trainer)

    def counts(self) -> dict[str, int]:
        """Returns how many parts are held, aborted and decided, and the size of the ledger."""
        known = self._trainers.values()
        return {
            "held": sum(len(t.held) for t in known),
            "aborted": sum(len(t.aborted) for t in known),
            "decided": sum(len(t.decided) for t in known),
            "ledger_blocks": len(self._ledger),
        }

    def _live(self, trainer: str) -> _Trainer[Payload]:
        if trainer in self._fenced:
            raise AbortedError(
                f"trainer {trainer} was taken for lost, and its closures went to other trainers: "
                "its requests are refused"
            )
        known = self._trainers.get(trainer)
        if known is None:
            known = self._trainers[trainer] = _Trainer()
        return known

    def _note_closure(self, trainer: str, known: _Trainer[Payload], closure: int) -> None:
        if closure not in known.closures:
            known.closures.add(closure)
            heapq.heappush(self._lowest, (closure, trainer))

    def _take(self, known: _Trainer[Payload], key: PartKey) -> Payload | None:
        found = known.held.pop(key, None)
        return found[1] if found is not None and self._mark_applied(key) else None

    def _mark_applied(self, key: PartKey) -> bool:
        return self._ledger.add(key.closure, key.attempt * _PARTS_MAX + key.part)

    def _is_applied(self, key: PartKey) -> bool:
        return self._ledger.has(key.closure, key.attempt * _PARTS_MAX + key.part)

    @staticmethod
    def _forget_ended(known: _Trainer[Payload]) -> None:
        if len(known.decided) <= 2 * ENDED_KEPT:
            return
        ended = [c for c, newest in known.decided.items() if newest.outcome is not None]
        for closure in ended[:-ENDED_KEPT]:
            known.forget(closure)
