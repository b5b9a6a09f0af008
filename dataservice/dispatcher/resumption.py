"""Values about iterations that go on from saved positions.

Pure. A position is what one reader saved, or several put together: what was consumed, by all that
are not readers any more and by those who saved it. Invariant: an iteration begins to go on only
when the positions of all readers that there were have been loaded, so that no row is left out or
read twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dataservice.ranges import Consumed
from dataservice.vocabulary import ReaderId


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPosition:
    """What a reader brings along.

    `origins`: the readers that saved it. `peers`: all that read when it was saved. `division`
    stands for the windows that it counts.
    """

    consumed: Consumed
    origins: tuple[str, ...]
    peers: tuple[str, ...]
    division: str


@dataclass(slots=True)
class Resumption:
    """How far an iteration is with gathering positions; `loaded_by` says who brought which."""

    consumed: Consumed = field(default_factory=Consumed)
    loaded_by: dict[str, ReaderId] = field(default_factory=dict)
    peers: set[str] = field(default_factory=set)

    def missing(self) -> tuple[str, ...]:
        """Readers whose positions have yet to be loaded."""
        return tuple(sorted(self.peers - set(self.loaded_by)))

    def load(
        self, reader: ReaderId, origins: Iterable[str], peers: Iterable[str], consumed: Consumed
    ) -> bool:
        """Adds a position; whether it was the last that was missing."""
        went_on = bool(self.loaded_by) and not self.missing()
        self.loaded_by.update(dict.fromkeys(origins, reader))
        self.peers.update(peers)
        if not went_on:
            self.consumed.merge(consumed)
        return not went_on and not self.missing()

    def take(self) -> Consumed:
        """What was consumed according to all positions; it is not needed here any more."""
        consumed, self.consumed = self.consumed, Consumed()
        return consumed

    def copy(self) -> Resumption:
        return Resumption(self.consumed.copy(), dict(self.loaded_by), set(self.peers))

    def to_json(self) -> dict[str, Any]:
        """JSON-able form for journals."""
        return {
            "consumed": self.consumed.to_json(),
            "loaded_by": self.loaded_by,
            "peers": sorted(self.peers),
        }

    @classmethod
    def from_json(cls, encoded: Mapping[str, Any]) -> Resumption:
        """What `to_json` was given."""
        consumed = Consumed.from_json(encoded["consumed"])
        return cls(consumed, dict(encoded["loaded_by"]), set(encoded["peers"]))
