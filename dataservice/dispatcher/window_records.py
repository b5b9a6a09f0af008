"""What a table of windows is made of: a window under way, a reader's windows, an open round.

Pure values, which the table changes. They know nothing of each other: that they agree is the
table's business. Invariant: what is done is in none of them, but for what readers finished of open
rounds.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from enum import Enum

from dataservice.ranges import Ranges
from dataservice.vocabulary import ReaderId, WorkerId
from dataservice.windowing import Windows


class Phase(Enum):
    """Where a window is between two leases; done windows have no record."""

    PENDING = "pending"
    LEASED = "leased"
    FENCING = "fencing"  # its worker is gone; its owner has yet to say what it received
    RECEIVED = "received"  # its owner has all rows and has yet to consume them


@dataclass(slots=True)
class WindowRecord:
    """A window that was leased at least once and is not done.

    Rows below `start_row` need not be produced again; rows below `consumed_row` are consumed, those
    below `base_row` by others than the owner.
    """

    generation: int = 0
    phase: Phase = Phase.PENDING
    start_row: int = 0
    consumed_row: int = 0
    owner: ReaderId | None = None
    worker: WorkerId | None = None
    base_row: int = 0


@dataclass(slots=True)
class ReaderWindows:
    """Windows of one reader, by phase; leased ones are what remains of `owned`.

    `finished`: those it finished, of rounds that are not done as a whole.
    """

    owned: set[int] = field(default_factory=set)
    pending: OrderedDict[int, None] = field(default_factory=OrderedDict)
    fencing: set[int] = field(default_factory=set)
    received: set[int] = field(default_factory=set)
    finished: Ranges = field(default_factory=Ranges)


@dataclass(slots=True)
class Round:
    """One reading of the splits: windows `first` .. `first + len(windows)` of the iteration."""

    number: int
    first: int
    windows: Windows
    unfinished: int
