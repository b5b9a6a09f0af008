"""Rounds of synchronous training: who runs the next closure, and when a round is complete.

Pure. A round begins when the program has scheduled enough to fill it, takes the first so many
closures that are prepared and drops the rest, which run again later; one for which too few are
scheduled is *sealed* when the program waits for what is in it. Invariant: with no trainer lost and
none to spare, the program alone decides which closures make a round, and they run on the trainers
in their order, so the same program deals the same data to the same places.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from pstrain.consistency import Sync
from pstrain.coordinator import events as ev
from pstrain.coordinator import exhausted
from pstrain.coordinator.ends import unwanted
from pstrain.coordinator.state import CoordinatorState


def next_trainers(state: CoordinatorState, rule: Sync) -> list[int]:
    """Which free trainers are to run the next closures of the present round, in order."""
    this = state.round
    full = rule.full(state.trainers_expected)
    if this.decided or state.trainers_expected - len(this.absent) < full:
        return []
    if this.again and this.absent:
        return []  # what is made anew is made in the same places
    begun = len(this.prepared) + len(state.running)
    used = this.used if begun else {}
    shunned = exhausted.shunned(state)
    free = [index for index in state.free if index not in shunned]
    free.sort(key=lambda index: (state.trainers[index].drops, index))
    fresh = [index for index in free if index not in used]
    chosen = fresh[: max(0, state.trainers_expected - begun)]
    # Those that have run one of this round stand in for the lost; nobody spare does.
    missing = full - begun - len(chosen)
    chosen += [index for index in free if index in used][: max(0, missing)]
    return chosen[: _room(state, full)]


def _room(state: CoordinatorState, full: int) -> int:
    """How many of the closures that wait may be of the present round.

    One that is made anew has the closures that it had. Another begins when enough are scheduled to
    fill it, so that it never depends on how fast the program schedules the rest.
    """
    this = state.round
    begun = (*this.prepared, *state.running)
    if this.again and (begun or state.waiting):
        rounds = {this.again.get(closure) for closure in begun}
        present = rounds.pop() if rounds else this.again.get(state.waiting.first)
        if present is not None:
            return _leading(state, lambda closure: this.again.get(closure) == present)
    first = min(begun, default=state.waiting.first if state.waiting else 0)
    end = next((end for end in this.ends if end > first), None)
    room = _leading(
        state, lambda closure: closure not in this.again and (end is None or closure < end)
    )
    return room if begun or room >= full or first < this.sealed_below else 0


def _leading(state: CoordinatorState, belongs: Callable[[int], bool]) -> int:
    """How many of the closures that wait longest belong, as far as a round may need them."""
    first = itertools.islice(state.waiting, state.trainers_expected)
    return sum(1 for _ in itertools.takewhile(belongs, first))


def seal(state: CoordinatorState, below: int) -> tuple[ev.Event, ...]:
    """The program waits for closures below ``below``, before it schedules others.

    Where no trainer is to spare, a round that it left short ends with what is scheduled now: which
    closures make a round then follows from the program alone.
    """
    this = state.round
    end = None
    if this.tail and below > this.tail[0] and not _has_spare(state):
        end = this.tail[-1] + 1
    if below <= this.sealed_below and end is None:
        return ()
    return (ev.RoundsSealed(below=below, end=end),)


def _has_spare(state: CoordinatorState) -> bool:
    rule = state.consistency
    return not isinstance(rule, Sync) or rule.backup_workers > 0


def decide_round(state: CoordinatorState) -> tuple[ev.Event, ...]:
    """Ends the round when enough of it is prepared; late runs are dropped, to run again.

    Closures that changed nothing, as at the end of a trainer's data, come along, but nobody is late
    because of them.
    """
    this = state.round
    if not isinstance(state.consistency, Sync) or this.decided or not this.prepared:
        return ()
    if this.again and _is_made_anew(state):
        return () if _waits(state) else (ev.RoundDecided(closures=tuple(this.prepared)),)
    full = state.consistency.full(state.trainers_expected)
    if sum(run.has_changes for run in this.prepared.values()) < full and not _is_over(state, full):
        return ()
    late = [c for c, run in state.running.items() if not state.trainers[run.trainer].is_silenced]
    late.sort(reverse=True)
    return (
        *(_dropped(state, closure) for closure in late),
        *_cancelled(state, late),
        ev.RoundDecided(closures=tuple(this.prepared)),
    )


def _cancelled(state: CoordinatorState, late: list[int]) -> Iterator[ev.Event]:
    """Those of the late ones that are not to run again."""
    yield from unwanted(state, [closure for closure in late if closure in state.cancelling])
    if state.failed:
        # None of them was told of: what is made anew has rounds of its own, where nobody is late.
        others = (c for c in late if c not in state.cancelling)
        yield from (ev.ClosureCancelled(closure=closure) for closure in others)


def _is_made_anew(state: CoordinatorState) -> bool:
    """Whether the present round is one that was undone."""
    return next(iter(state.round.prepared)) in state.round.again


def _waits(state: CoordinatorState) -> bool:
    """Whether a closure of the present round, which is made anew, is not prepared."""
    this = state.round
    number = this.again[next(iter(this.prepared))]
    return any(this.again.get(closure) == number for closure in (*state.waiting, *state.running))


def undo_round(state: CoordinatorState) -> tuple[ev.Event, ...]:
    """What was being applied is not made, and its closures wait again."""
    return (ev.RoundUndone(),) if state.round.decided else ()


def _is_over(state: CoordinatorState, full: int) -> bool:
    """Whether nothing more can come to the round, which is not full of changes."""
    this = state.round
    if state.running:
        return False
    if state.failed or exhausted.spent(state) or len(this.prepared) >= state.trainers_expected:
        return True
    if state.waiting and _room(state, full):
        # Trainers that still run what was late for the last round are not waited for.
        return len(this.prepared) >= full and not next_trainers(
            state, Sync(state.trainers_expected - full)
        )
    # Who holds is the program, which schedules nothing meanwhile.
    return min(this.prepared) < this.sealed_below or state.holds > 0


def end_round(state: CoordinatorState) -> tuple[ev.Event, ...]:
    """All servers have made the changes of the round that was decided."""
    ended = (ev.ClosureFinished(closure=closure) for closure in sorted(state.round.decided))
    return (*ended, ev.RoundApplied()) if state.round.decided else ()


def end_drop(
    state: CoordinatorState, closure: int, trainer: int, attempt: int
) -> tuple[ev.Event, ...]:
    """A trainer says that it has given back what a run that was late took."""
    known = state.trainers.get(trainer)
    if known is None or known.is_silenced or known.dropping.get(closure) != attempt:
        return ()
    return (ev.DropEnded(trainer=trainer, closure=closure, attempt=attempt),)


def give_up_absent(state: CoordinatorState) -> tuple[ev.Event, ...]:
    """Rounds begin with the trainers that there are."""
    return (ev.AbsentGivenUp(),) if state.round.absent else ()


def _dropped(state: CoordinatorState, closure: int) -> ev.Event:
    run = state.running[closure]
    return ev.ClosureDropped(closure=closure, trainer=run.trainer, attempt=run.attempt)
