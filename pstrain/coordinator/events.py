"""Events: facts about closures and trainers, in the past tense.

Only values: an event carries no clock, thread, function or result. Invariant: a state is a pure
function of the events applied to it, in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Reason(Enum):
    """Why a closure is cancelled: it never runs, or its run is not applied."""

    OTHERS = "others"  # another closure failed, or everything is given up
    ASKED = "asked"  # the program cancelled this closure
    OVERDUE = "overdue"  # its own deadline has passed
    INPUT = "input"  # one of its inputs was cancelled


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosureQueued:
    """A closure was scheduled. ``trainer``: the only one that may run it, if it is bound to one.

    ``inputs``: closures whose values it needs and that have not ended. Higher priorities start
    first. ``iterators``: those among its arguments.
    """

    closure: int
    trainer: int | None = None
    inputs: tuple[int, ...] = ()
    priority: int = 0
    iterators: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosureStarted:
    """A closure was assigned to a trainer. ``attempt``, from 0, tells its runs apart."""

    closure: int
    trainer: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosureFinished:
    """A closure has ended with a value."""

    closure: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosureFailed:
    """A closure failed by itself, was given up after too many attempts, or lacks an input.

    ``input``: the input that ended without a value, if that is the cause.
    """

    closure: int
    input: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosureReturned:
    """A closure waits again, before all others of its priority, because its trainer was lost.

    ``parts``: how many of its parts that took no element were decided; None if no part was.
    """

    closure: int
    parts: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndMet:
    """A run did nothing but meet the end of its trainer's data: the closure waits for another.

    ``iterators``: those that have ended there.
    """

    closure: int
    trainer: int
    iterators: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRenewed:
    """An iterator was made, perhaps one that had ended: trainers may have data again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseBegun:
    """Services that were not known are asked to give back what lost trainers' readers hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseEnded:
    """The services of one ReleaseBegun have answered, or do not: trainers may have data again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosureCancelled:
    """A closure ends without a value; if its program asked for that, nothing of it is applied."""

    closure: int
    reason: Reason = Reason.OTHERS
    input: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelAsked:
    """The trainer of a running closure is asked not to commit it."""

    closure: int
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelGranted:
    """The trainer commits nothing of this run, whose end is still to come."""

    closure: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRefused:
    """The trainer has begun to commit: the closure goes on as if not asked to cancel."""

    closure: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosurePrepared:
    """A closure has run and ends with its round, for which its changes, if any, wait at servers.

    ``has_failed``: it ends with an error.
    """

    closure: int
    has_changes: bool = True
    has_failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosureDropped:
    """A run was late for its round: its closure waits again, its trainer returns its elements."""

    closure: int
    trainer: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DropEnded:
    """A trainer has given back the elements of a run that was late."""

    trainer: int
    closure: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsSealed:
    """The program waits for closures below ``below``: their rounds wait for no later closures.

    ``end``: the first closure of the next round, if the round before it was left short.
    """

    below: int
    end: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundDecided:
    """These closures make up the round, in the order in which they were prepared."""

    closures: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundApplied:
    """All servers have made the changes of the round that was decided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AbsentGivenUp:
    """Rounds begin without the trainers that never joined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerJoined:
    """A trainer has connected. ``slots``: how many closures it takes; short ones may exceed it."""

    trainer: int
    slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSilenced:
    """A trainer is taken for lost; what its closures have committed is not known yet."""

    trainer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerLost:
    """What a silenced trainer left behind is settled."""

    trainer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosureReopened:
    """A closure that had ended waits again, before all of its priority: its changes are undone.

    ``round``: the number of the round it was part of, if in rounds; the same closures make up a
    round again. ``trainer``, ``priority`` and ``iterators``: as in ClosureQueued.
    """

    closure: int
    round: int | None = None
    trainer: int | None = None
    priority: int = 0
    iterators: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsRestored:
    """After a restore, only these parts of closures that wait are still committed.

    ``parts``: (closure, number of its parts that took no element).
    """

    parts: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundUndone:
    """The round that was being applied is undone: its closures wait, and make it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainersAwaited:
    """No round begins before these trainers have joined, or were given up."""

    trainers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkGivenUp:
    """All closures were given up after a restore; none starts before the program was told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingHeld:
    """No closure starts until each SchedulingHeld has its SchedulingResumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingResumed:
    """One SchedulingHeld is undone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorsReported:
    """The errors were raised to the program; scheduling may continue."""


Event = (
    ClosureQueued
    | ClosureStarted
    | ClosureFinished
    | ClosureFailed
    | ClosureReturned
    | EndMet
    | DataRenewed
    | ReleaseBegun
    | ReleaseEnded
    | ClosureCancelled
    | CancelAsked
    | CancelGranted
    | CancelRefused
    | ClosurePrepared
    | ClosureDropped
    | DropEnded
    | RoundsSealed
    | RoundDecided
    | RoundApplied
    | AbsentGivenUp
    | TrainerJoined
    | TrainerSilenced
    | TrainerLost
    | ClosureReopened
    | PartsRestored
    | RoundUndone
    | TrainersAwaited
    | WorkGivenUp
    | SchedulingHeld
    | SchedulingResumed
    | ErrorsReported
)
Events = tuple[Event, ...]
