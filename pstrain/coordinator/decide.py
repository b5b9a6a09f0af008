"""Decisions of the scheduler: (state, request) -> events.

Pure: reads the state, changes nothing, knows no thread, clock or connection. The rules are
those of ``ClusterCoordinator``: a closure whose trainer is lost runs again elsewhere, first in
the queue; the first closure that fails by itself cancels all that wait, while what runs may end;
the next ``schedule``, ``join`` or ``done`` shows the errors, after which scheduling goes on.
What waits while errors wait to be shown is what counts already, in part or before a restore: it
goes on.
Unlike there, a closure that loses trainer after trainer is given up, and one may be bound to a
trainer: it waits for that one, and holds up nobody else; and those of higher priority come first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from pstrain.consistency import Sync
from pstrain.coordinator import events as ev
from pstrain.coordinator import rounds
from pstrain.coordinator.ends import all_waiting, failures, has_counted, others_waiting, unwanted
from pstrain.coordinator.state import CoordinatorState, Run


class Left(NamedTuple):
    """What servers decided of a lost trainer's closure: ``parts`` without elements, and its end."""

    attempt: int
    parts: int
    has_ended: bool = False
    is_error: bool = False


NOTHING_LEFT: Mapping[int, Left] = MappingProxyType({})
NOTHING_BOUND: Mapping[int, int] = MappingProxyType({})
NO_PARTS: Mapping[int, int] = MappingProxyType({})
NO_PRIORITIES: Mapping[int, int] = MappingProxyType({})


class Decision(NamedTuple):
    """Facts to apply, in order."""

    events: tuple[ev.Event, ...] = ()


def schedule(
    state: CoordinatorState,
    closure: int,
    trainer: int | None = None,
    inputs: tuple[int, ...] = (),
    without: ev.ClosureFailed | ev.ClosureCancelled | None = None,
    priority: int = 0,
) -> Decision:
    """Queues a closure; one that comes while errors wait to be shown is cancelled at once.

    ``inputs``: closures that have not ended and whose values it needs. ``without``: how it ends at
    once, because an input has ended without a value.
    """
    queued = ev.ClosureQueued(closure=closure, trainer=trainer)
    if state.failed:
        return Decision((queued, ev.ClosureCancelled(closure=closure)))
    if isinstance(without, ev.ClosureFailed):
        return Decision((queued, without, *others_waiting(state)))
    if without is not None:
        return Decision((queued, without))
    if not inputs and not priority:
        return Decision((queued,))
    return Decision((*_said_of(closure, inputs, priority), queued))


def _said_of(closure: int, inputs: tuple[int, ...], priority: int) -> Iterator[ev.Event]:
    if inputs:
        yield ev.InputsNeeded(closure=closure, inputs=inputs)
    if priority:
        yield ev.PriorityGiven(closure=closure, priority=priority)


def is_current(state: CoordinatorState, closure: int, trainer: int, attempt: int) -> bool:
    """False for the late word of a trainer that was taken for lost."""
    run = state.running.get(closure)
    if run is None or (run.trainer, run.attempt) != (trainer, attempt):
        return False
    return not state.trainers[trainer].is_silenced


def finish(state: CoordinatorState, closure: int, trainer: int, attempt: int) -> Decision:
    if not is_current(state, closure, trainer, attempt):
        return Decision()
    return Decision((ev.ClosureFinished(closure=closure),))


def fail(state: CoordinatorState, closure: int, trainer: int, attempt: int) -> Decision:
    """The closure's own error: it ends, and what waits is cancelled.

    One that was to be cancelled has ended as its program wants it, and concerns nobody else.
    """
    if not is_current(state, closure, trainer, attempt):
        return Decision()
    if closure in state.cancelling:
        return Decision(tuple(unwanted(state, [closure])))
    return Decision(tuple(failures(state, [closure])))


def meet_end(state: CoordinatorState, closure: int, trainer: int, attempt: int) -> Decision:
    """A run did nothing but meet the end of its trainer's data: another trainer may have some.

    No facts where that is the closure's own end: it may run nowhere else, or is not to.
    """
    is_over = bool(state.failed) and not has_counted(state, closure)
    if is_over or closure in state.bound or closure in state.cancelling:
        return Decision()
    if not is_current(state, closure, trainer, attempt):
        return Decision()
    return Decision((ev.EndMet(closure=closure, trainer=trainer),))


def prepare(
    state: CoordinatorState, closure: int, trainer: int, attempt: int, *, has_changes: bool = True
) -> Decision:
    """Its changes wait at the servers for the round to be decided."""
    if not is_current(state, closure, trainer, attempt):
        return Decision()
    return Decision((ev.ClosurePrepared(closure=closure, has_changes=has_changes),))


def join_trainer(state: CoordinatorState, trainer: int, slots: int) -> Decision:
    lost = lose_trainer(state, trainer, attempts_max=None).events
    return Decision((*lost, ev.TrainerJoined(trainer=trainer, slots=slots)))


def silence_trainer(state: CoordinatorState, trainer: int) -> Decision:
    """It is taken for lost: nothing goes there, nothing it says counts any more."""
    if trainer not in state.trainers or state.trainers[trainer].is_silenced:
        return Decision()
    return Decision((ev.TrainerSilenced(trainer=trainer),))


def lose_trainer(
    state: CoordinatorState,
    trainer: int,
    left: Mapping[int, Left] = NOTHING_LEFT,
    *,
    attempts_max: int | None,
) -> Decision:
    """Its closures run elsewhere, in their old order; those out of attempts fail.

    ``left`` is what parameter servers have decided of them: those that ended there have ended.
    Those of which nothing was decided do not run again where they were to be cancelled.
    """
    if trainer not in state.trainers:
        return Decision()
    facts: list[ev.Event] = list(silence_trainer(state, trainer).events)
    ends = _Ends([], [], [], [])
    for closure, run in _held_by(state, trainer):
        ends.add(state, closure, run, left.get(closure), attempts_max)
    facts += [ev.ClosureFinished(closure=closure) for closure in ends.finished]
    if ends.failed:
        # Who needs those that nobody wants any more ends with all others that wait.
        facts += failures(state, ends.failed)
        facts += [ev.ClosureCancelled(closure=c, reason=state.cancelling[c]) for c in ends.unwanted]
    else:
        facts += unwanted(state, ends.unwanted)
    is_over = bool(ends.failed or state.failed)
    for closure in sorted(ends.rest, reverse=True):
        parts = left[closure].parts if closure in left else None
        facts.append(
            ev.ClosureCancelled(closure=closure)
            if is_over and parts is None and not has_counted(state, closure)
            else ev.ClosureReturned(closure=closure, parts=parts)
        )
    facts.append(ev.TrainerLost(trainer=trainer))
    return Decision(tuple(facts))


class _Ends(NamedTuple):
    """What becomes of a lost trainer's closures; the rest run again."""

    finished: list[int]
    failed: list[int]
    unwanted: list[int]
    rest: list[int]

    def add(
        self,
        state: CoordinatorState,
        closure: int,
        run: Run,
        found: Left | None,
        attempts_max: int | None,
    ) -> None:
        has_ended = found is not None and found.has_ended and found.attempt == run.attempt
        if found is not None and has_ended and not found.is_error:
            self.finished.append(closure)
        elif closure in state.cancelling and (found is None or has_ended):
            self.unwanted.append(closure)
        elif has_ended or (attempts_max is not None and _losses(state, closure) >= attempts_max):
            self.failed.append(closure)
        else:
            self.rest.append(closure)


def give_up_on(state: CoordinatorState, trainer: int) -> Decision:
    """A trainer stays away: the oldest closure that waits for just this one has failed."""
    if trainer not in state.bound_waiting:
        return Decision()
    first = state.bound_waiting[trainer].first
    return Decision(tuple(failures(state, [first])))


def cancel(state: CoordinatorState, closure: int, reason: ev.Reason) -> Decision:
    """Ends a closure that waits; of one that runs, its trainer has the last word.

    No facts where something of it was decided or its round may be: it goes on then.
    """
    if closure not in state.attempts or closure in state.parts:
        return Decision()
    if closure in state.running:
        known = closure in state.cancelling
        return Decision(() if known else (ev.CancelAsked(closure=closure, reason=reason),))
    if closure in state.round.prepared or closure in state.round.decided:
        return Decision()
    return Decision(tuple(unwanted(state, [closure], reason)))


def answer_cancel(
    state: CoordinatorState, closure: int, trainer: int, attempt: int, *, is_granted: bool
) -> Decision:
    """A trainer says whether it commits nothing of a run that it was asked to cancel."""
    run = state.running.get(closure) or state.round.prepared.get(closure)
    if run is None or (run.trainer, run.attempt) != (trainer, attempt):
        return Decision()
    if closure not in state.cancelling or state.trainers[trainer].is_silenced:
        return Decision()
    kind = ev.CancelGranted if is_granted else ev.CancelRefused
    return Decision((kind(closure=closure),))


def cancel_all(state: CoordinatorState) -> Decision:
    """Ends every closure, as when no trainer is to be had or the coordinator closes."""
    begun = [*state.running, *state.round.prepared, *state.round.decided]
    return Decision(
        (*all_waiting(state), *(ev.ClosureCancelled(closure=closure) for closure in begun))
    )


def hold(state: CoordinatorState) -> Decision:  # noqa: ARG001
    """What runs may end, nothing starts."""
    return Decision((ev.SchedulingHeld(),))


def let_go(state: CoordinatorState) -> Decision:
    """The last to let go lets closures start again."""
    return Decision((ev.SchedulingResumed(),) if state.holds else ())


def reopen(
    state: CoordinatorState,
    closures: Mapping[int, int | None],
    bound: Mapping[int, int] = NOTHING_BOUND,
    parts: Mapping[int, int] = NO_PARTS,
    priorities: Mapping[int, int] = NO_PRIORITIES,
) -> Decision:
    """These, which had ended, run again in their old order, before what waits, in their rounds.

    With trainers to spare, a closure that was late ended in a later round than some after it.
    ``bound``: the trainers of those that only one may run. ``parts``: how many parts of closures
    are in what everything went back to.
    """
    ended = closures.keys() - state.attempts.keys()
    again = sorted(ended, key=lambda c: (closures[c] or 0, c), reverse=True)
    reopened = (
        ev.ClosureReopened(closure=c, round=closures[c], trainer=bound.get(c)) for c in again
    )
    ranked = (ev.PriorityGiven(closure=c, priority=priorities[c]) for c in again if c in priorities)
    restored = ev.PartsRestored(parts=tuple(sorted(parts.items())))
    return Decision((*rounds.undo_round(state), *ranked, *reopened, restored))


def give_up(state: CoordinatorState) -> Decision:
    """Ends every closure; the program is shown why before anything else starts."""
    return Decision((*cancel_all(state).events, ev.WorkGivenUp()))


def await_trainers(state: CoordinatorState) -> Decision:
    """Those that are there now are about to be taken off, and come back before the next round."""
    if not isinstance(state.consistency, Sync) or not state.trainers:
        return Decision()
    return Decision((ev.TrainersAwaited(trainers=tuple(sorted(state.trainers))),))


def report_errors(state: CoordinatorState) -> Decision:
    """Facts only once nothing runs: errors are shown when all that was in flight has ended."""
    if not state.failed or not state.is_quiet:
        return Decision()
    return Decision((ev.ErrorsReported(),))


def _held_by(state: CoordinatorState, trainer: int) -> list[tuple[int, Run]]:
    """Closures that end or run again with a trainer: those of a round that is decided do not."""
    begun = (*state.running.items(), *state.round.prepared.items())
    return [(closure, run) for closure, run in begun if run.trainer == trainer]


def _losses(state: CoordinatorState, closure: int) -> int:
    """How many runs of a closure ended with their trainer, or are about to."""
    return state.attempts[closure] - state.drops.get(closure, 0)
