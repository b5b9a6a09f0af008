"""Rounds of synchronous training: which trainer runs the next closure, when a round is complete.

Pure. A round begins when the program has scheduled enough closures to fill it. It consists of the
closures that are prepared first, as many as make it full; the others are late, are dropped, and run
again later. A round for which too few closures are scheduled is *sealed* when the program waits for
one of them. Invariant: with no trainer lost and none to spare, the program alone determines which
closures make a round, and they run on the trainers in order, so the same program deals the same
data to the same trainers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator

from pstrain.consistency import Sync
from pstrain.coordinator import events as ev
from pstrain.coordinator import exhausted
from pstrain.coordinator.propagation import cancellations, failures_and_cancellations
from pstrain.coordinator.state import CoordinatorState


def next_trainers(state: CoordinatorState, rule: Sync) -> list[int]:
    """Returns the free trainers for the next closures of the current round, in order."""
    this = state.round
    full = rule.full(state.trainers_expected)
    if this.decided or state.trainers_expected - len(this.absent) < full:
        return []
    if this.old_rounds and this.absent:
        return []  # a round that is made again runs on the same trainers: wait for all
    begun = len(this.prepared) + len(state.running)
    if begun >= state.trainers_expected or not (begun or _room(state, full)):
        return []
    chosen = _chosen(state, begun, full)
    # Most calls end before this look at all closures, as one follows each end of a run.
    return chosen[: _room(state, full, len(chosen))] if chosen else []


def _chosen(state: CoordinatorState, begun: int, full: int) -> list[int]:
    """Returns the free trainers that may run a closure of the current round, in order."""
    known, slots = state.round.trainers, exhausted.slots(state)

    def free(trainers: Collection[int]) -> list[int]:
        found = set(slots.among(trainers))
        return sorted(found, key=lambda each: (state.trainers[each].drops, each))

    if not begun:
        return free(state.trainers)[: state.trainers_expected]
    chosen = free(known.fresh)[: state.trainers_expected - begun]
    # Trainers that ran a closure of this round stand in for lost ones, up to a full round only; a
    # round that is made again needs all its closures.
    old_rounds = state.round.old_rounds
    is_again = bool(old_rounds) and _any_begun(state) in old_rounds
    missing = (state.trainers_expected if is_again else full) - begun - len(chosen)
    return chosen + free(known.used)[:missing] if missing > 0 else chosen


def _room(state: CoordinatorState, full: int, wanted: int | None = None) -> int:
    """Returns how many of the waiting closures may be part of the current round.

    A round that is made again has the same closures as before. Another round begins when enough
    closures are scheduled to fill it, so that it never depends on how fast the program schedules.
    ``wanted``: more need not be counted.
    """
    this = state.round
    has_begun = bool(this.prepared or state.running)
    most = state.trainers_expected if wanted is None or not has_begun else wanted
    if this.old_rounds and (has_begun or state.waiting):
        present = this.old_rounds.get(_any_begun(state) if has_begun else state.waiting.first)
        if present is not None:
            return _leading(state, most, lambda closure: this.old_rounds.get(closure) == present)
    first = _first(state) if this.ends or not has_begun else 0
    if not has_begun and len(state.waiting) < full and first >= this.sealed_below:
        return 0
    end = next((end for end in this.ends if end > first), None)

    def is_part(closure: int) -> bool:
        return closure not in this.old_rounds and (end is None or closure < end)

    room = _leading(state, most, is_part)
    return room if has_begun or room >= full or first < this.sealed_below else 0


def _any_begun(state: CoordinatorState) -> int:
    """Returns a closure of the round that has begun; all of them are made again, or none."""
    return next(itertools.chain(state.round.prepared, state.running))


def _first(state: CoordinatorState) -> int:
    """Returns the first closure of the round, or of the next one if none has begun."""
    begun = itertools.chain(state.round.prepared, state.running)
    return min(begun, default=state.waiting.first if state.waiting else 0)


def _leading(state: CoordinatorState, most: int, belongs: Callable[[int], bool]) -> int:
    """Returns how many closures at the head of the queue, up to ``most``, belong."""
    first = itertools.islice(state.waiting, most)
    return sum(1 for _ in itertools.takewhile(belongs, first))


def seal(state: CoordinatorState, below: int) -> ev.Events:
    """Seals the rounds of closures below ``below``, for which the program waits.

    If there are no spare trainers, a round that the program left short ends with what is scheduled
    by now, so that the program alone determines which closures make a round.
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


def decide_round(state: CoordinatorState) -> ev.Events:
    """Decides the round once enough closures are prepared; late ones are dropped, to run again.

    Closures that changed nothing, as at the end of a trainer's data, are part of the round, but do
    not count towards filling it.
    """
    this = state.round
    if not isinstance(state.consistency, Sync) or this.decided or not this.prepared:
        return ()
    if this.old_rounds and _is_made_anew(state):
        # A closure that ended between two rounds, for want of data, counts to the later one.
        is_full = len(this.prepared) >= state.trainers_expected
        is_due = is_full or not _waits(state) or _is_out_of_data(state)
        return (ev.RoundDecided(closures=tuple(this.prepared)),) if is_due else ()
    full = state.consistency.full(state.trainers_expected)
    if not _has_changes(state, full) and not _is_over(state, full):
        return ()
    late = [c for c, run in state.running.items() if not state.trainers[run.trainer].is_silenced]
    late.sort(reverse=True)
    return (
        *(_dropped(state, closure) for closure in late),
        *_cancelled(state, late),
        ev.RoundDecided(closures=tuple(this.prepared)),
    )


def _has_changes(state: CoordinatorState, full: int) -> bool:
    """True if ``full`` of the prepared closures have changes."""
    prepared = state.round.prepared
    return len(prepared) >= full and sum(run.has_changes for run in prepared.values()) >= full


def _cancelled(state: CoordinatorState, late: list[int]) -> Iterator[ev.Event]:
    """Cancels those of the ``late`` closures that must not run again."""
    yield from cancellations(state, [closure for closure in late if closure in state.cancelling])
    if state.failed:
        # The program has the value of none of them: rounds that are made again have none late.
        others = (c for c in late if c not in state.cancelling)
        yield from (ev.ClosureCancelled(closure=closure) for closure in others)


def _is_made_anew(state: CoordinatorState) -> bool:
    """True if the current round was made before and undone."""
    return next(iter(state.round.prepared)) in state.round.old_rounds


def _waits(state: CoordinatorState) -> bool:
    """True if a closure of the current round, which is made again, is not prepared yet."""
    this = state.round
    number = this.old_rounds[next(iter(this.prepared))]
    return any(
        this.old_rounds.get(closure) == number for closure in (*state.waiting, *state.running)
    )


def _is_out_of_data(state: CoordinatorState) -> bool:
    """True if nothing runs, and nothing starts because a closure is at the end of all data.

    A round that is made again may find fewer elements: readers share the rows in another way.
    """
    return not state.running and exhausted.any_spent(state)


def undo_round(state: CoordinatorState) -> ev.Events:
    """Undoes the round that is being applied, if any; its closures wait again.

    Those whose runs were cancelled do not: the program was told that nothing of them is applied.
    """
    if not state.round.decided:
        return ()
    _, cancelled = _without_value(state)
    return (*cancellations(state, cancelled), ev.RoundUndone())


def _is_over(state: CoordinatorState, full: int) -> bool:
    """True if no more closures can join the round, though too few in it have changes."""
    this = state.round
    if state.running:
        return False
    if state.failed or any(run.has_failed for run in this.prepared.values()):
        return True
    if _is_out_of_data(state) or len(this.prepared) >= state.trainers_expected:
        return True
    if state.waiting and _room(state, full):
        # The round does not wait for trainers that still run late closures of the last round.
        return len(this.prepared) >= full and not next_trainers(
            state, Sync(state.trainers_expected - full)
        )
    # A program that holds scheduling, as for a save, schedules nothing meanwhile.
    return min(this.prepared) < this.sealed_below or state.holds > 0


def end_round(state: CoordinatorState) -> ev.Events:
    """Ends the closures of the decided round, which all servers have applied."""
    decided = state.round.decided
    if not decided:
        return ()
    finished = sorted(closure for closure, run in decided.items() if not run.has_failed)
    return (
        *(ev.ClosureFinished(closure=closure) for closure in finished),
        *failures_and_cancellations(state, *_without_value(state)),
        ev.RoundApplied(),
    )


def _without_value(state: CoordinatorState) -> tuple[list[int], list[int]]:
    """Returns the closures of the decided round that failed, and those that were cancelled."""
    ended = sorted(closure for closure, run in state.round.decided.items() if run.has_failed)
    cancelled = [closure for closure in ended if closure in state.cancelling]
    return [closure for closure in ended if closure not in state.cancelling], cancelled


def end_drop(state: CoordinatorState, closure: int, trainer: int, attempt: int) -> ev.Events:
    """Notes that a trainer has given back the elements of a late run."""
    known = state.trainers.get(trainer)
    if known is None or known.is_silenced or known.dropping.get(closure) != attempt:
        return ()
    return (ev.DropEnded(trainer=trainer, closure=closure, attempt=attempt),)


def give_up_absent(state: CoordinatorState) -> ev.Events:
    """Lets rounds begin without the trainers that have not joined."""
    return (ev.AbsentGivenUp(),) if state.round.absent else ()


def _dropped(state: CoordinatorState, closure: int) -> ev.Event:
    run = state.running[closure]
    return ev.ClosureDropped(closure=closure, trainer=run.trainer, attempt=run.attempt)
