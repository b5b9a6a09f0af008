"""The state of rounds: the current one, its trainers, and what is known of those to come.

Values only; nothing is decided. Invariant: a live trainer has either run a closure of the current
round or is fresh; each change takes constant time, on average, however many trainers there are.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Run:
    """Where a closure runs. ``has_changes``: whether it made changes; set once it is prepared.

    ``has_failed``: whether it failed and waits for its round only because of its elements.
    ``renewals``: how often data had come back when the run began.
    """

    trainer: int
    attempt: int
    has_changes: bool = True
    has_failed: bool = False
    renewals: int = 0


class RoundTrainers:
    """Which trainers have run a closure of the current round, and which live ones are fresh.

    A trainer that was lost has still run it. Not thread-safe.
    """

    __slots__ = ("_live", "fresh", "used")

    def __init__(self) -> None:
        self._live: set[int] = set()
        self.used: dict[int, None] = {}
        self.fresh: dict[int, None] = {}

    def join(self, trainer: int) -> None:
        self._live.add(trainer)
        if trainer not in self.used:
            self.fresh[trainer] = None

    def leave(self, trainer: int) -> None:
        self._live.discard(trainer)
        self.fresh.pop(trainer, None)

    def use(self, trainer: int) -> None:
        """Notes that a closure of the round starts on ``trainer``."""
        self.used[trainer] = None
        self.fresh.pop(trainer, None)

    def begin(self) -> None:
        """Begins another round, which no trainer has run."""
        self.fresh.update((each, None) for each in self.used if each in self._live)
        self.used.clear()


@dataclass(slots=True)
class Round:
    """The current round: which trainers ran it, what is prepared, what is being applied.

    ``number`` is never used twice: a round that was undone is made again under another number,
    because ``old_rounds`` refers to rounds that are still to be made again by their old numbers.
    ``prepared`` and ``decided`` are in the order of arrival. Rounds of closures below
    ``sealed_below`` do not wait for later closures; ``ends``: the closures at which rounds end that
    the program left short; ``tail``: the closures of the last round as long as it is not full.
    ``absent``: trainers that have not joined yet, or not again since all were disconnected; the
    next round waits for them.
    """

    number: int = 0
    trainers: RoundTrainers = field(default_factory=RoundTrainers)
    prepared: dict[int, Run] = field(default_factory=dict)
    decided: dict[int, Run] = field(default_factory=dict)
    sealed_below: int = 0
    ends: list[int] = field(default_factory=list)
    tail: list[int] = field(default_factory=list)
    absent: set[int] = field(default_factory=set)
    old_rounds: dict[int, int] = field(default_factory=dict)  # by closure, its round's old number

    def count(self, closure: int, closures_expected: int) -> None:
        """Counts a scheduled closure to the last round; ``closures_expected`` fill a round."""
        self.tail.append(closure)
        if len(self.tail) >= closures_expected:
            self.tail.clear()
