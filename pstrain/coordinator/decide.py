"""Decisions of the scheduler: (state, request) -> events.

Pure: reads the state, changes nothing, knows no thread, clock or connection. The rules follow
TensorFlow's ``ClusterCoordinator``: a closure whose trainer is lost runs again elsewhere; the first
closure that fails by itself cancels all that wait, while those that run may end; the next
``schedule``, ``join`` or ``done`` raises the errors, then scheduling continues. Unlike there, a
closure that runs again comes first in the queue, and is given up if it loses trainer after trainer;
a closure may be bound to a trainer, waits for it, and holds up no other; higher priorities start
first.
Invariant: while errors wait to be raised, only closures wait that count already, because a part of
them is committed or because they ended before a restore; these still run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from pstrain.coordinator import events as ev
from pstrain.coordinator import rounds
from pstrain.coordinator.propagation import (
    cancellations,
    cancellations_of_all,
    cancellations_of_others,
    failures,
    failures_and_cancellations,
    has_counted,
)
from pstrain.coordinator.round_state import Run
from pstrain.coordinator.state import CoordinatorState


class DecidedClosure(NamedTuple):
    """What servers had decided of a lost trainer's closure.

    ``parts``: how many of its parts that took no element. ``has_ended``: its end was decided too.
    """

    attempt: int
    parts: int
    has_ended: bool = False
    is_error: bool = False


NOTHING_DECIDED: Mapping[int, DecidedClosure] = MappingProxyType({})


def schedule(
    state: CoordinatorState,
    closure: int,
    trainer: int | None = None,
    inputs: tuple[int, ...] = (),
    immediate_end: ev.ClosureFailed | ev.ClosureCancelled | None = None,
    priority: int = 0,
    iterators: frozenset[str] = frozenset(),
) -> ev.Events:
    """Queues a closure, or cancels it at once if errors wait to be raised.

    ``inputs``: closures whose values it needs and that have not ended. ``immediate_end``: how it
    ends at once, because an input has ended without a value. ``iterators``: those among its
    arguments.
    """
    queued = ev.ClosureQueued(
        closure=closure, trainer=trainer, inputs=inputs, priority=priority, iterators=iterators
    )
    if state.failed:
        return (queued, ev.ClosureCancelled(closure=closure))
    if isinstance(immediate_end, ev.ClosureFailed):
        return (queued, immediate_end, *cancellations_of_others(state))
    return (queued,) if immediate_end is None else (queued, immediate_end)


def is_current(state: CoordinatorState, closure: int, trainer: int, attempt: int) -> bool:
    """True if this run is the closure's current one; False if its trainer was taken for lost."""
    run = state.running.get(closure)
    if run is None or (run.trainer, run.attempt) != (trainer, attempt):
        return False
    return not state.trainers[trainer].is_silenced


def finish(state: CoordinatorState, closure: int, trainer: int, attempt: int) -> ev.Events:
    if not is_current(state, closure, trainer, attempt):
        return ()
    return (ev.ClosureFinished(closure=closure),)


def fail(state: CoordinatorState, closure: int, trainer: int, attempt: int) -> ev.Events:
    """Ends a closure by its own error, which cancels those that wait.

    A closure that was to be cancelled has ended as its program wants it: it cancels no others.
    """
    if not is_current(state, closure, trainer, attempt):
        return ()
    if closure in state.cancelling:
        return tuple(cancellations(state, [closure]))
    return tuple(failures(state, [closure]))


def meet_end(
    state: CoordinatorState, closure: int, trainer: int, attempt: int, iterators: frozenset[str]
) -> ev.Events:
    """Queues a closure again whose run only met the end of its trainer's data.

    Another trainer may have data left. No events if that is the closure's end, because it is bound
    to this trainer, is being cancelled, or others have failed and nothing of it counts yet.
    """
    is_over = bool(state.failed) and not has_counted(state, closure)
    if is_over or closure in state.queues.bound or closure in state.cancelling:
        return ()
    if not is_current(state, closure, trainer, attempt):
        return ()
    return (ev.EndMet(closure=closure, trainer=trainer, iterators=iterators),)


def renew_data(state: CoordinatorState) -> ev.Events:
    """Notes that an iterator was made: trainers may have data again."""
    return (ev.DataRenewed(),) if state.ends.trainers else ()


def begin_release() -> ev.Events:
    """Notes that services are asked to give back what the readers of lost trainers hold."""
    return (ev.ReleaseBegun(),)


def end_release() -> ev.Events:
    """Undoes one :func:`begin_release`; ends that were met until now do not count."""
    return (ev.ReleaseEnded(),)


def prepare(
    state: CoordinatorState,
    closure: int,
    trainer: int,
    attempt: int,
    *,
    has_changes: bool = True,
    has_failed: bool = False,
) -> ev.Events:
    """Notes that a closure has run and ends with its round, for which its changes wait at servers.

    ``has_failed``: it ends with an error, because its elements are used up only with that round.
    """
    if not is_current(state, closure, trainer, attempt):
        return ()
    return (ev.ClosurePrepared(closure=closure, has_changes=has_changes, has_failed=has_failed),)


def join_trainer(trainer: int, slots: int) -> ev.Events:
    """Adds a trainer; if it was there before, its loss is settled."""
    return (ev.TrainerJoined(trainer=trainer, slots=slots),)


def silence_trainer(state: CoordinatorState, trainer: int) -> ev.Events:
    """Takes a trainer for lost: it gets no more closures and is not listened to."""
    if trainer not in state.trainers or state.trainers[trainer].is_silenced:
        return ()
    return (ev.TrainerSilenced(trainer=trainer),)


def lose_trainer(
    state: CoordinatorState,
    trainer: int,
    decided: Mapping[int, DecidedClosure] = NOTHING_DECIDED,
    *,
    attempts_max: int,
) -> ev.Events:
    """Queues a lost trainer's closures again, in their old order; those out of attempts fail.

    ``decided``: what parameter servers have decided of the closures; one whose end was decided has
    ended. A closure of which nothing was decided does not run again if it was to be cancelled.
    """
    if trainer not in state.trainers:
        return ()
    facts: list[ev.Event] = list(silence_trainer(state, trainer))
    fates: dict[_Fate, list[int]] = {fate: [] for fate in _Fate}
    for closure, run in _held_by(state, trainer):
        fates[_fate(state, closure, run, decided.get(closure), attempts_max)].append(closure)
    failed, cancelled = fates[_Fate.FAILS], fates[_Fate.IS_CANCELLED]
    facts += [ev.ClosureFinished(closure=closure) for closure in fates[_Fate.FINISHES]]
    facts += failures_and_cancellations(state, failed, cancelled)
    is_over = bool(failed or state.failed)
    for closure in sorted(fates[_Fate.RUNS_AGAIN], reverse=True):
        parts = decided[closure].parts if closure in decided else None
        facts.append(
            ev.ClosureCancelled(closure=closure)
            if is_over and parts is None and not has_counted(state, closure)
            else ev.ClosureReturned(closure=closure, parts=parts)
        )
    facts.append(ev.TrainerLost(trainer=trainer))
    return tuple(facts)


class _Fate(Enum):
    """What becomes of a closure whose trainer is lost."""

    FINISHES = "finishes"
    FAILS = "fails"
    IS_CANCELLED = "is cancelled"
    RUNS_AGAIN = "runs again"


def _fate(
    state: CoordinatorState,
    closure: int,
    run: Run,
    found: DecidedClosure | None,
    attempts_max: int,
) -> _Fate:
    has_ended = found is not None and found.has_ended and found.attempt == run.attempt
    if found is not None and has_ended and not found.is_error:
        return _Fate.FINISHES
    if closure in state.cancelling and (found is None or has_ended):
        return _Fate.IS_CANCELLED
    if has_ended or _losses(state, closure) >= attempts_max:
        return _Fate.FAILS
    return _Fate.RUNS_AGAIN


def fail_bound_to(state: CoordinatorState, trainer: int) -> ev.Events:
    """Fails the first closure that is bound to a trainer which stays away."""
    if trainer not in state.queues.bound_waiting:
        return ()
    first = state.queues.bound_waiting[trainer].first
    return tuple(failures(state, [first]))


def cancel(state: CoordinatorState, closure: int, reason: ev.Reason) -> ev.Events:
    """Ends a closure that waits, or asks the trainer of a running one, which has the last word.

    No events if a part of the closure is decided or it is prepared for its round: it goes on.
    """
    if closure not in state.attempts or closure in state.parts:
        return ()
    if closure in state.running:
        known = closure in state.cancelling
        return () if known else (ev.CancelAsked(closure=closure, reason=reason),)
    if closure in state.round.prepared or closure in state.round.decided:
        return ()
    return tuple(cancellations(state, [closure], reason))


def answer_cancel(
    state: CoordinatorState, closure: int, trainer: int, attempt: int, *, is_granted: bool
) -> ev.Events:
    """Notes a trainer's answer to a request to cancel; granted: it commits nothing of the run."""
    run = state.running.get(closure) or state.round.prepared.get(closure)
    if run is None or (run.trainer, run.attempt) != (trainer, attempt):
        return ()
    if closure not in state.cancelling or state.trainers[trainer].is_silenced:
        return ()
    kind = ev.CancelGranted if is_granted else ev.CancelRefused
    return (kind(closure=closure),)


def cancel_all(state: CoordinatorState) -> ev.Events:
    """Ends every closure, as when no trainer can be reached or the coordinator closes."""
    begun = [*state.running, *state.round.prepared, *state.round.decided]
    cancelled = (ev.ClosureCancelled(closure=closure) for closure in begun)
    return (*cancellations_of_all(state), *cancelled)


def hold() -> ev.Events:
    """Holds scheduling: running closures may end, none starts."""
    return (ev.SchedulingHeld(),)


def resume(state: CoordinatorState) -> ev.Events:
    """Undoes one :func:`hold`; closures start again once all are undone."""
    return (ev.SchedulingResumed(),) if state.holds else ()


def reopen(
    state: CoordinatorState, ended: Iterable[ev.ClosureReopened], parts: Mapping[int, int]
) -> ev.Events:
    """Queues ``ended`` closures again, before all others, in their old order and rounds.

    Rounds come first in the order, because with trainers to spare a late closure ended in a later
    round than some closures after it. ``parts``: by closure, how many the checkpoint contains.
    """
    again = sorted(ended, key=lambda each: (each.round or 0, each.closure), reverse=True)
    restored = ev.PartsRestored(parts=tuple(sorted(parts.items())))
    return (*rounds.undo_round(state), *again, restored)


def give_up(state: CoordinatorState) -> ev.Events:
    """Ends every closure; none starts before the program was told why."""
    return (*cancel_all(state), ev.WorkGivenUp())


def await_trainers(state: CoordinatorState) -> ev.Events:
    """Has the next round wait for the present trainers, which are about to be disconnected."""
    return (ev.TrainersAwaited(trainers=tuple(sorted(state.trainers))),)


def report_errors(state: CoordinatorState) -> ev.Events:
    """Notes that errors were raised; no events while closures are still in flight."""
    if not state.failed or not state.is_quiet:
        return ()
    return (ev.ErrorsReported(),)


def _held_by(state: CoordinatorState, trainer: int) -> list[tuple[int, Run]]:
    """Returns the closures that a trainer's loss affects; those of a decided round are not."""
    known, prepared = state.trainers[trainer], state.round.prepared
    running = [(closure, state.running[closure]) for closure in known.running]
    return [*running, *((closure, prepared[closure]) for closure in known.prepared)]


def _losses(state: CoordinatorState, closure: int) -> int:
    """Returns how many runs of a closure ended with their trainer, or are about to."""
    return state.attempts[closure] - state.ended_runs[closure]
