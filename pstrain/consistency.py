"""Consistency rules, for how far trainers may run apart: async, stale synchronous or in rounds.

Pure: decides when a closure may start and when a round is full; the scheduler asks. Knows no
trainer by name, no clock, no server. Invariant: under every rule some live trainer may always go
on: the slowest trainer is never ahead of itself, and a round never needs more closures than there
are trainers.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from dataservice.runtime.arguments import integer_at_least, nearest
from pstrain.errors import InvalidArgumentError

__all__ = ["ASYNC", "Async", "Consistency", "Ssp", "Sync", "consistency_of", "ssp", "sync"]


@dataclass(frozen=True, slots=True)
class _Rule:
    """The base of the rules, under which each closure makes a step of its own unless it is Sync."""

    name: ClassVar[str]

    def replicas_in_sync(self, trainers: int) -> int:  # noqa: ARG002
        """Returns the number of closures whose gradients make one step."""
        return 1

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON form that checkpoints save."""
        return {"name": self.name, **asdict(self)}


@dataclass(frozen=True, slots=True)
class Async(_Rule):
    """Asynchronous: trainers run as fast as they can; a closure's changes apply when it ends."""

    name: ClassVar[str] = "async"

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Ssp(_Rule):
    """Stale synchronous parallel: no trainer is over ``staleness`` closures ahead of the slowest.

    A trainer's clock is the number of closures that it has finished; a trainer that joins starts
    with the clock of the slowest (Ho et al., NIPS 2013).
    """

    staleness: int
    name: ClassVar[str] = "ssp"

    def __post_init__(self) -> None:
        staleness = integer_at_least(self.staleness, 0, "staleness")
        object.__setattr__(self, "staleness", staleness)

    def may_start(self, finished: int, running: int, slowest: int) -> bool:
        """True if a trainer may start one more closure; ``slowest``: the lowest live clock."""
        return finished + running - slowest <= self.staleness

    def __str__(self) -> str:
        return f"ssp(staleness={self.staleness})"


@dataclass(frozen=True, slots=True)
class Sync(_Rule):
    """Rounds: one closure per trainer, then one step with the mean of their gradients.

    A round takes the closures that are ready first, as many as there are trainers less
    ``backup_workers``; the others run again, on the same elements, in a later round (Chen et al.,
    2016).
    """

    backup_workers: int = 0
    name: ClassVar[str] = "sync"

    def __post_init__(self) -> None:
        spare = integer_at_least(self.backup_workers, 0, "backup_workers")
        object.__setattr__(self, "backup_workers", spare)

    def full(self, trainers: int) -> int:
        """Returns how many closures a round takes in a cluster with this many trainers."""
        return max(1, trainers - self.backup_workers)

    def replicas_in_sync(self, trainers: int) -> int:
        """Returns the number of closures whose gradients make one step: those of one round."""
        return self.full(trainers)

    def __str__(self) -> str:
        return f"sync(backup_workers={self.backup_workers})"


Consistency = Async | Ssp | Sync

ASYNC = Async()


def ssp(staleness: int) -> Ssp:
    """Returns the rule by which trainers are at most ``staleness`` closures ahead of the slowest.

    0: all trainers are in step.
    """
    return Ssp(staleness)


def sync(backup_workers: int = 0) -> Sync:
    """Returns the rule of one step per round, without waiting for the last ``backup_workers``."""
    return Sync(backup_workers)


def consistency_of(value: Any, trainers: int) -> Consistency:
    """Returns the rule that a program asked for.

    InvalidArgumentError for an unknown rule, or one that leaves none of ``trainers`` in a round.
    """
    match value:
        case Async() | Ssp():
            return value
        case "async":
            return ASYNC
        case "sync":
            return sync()
        case Sync(backup_workers=spare) if spare < trainers:
            return value
        case Sync(backup_workers=spare):
            raise InvalidArgumentError(
                f"backup_workers={spare} leaves no trainer whose gradients a round takes: the "
                f"cluster has {trainers} 'worker' tasks; give at most {trainers - 1}"
            )
    raise InvalidArgumentError(
        f'consistency is "async", "sync", pstrain.consistency.ssp(staleness=...) or '
        f"pstrain.consistency.sync(backup_workers=...), got {value!r}"
        f"{nearest(value, ('async', 'sync'))}"
    )
