"""The parts of a window table: an open window, the windows of a reader, an open round.

Pure values, which the table changes and keeps consistent; they know nothing of each other.
Invariant: finished windows are in none of them, except in the `finished` ranges of readers while
their round is open.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from enum import Enum

from dataservice.ranges import Ranges
from dataservice.vocabulary import ReaderId, WorkerId
from dataservice.windowing import Windows


class Phase(Enum):
    """The phase of an open window; done windows have no record."""

    PENDING = "pending"
    LEASED = "leased"
    FENCING = "fencing"  # the lease has ended; the owner has yet to say what it received
    RECEIVED = "received"  # the owner has all rows and has yet to consume them


@dataclass(slots=True)
class WindowRecord:
    """A window that was leased at least once and is not done.

    Rows below `start_row` need not be produced again; rows below `consumed_row` are consumed, and
    those below `base_row` were consumed by other readers than the owner.
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
    """The windows of one reader by phase; those in `owned` alone are leased.

    `finished` holds the windows it finished, of rounds that are not entirely done.
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
