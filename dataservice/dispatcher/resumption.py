"""Values about iterations that resume from saved positions.

Pure. A position is saved by one reader, or merged from several: it says what was consumed by the
readers that had left and by those that saved it. Invariant: an iteration resumes only when the
positions of all readers of that time have been loaded, so that no row is left out or read twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dataservice.ranges import Consumed
from dataservice.vocabulary import ReaderId


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPosition:
    """A position that a reader loads.

    `origins` are the readers that saved it, `peers` all readers at that time. `division` is the
    digest of the plan whose windows it counts.
    """

    consumed: Consumed
    origins: tuple[str, ...]
    peers: tuple[str, ...]
    division: str


@dataclass(slots=True)
class Resumption:
    """The positions that an iteration has gathered; `loaded_by` maps each origin to its reader."""

    consumed: Consumed = field(default_factory=Consumed)
    loaded_by: dict[str, ReaderId] = field(default_factory=dict)
    peers: set[str] = field(default_factory=set)

    def missing(self) -> tuple[str, ...]:
        """Returns the readers whose positions have yet to be loaded."""
        return tuple(sorted(self.peers - set(self.loaded_by)))

    def load(
        self, reader: ReaderId, origins: Iterable[str], peers: Iterable[str], consumed: Consumed
    ) -> bool:
        """Adds a position; returns True if it was the last one that was missing."""
        went_on = bool(self.loaded_by) and not self.missing()
        self.loaded_by.update(dict.fromkeys(origins, reader))
        self.peers.update(peers)
        if not went_on:
            self.consumed.merge(consumed)
        return not went_on and not self.missing()

    def take(self) -> Consumed:
        """Returns what was consumed according to all positions, and clears it here."""
        consumed, self.consumed = self.consumed, Consumed()
        return consumed

    def copy(self) -> Resumption:
        return Resumption(self.consumed.copy(), dict(self.loaded_by), set(self.peers))

    def to_json(self) -> dict[str, Any]:
        """Returns the resumption as JSON values, for journals."""
        return {
            "consumed": self.consumed.to_json(),
            "loaded_by": self.loaded_by,
            "peers": sorted(self.peers),
        }

    @classmethod
    def from_json(cls, encoded: Mapping[str, Any]) -> Resumption:
        """Returns the resumption that `to_json` described."""
        consumed = Consumed.from_json(encoded["consumed"])
        return cls(consumed, dict(encoded["loaded_by"]), set(encoded["peers"]))
