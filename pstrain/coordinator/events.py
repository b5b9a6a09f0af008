"""Facts about closures and trainers, in the past tense.

Only values: no clock, no thread, no function or result travels in them. Invariant: a state is
a pure function of the events applied to it, in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Reason(Enum):
    """Why a closure ends that does not run, or whose run counts for nothing."""

    OTHERS = "others"  # another one failed, or everything is given up
    ASKED = "asked"  # by the program, of this one
    OVERDUE = "overdue"  # its own deadline has passed
    INPUT = "input"  # one of its inputs was cancelled


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosureQueued:
    """``trainer``: the only one that may run it, if it is bound to one.

    It may be preceded by what else is said of it.
    """

    closure: int
    trainer: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InputsNeeded:
    """These have not ended, and a closure that is about to be queued needs their values."""

    closure: int
    inputs: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityGiven:
    """Of a closure that is about to be queued, or again: those of a higher one start first."""

    closure: int
    priority: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosureStarted:
    """``attempt`` counts from 0; it tells a run from the run that replaced it."""

    closure: int
    trainer: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosureFinished:
    closure: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosureFailed:
    """The closure itself failed, or it was given up after too many attempts.

    ``input``: one of its inputs, which ended without a value, if it was that.
    """

    closure: int
    input: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosureReturned:
    """Its trainer was lost: it waits again, before all others.

    ``parts``: so many parts of it that took no element were decided; None: nothing of it was.
    """

    closure: int
    parts: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndMet:
    """A run met the end of its trainer's data, and did nothing: its closure waits for another's."""

    closure: int
    trainer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosureCancelled:
    """It ends without a value; where its program wanted that, nothing of it was ever applied."""

    closure: int
    reason: Reason = Reason.OTHERS
    input: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelAsked:
    """It runs: its trainer is asked not to commit it."""

    closure: int
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelGranted:
    """Its trainer commits nothing of this run; what is left of it is its end."""

    closure: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRefused:
    """It has begun to commit: it goes on as if nobody had asked."""

    closure: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosurePrepared:
    """It has run; its changes, if any, wait at the servers for its round."""

    closure: int
    has_changes: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosureDropped:
    """It was late for its round: it waits again, and its trainer is to give its elements back."""

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
    """The program waits for closures below: their rounds wait for none that are not scheduled.

    ``end``: the first closure that is not of the round of those before it, however late it begins.
    """

    below: int
    end: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundDecided:
    """These closures make the round; in the order in which they came."""

    closures: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundApplied:
    """All servers have made the changes of the round that was decided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AbsentGivenUp:
    """Rounds begin without the trainers that never joined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerJoined:
    """``slots`` is how many closures it takes at a time; more of those that are over at once."""

    trainer: int
    slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSilenced:
    """It is taken for lost; what its closures have committed is not known yet."""

    trainer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerLost:
    """What it left behind is settled."""

    trainer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosureReopened:
    """It had ended, and what it changed is undone: it waits again, before all others.

    ``round``: the one that it was part of, where there are any; it makes one again with the others.
    ``trainer``: the only one that may run it, if it is bound to one.
    """

    closure: int
    round: int | None = None
    trainer: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsRestored:
    """Of what closures that wait had changed in earlier runs, only this is there now.

    ``parts``: (closure, how many of its parts).
    """

    parts: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundUndone:
    """The round that was being applied is not made: its closures wait again, to make it anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainersAwaited:
    """No round begins before these have joined, or were given up."""

    trainers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkGivenUp:
    """All is as at an earlier moment, and the program has yet to be told: nothing starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingHeld:
    """No closure starts until as many have let go as hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingResumed:
    """One that held has let go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorsReported:
    """The user has been shown the errors; scheduling may go on."""


Event = (
    ClosureQueued
    | InputsNeeded
    | PriorityGiven
    | ClosureStarted
    | ClosureFinished
    | ClosureFailed
    | ClosureReturned
    | EndMet
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
