"""Facts about coordinated reads, in addition to those in `events`.

Knows no clock and no random numbers. Invariant: the journal can encode every field.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dataservice.dispatcher.events import Event
from dataservice.vocabulary import IterationId, ReaderId, WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerJoined(Event):
    """A reader became a consumer of coordinated reads; `first_round` is provisional.

    All consumers stop and say how far they are, so that the new one begins where they stand.
    """

    iteration_id: IterationId
    reader_id: ReaderId
    consumer_index: int
    first_round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsAssigned(Event):
    """The next rounds of coordinated reads were assigned to workers, as (first, end, worker)."""

    iteration_id: IterationId
    parts: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsReassigned(Event):
    """The incomplete rounds of a worker were assigned to others.

    If the worker is a `suspect`, it gets no new rounds until it is trusted again.
    """

    iteration_id: IterationId
    worker_id: WorkerId
    suspect: bool
    parts: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsMarked(Event):
    """A consumer holds the rounds below `received` and has handed out those below `consumed`.

    `roll` is the roll call for which it had stopped when it reported these numbers.
    """

    iteration_id: IterationId
    consumer_index: int
    received: int
    consumed: int
    roll: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RollCalled(Event):
    """All consumers were asked to stop and to say how far they are."""

    iteration_id: IterationId


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsAligned(Event):
    """All consumers had stopped; they go on at the rounds `begins`, indexed by consumer."""

    iteration_id: IterationId
    begins: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTrusted(Event):
    """A worker that consumers could not reach gave a sign of life, and may get rounds again."""

    iteration_id: IterationId
    worker_id: WorkerId
