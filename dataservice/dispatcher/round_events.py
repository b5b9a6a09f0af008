"""Facts about coordinated reads, beside those of `events`.

Pure: no clock, no random. Invariant: every field is one that the journal can hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dataservice.dispatcher.events import Event
from dataservice.vocabulary import IterationId, ReaderId, WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerJoined(Event):
    """A reader is a consumer of coordinated reads, from about this round on.

    All consumers stop and say how far they are, so that it begins where they stand.
    """

    iteration_id: IterationId
    reader_id: ReaderId
    consumer_index: int
    first_round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsAssigned(Event):
    """Workers are to give the next rounds of coordinated reads: (first, end, worker)."""

    iteration_id: IterationId
    parts: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsReassigned(Event):
    """Others give the incomplete rounds of a worker, which gets no new ones while it is suspect."""

    iteration_id: IterationId
    worker_id: WorkerId
    suspect: bool
    parts: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsMarked(Event):
    """A consumer holds the rounds below `received` and has handed out those below `consumed`.

    `roll`: it stopped for this roll call before it said so.
    """

    iteration_id: IterationId
    consumer_index: int
    received: int
    consumed: int
    roll: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RollCalled(Event):
    """All consumers are to stop and to say how far they are."""

    iteration_id: IterationId


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsAligned(Event):
    """Everybody has stopped; the consumers go on at these rounds."""

    iteration_id: IterationId
    begins: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTrusted(Event):
    """A worker that consumers could not reach may get rounds again."""

    iteration_id: IterationId
    worker_id: WorkerId
