"""What follows from a request: facts, and what to tell whom.

Pure: reads the state, changes nothing, knows no thread, clock or connection. The rules are
those of ``ClusterCoordinator``: a closure whose trainer is lost runs again elsewhere, first in
the queue; the first closure that fails by itself cancels all that wait, while what runs may end;
the next ``schedule``, ``join`` or ``done`` shows the errors, after which scheduling goes on.
Unlike there, a closure that loses trainer after trainer is given up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Final, NamedTuple

from pstrain.coordinator import events as ev
from pstrain.coordinator.state import CoordinatorState

# Twice as many as travel in one message: one is on its way while the other is worked off.
QUICK_MAX: Final = 128


class Left(NamedTuple):
    """What servers decided of a closure of a lost trainer: so many parts, and perhaps its end."""

    attempt: int
    parts: int
    has_ended: bool = False
    is_error: bool = False


NOTHING_LEFT: Mapping[int, Left] = MappingProxyType({})


class Decision(NamedTuple):
    """Facts to apply, in order."""

    events: tuple[ev.Event, ...] = ()


def schedule(state: CoordinatorState, closure: int) -> Decision:
    """Queues a closure; one that comes while errors wait to be shown is cancelled at once."""
    queued = ev.ClosureQueued(closure=closure)
    if state.failed:
        return Decision((queued, ev.ClosureCancelled(closure=closure)))
    return Decision((queued,))


def _never(closure: int) -> bool:  # noqa: ARG001
    return False


def assign(state: CoordinatorState, is_quick: Callable[[int], bool] = _never) -> Decision:
    """Starts waiting closures on free slots, oldest first, slots in the order they came free.

    Quick ones, whose way takes longer than they do, also wait at the trainers: up to
    ``QUICK_MAX``, unless a loss has returned them, so that one which kills its trainers takes
    few others with it.
    """
    if state.failed or not state.waiting:
        return Decision()
    pairs = zip(state.waiting, state.free, strict=False)
    started = [
        ev.ClosureStarted(closure=closure, trainer=trainer, attempt=state.attempts[closure])
        for closure, trainer in islice(pairs, min(len(state.waiting), len(state.free)))
    ]
    if len(started) == len(state.free):
        started += _ahead(state, started, is_quick)
    return Decision(tuple(started))


def _ahead(
    state: CoordinatorState, started: list[ev.ClosureStarted], is_quick: Callable[[int], bool]
) -> Iterator[ev.ClosureStarted]:
    """Quick closures beyond the slots, each for the trainer that has fewest."""
    loads: dict[int, int] | None = None
    for closure in islice(state.waiting, len(started), None):
        if state.attempts[closure] or not is_quick(closure):
            return
        if loads is None:
            loads = {t: len(k.running) for t, k in state.trainers.items() if not k.is_silenced}
            for event in started:
                loads[event.trainer] += 1
        trainer = min(loads, key=loads.__getitem__, default=None)
        if trainer is None or loads[trainer] >= QUICK_MAX:
            return
        loads[trainer] += 1
        yield ev.ClosureStarted(closure=closure, trainer=trainer, attempt=0)


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
    """The closure's own error: it ends, and what waits is cancelled."""
    if not is_current(state, closure, trainer, attempt):
        return Decision()
    return Decision((ev.ClosureFailed(closure=closure), *_cancel_waiting(state)))


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
    """
    if trainer not in state.trainers:
        return Decision()
    facts: list[ev.Event] = []
    rest: list[int] = []
    failed = False
    for closure in state.trainers[trainer].running:
        found = left.get(closure)
        if found is None or not found.has_ended or found.attempt != state.running[closure].attempt:
            rest.append(closure)
        elif found.is_error:
            facts.append(ev.ClosureFailed(closure=closure))
            failed = True
        else:
            facts.append(ev.ClosureFinished(closure=closure))
    spent = [c for c in rest if attempts_max is not None and state.attempts[c] >= attempts_max]
    facts += [ev.ClosureFailed(closure=c) for c in spent]
    if spent or failed:
        facts += _cancel_waiting(state)
    dropped = bool(spent or failed or state.failed)
    for closure in sorted(set(rest) - set(spent), reverse=True):
        parts = left[closure].parts if closure in left else 0
        facts.append(
            ev.ClosureCancelled(closure=closure)
            if dropped
            else ev.ClosureReturned(closure=closure, parts=parts)
        )
    facts.append(ev.TrainerLost(trainer=trainer))
    return Decision(tuple(facts))


def cancel_all(state: CoordinatorState) -> Decision:
    """Ends every closure, as when no trainer is to be had or the coordinator closes."""
    running = (ev.ClosureCancelled(closure=c) for c in state.running)
    return Decision((*_cancel_waiting(state), *running))


def report_errors(state: CoordinatorState) -> Decision:
    """Facts only once nothing runs: errors are shown when all that was in flight has ended."""
    if not state.failed or state.running:
        return Decision()
    return Decision((ev.ErrorsReported(),))


def _cancel_waiting(state: CoordinatorState) -> list[ev.Event]:
    return [ev.ClosureCancelled(closure=c) for c in state.waiting]
