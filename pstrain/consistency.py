"""How far trainers may be apart: asynchronous, stale synchronous, or in rounds.

Pure: rules and the arithmetic of when a closure may start and when a round is full; who schedules
asks here. Knows no trainer by name, no clock, no server. Invariant: whatever the rule, some live
trainer may always go on: the slowest is never ahead of itself, and a round never needs more
closures than there are.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from dataservice.runtime.arguments import nearest
from pstrain.errors import InvalidArgumentError

__all__ = ["ASYNC", "Async", "Consistency", "Ssp", "Sync", "consistency_of", "ssp", "sync"]


@dataclass(frozen=True, slots=True)
class Async:
    """Every trainer goes as fast as it can; each closure's changes are made as it ends."""

    name: ClassVar[str] = "async"

    def replicas_in_sync(self, trainers: int) -> int:  # noqa: ARG002
        """How many closures' gradients make one step."""
        return 1

    def to_json(self) -> dict[str, Any]:
        """JSON form, for checkpoints."""
        return {"name": self.name, **asdict(self)}

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Ssp:
    """Stale synchronous parallel: nobody is more than ``staleness`` closures ahead of the slowest.

    A trainer's clock is the number of closures that it finished; one that joins starts at the
    slowest's (Ho et al., NIPS 2013).
    """

    staleness: int
    name: ClassVar[str] = "ssp"

    def __post_init__(self) -> None:
        _check_count("staleness", self.staleness)

    def may_start(self, finished: int, running: int, slowest: int) -> bool:
        """Whether a trainer may start one more; ``slowest``: the least that any live one did."""
        return finished + running - slowest <= self.staleness

    def replicas_in_sync(self, trainers: int) -> int:  # noqa: ARG002
        """How many closures' gradients make one step."""
        return 1

    def to_json(self) -> dict[str, Any]:
        """JSON form, for checkpoints."""
        return {"name": self.name, **asdict(self)}

    def __str__(self) -> str:
        return f"ssp(staleness={self.staleness})"


@dataclass(frozen=True, slots=True)
class Sync:
    """Rounds: a closure on each trainer, one step with the mean of their gradients.

    The first to be ready are taken, all but ``backup_workers``; the others run again, on the same
    elements, in a later round (Chen et al., 2016).
    """

    backup_workers: int = 0
    name: ClassVar[str] = "sync"

    def __post_init__(self) -> None:
        _check_count("backup_workers", self.backup_workers)

    def full(self, trainers: int) -> int:
        """How many closures a round takes, of a cluster with so many trainers."""
        return max(1, trainers - self.backup_workers)

    def replicas_in_sync(self, trainers: int) -> int:
        """How many closures' gradients make one step: as many as a round takes."""
        return self.full(trainers)

    def to_json(self) -> dict[str, Any]:
        """JSON form, for checkpoints."""
        return {"name": self.name, **asdict(self)}

    def __str__(self) -> str:
        return f"sync(backup_workers={self.backup_workers})"


Consistency = Async | Ssp | Sync

ASYNC = Async()


def ssp(staleness: int) -> Ssp:
    """Trainers at most ``staleness`` closures ahead of the slowest one; 0: in step."""
    return Ssp(staleness)


def sync(backup_workers: int = 0) -> Sync:
    """One step per round of all trainers, without waiting for the last ``backup_workers``."""
    return Sync(backup_workers)


def consistency_of(value: Any, trainers: int) -> Consistency:
    """The rule that a program asked for; InvalidArgumentError where ``trainers`` cannot obey it."""
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


def _check_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidArgumentError(f"{name} must be an integer of at least 0, got {value!r}")
