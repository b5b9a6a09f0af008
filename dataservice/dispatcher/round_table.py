"""The round table of a coordinated iteration: which worker gives which rounds, and all progress.

A round is one element for every consumer, all from one worker. Holds values and their total
changes only; `rounds` decides. A consumer has *received* a round when it holds its element of the
round, and *consumed* it when it has handed the element out. A round that all consumers have
received is *complete*; only complete rounds are handed out. When a consumer joins there is a *roll
call*: all stop and say how far they are; only then is it known where the new one begins.
Invariants: blocks are ascending and disjoint; a complete round keeps its worker for ever, so that
no two consumers hand out elements of different workers as one round.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, get_args

from dataservice.dispatcher import round_events as facts
from dataservice.vocabulary import ReaderId, WorkerId

RoundFact = (
    facts.ConsumerJoined
    | facts.RoundsAssigned
    | facts.RoundsReassigned
    | facts.RoundsMarked
    | facts.RollCalled
    | facts.RoundsAligned
    | facts.WorkerTrusted
)
ROUND_FACTS: Final = get_args(RoundFact)


class Block(NamedTuple):
    """Rounds [first, end) that one worker gives; `generation` is the version that assigned them."""

    first: int
    end: int
    worker_id: WorkerId
    generation: int


@dataclass(slots=True)
class RoundTable:
    """The consumers' progress and the workers' blocks of rounds.

    `received` and `consumed` count the rounds of each consumer, `complete` those that all have
    received. Rounds below `end` are assigned or over. `version` counts the reassignments, `turns`
    all assignments. `suspects` are workers that a consumer could not reach lately. `roll` counts
    the roll calls, `stopped` has the last one for which each consumer has stopped, `aligned` is the
    last one after which all went on. `newcomers` joined since then; their `consumed` is
    provisional.
    """

    num_consumers: int
    received: list[int] = field(default_factory=list)
    consumed: list[int] = field(default_factory=list)
    members: dict[int, ReaderId] = field(default_factory=dict)
    complete: int = 0
    end: int = 0
    version: int = 0
    turns: int = 0
    blocks: list[Block] = field(default_factory=list)
    suspects: set[WorkerId] = field(default_factory=set)
    roll: int = 0
    stopped: list[int] = field(default_factory=list)
    aligned: int = 0
    newcomers: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.stopped = self.stopped or [0] * self.num_consumers
        self.received = self.received or [0] * self.num_consumers
        self.consumed = self.consumed or [0] * self.num_consumers

    def apply(self, event: RoundFact) -> None:
        """Applies one fact."""
        match event:
            case facts.ConsumerJoined():
                self._join(event.consumer_index, event.reader_id, event.first_round)
            case facts.RoundsAssigned():
                self._assign(event.parts)
            case facts.RoundsReassigned():
                self._reassign(event.worker_id, event.parts)
                if event.suspect:
                    self.suspects.add(event.worker_id)
            case facts.RoundsMarked():
                self._mark(event.consumer_index, event.received, event.consumed)
                index = event.consumer_index
                self.stopped[index] = max(self.stopped[index], event.roll)
            case facts.RollCalled():
                self.roll += 1
            case facts.RoundsAligned():
                for index, begin in enumerate(event.begins):
                    self._mark(index, begin, begin)
                self.aligned = self.roll
                self.newcomers.clear()
            case facts.WorkerTrusted():
                self.suspects.discard(event.worker_id)

    @property
    def low(self) -> int:
        """The low-water mark: every consumer has consumed the rounds below it."""
        return min(self.consumed)

    @property
    def is_calling_roll(self) -> bool:
        """True during a roll call, when no consumer may go on."""
        return self.aligned < self.roll

    def absent(self) -> tuple[int, ...]:
        """Returns the consumers that have yet to stop for the roll call."""
        return tuple(i for i in range(self.num_consumers) if self.stopped[i] < self.roll)

    def index_of(self, reader_id: ReaderId) -> int:
        """Returns the consumer index of a reader."""
        return next(index for index, reader in self.members.items() if reader == reader_id)

    def missing(self) -> tuple[int, ...]:
        """Returns the consumer indices that have no reader at present."""
        return tuple(index for index in range(self.num_consumers) if index not in self.members)

    def _join(self, index: int, reader_id: ReaderId, first_round: int) -> None:
        self.members[index] = reader_id
        self.received[index] = self.consumed[index] = first_round
        self.newcomers.add(index)
        self.roll += 1
        self._record_progress()

    def leave(self, reader_id: ReaderId) -> None:
        """Removes a reader from the consumers; its progress is kept."""
        self.members = {i: member for i, member in self.members.items() if member != reader_id}

    def _assign(self, parts: Iterable[tuple[int, int, WorkerId]]) -> None:
        for first, end, worker_id in parts:
            self.blocks.append(Block(first, end, worker_id, self.version))
            self.end = end
            self.turns += 1

    def lost_rounds(self, worker_id: WorkerId) -> list[tuple[int, int]]:
        """Returns the incomplete rounds of a worker, as (first, end)."""
        return [
            (max(block.first, self.complete), block.end)
            for block in self.blocks
            if block.worker_id == worker_id and block.end > self.complete
        ]

    def _reassign(self, worker_id: WorkerId, parts: Iterable[tuple[int, int, WorkerId]]) -> None:
        lost = self.lost_rounds(worker_id)
        if not lost:
            return
        # The new version tells consumers that the elements which they hold of lost rounds are void.
        self.version += 1
        self.turns += len(lost)
        theirs = [block for block in self.blocks if block.worker_id == worker_id]
        done = [
            b._replace(end=min(b.end, self.complete)) for b in theirs if b.first < self.complete
        ]
        moved = [Block(first, end, to, self.version) for first, end, to in parts]
        others = [block for block in self.blocks if block.worker_id != worker_id]
        self.blocks = sorted([*others, *done, *moved])
        for index, received in enumerate(self.received):
            self.received[index] = max(self.consumed[index], min(received, lost[0][0]))

    def _mark(self, index: int, received: int, consumed: int) -> None:
        self.received[index] = max(self.received[index], received, consumed)
        self.consumed[index] = max(self.consumed[index], consumed)
        self._record_progress()

    def _record_progress(self) -> None:
        self.complete = max(self.complete, min(self.received))
        self.blocks = [block for block in self.blocks if block.end > self.low]

    def to_json(self) -> dict[str, Any]:
        """Returns the table as JSON values, which a round trip through JSON leaves equal."""
        return {
            "received": list(self.received),
            "consumed": list(self.consumed),
            "members": [[index, reader] for index, reader in self.members.items()],
            "complete": self.complete,
            "end": self.end,
            "version": self.version,
            "turns": self.turns,
            "blocks": [list(block) for block in self.blocks],
            "suspects": sorted(self.suspects),
            "roll": self.roll,
            "stopped": list(self.stopped),
            "aligned": self.aligned,
            "newcomers": sorted(self.newcomers),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RoundTable:
        """Returns the table that `to_json` described."""
        return cls(
            **{
                **values,
                "num_consumers": len(values["received"]),
                "received": list(values["received"]),
                "consumed": list(values["consumed"]),
                "members": {index: ReaderId(reader) for index, reader in values["members"]},
                "blocks": [Block(*block) for block in values["blocks"]],
                "suspects": set(values["suspects"]),
                "stopped": list(values["stopped"]),
                "newcomers": set(values["newcomers"]),
            }
        )


def check_rounds(table: RoundTable) -> None:
    """Raises AssertionError if parts of the table contradict each other."""
    assert len(table.received) == len(table.consumed) == table.num_consumers
    assert len(table.stopped) == table.num_consumers
    assert table.aligned <= table.roll, table
    assert max(table.stopped) <= table.roll, table
    assert table.is_calling_roll or not table.newcomers, table
    assert table.newcomers <= set(range(table.num_consumers)), table.newcomers
    assert all(0 <= index < table.num_consumers for index in table.members), table.members
    assert len(set(table.members.values())) == len(table.members), "a reader is two consumers"
    assert all(c <= r for c, r in zip(table.consumed, table.received, strict=True)), table
    assert table.complete >= min(table.received), table
    assert all(block.first < block.end for block in table.blocks), table.blocks
    assert all(block.generation <= table.version for block in table.blocks), table.blocks
    for before, after in zip(table.blocks, table.blocks[1:], strict=False):
        assert before.end <= after.first, (before, after)
    assert not table.blocks or table.blocks[-1].end == table.end, table
