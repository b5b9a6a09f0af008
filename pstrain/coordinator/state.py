"""The scheduler's state: closures that wait, run, are part of the current round, or have failed.

``apply`` is total and deterministic: it never validates, never fails, never reads a clock.
Invariant: a closure is in exactly one place: waiting for its turn, waiting for its inputs, running
on one trainer, prepared for its round, in the round that is being applied, or ended. A live
trainer's free slots are its slots less its closures, or none if it has more closures than slots. A
closure that is bound to a trainer runs there or waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from pstrain.consistency import ASYNC, Consistency, Ssp, Sync
from pstrain.coordinator import events as ev
from pstrain.coordinator.clocks import Clocks
from pstrain.coordinator.closure_queues import ClosureQueues
from pstrain.coordinator.data_ends import DataEnds
from pstrain.coordinator.free_slots import FreeSlots
from pstrain.coordinator.near_slots import NearSlots
from pstrain.coordinator.priority_queue import PriorityQueue
from pstrain.coordinator.round_state import Round, Run

GIVEN_UP: Final = -1
"""Stands in ``failed`` for all closures that were given up at once."""


@dataclass(slots=True)
class Trainer:
    """A trainer that has joined. ``is_silenced``: it gets no closures, and is not listened to.

    ``prepared``: its closures that wait for their round to be decided.
    ``dropping``: by closure, the attempt that it still runs although it is late for its round.
    ``drops``: how many of its runs in a row were late. ``ended``: how many closures have left it.
    """

    slots: int
    is_silenced: bool = False
    running: dict[int, None] = field(default_factory=dict)
    prepared: dict[int, None] = field(default_factory=dict)
    dropping: dict[int, int] = field(default_factory=dict)
    drops: int = 0
    ended: int = 0


@dataclass(slots=True)
class CoordinatorState:
    """All that the scheduler decides by. Not thread-safe: decide and apply are called under a lock.

    ``trainer_indices``: those of the cluster's trainers. ``queues``: the closures that wait;
    ``waiting``: the one of these queues for any trainer. ``ended_runs``: by closure, how many of
    its runs ended, without a loss of their trainer, although it waits again. ``ends``: the ends of
    data that were met since there may have been more, as after the loss of a trainer. ``parts``: by
    closure of which any part was decided, how many parts that took no element were.
    ``cancelling``: running closures whose trainers were asked not to commit them. ``reported``:
    closures that run again after a restore although the program has their values: they end as
    before, whatever becomes of others. ``unsettled``: trainers that are silenced.
    """

    consistency: Consistency = ASYNC
    trainer_indices: Sequence[int] = (0,)
    queues: ClosureQueues = field(default_factory=ClosureQueues)
    running: dict[int, Run] = field(default_factory=dict)
    attempts: dict[int, int] = field(default_factory=dict)
    parts: dict[int, int] = field(default_factory=dict)
    cancelling: dict[int, ev.Reason] = field(default_factory=dict)
    reported: set[int] = field(default_factory=set)
    trainers: dict[int, Trainer] = field(default_factory=dict)
    unsettled: set[int] = field(default_factory=set)
    clocks: Clocks = field(default_factory=Clocks)
    free: FreeSlots = field(default_factory=FreeSlots)
    failed: list[int] = field(default_factory=list)
    finished_count: int = 0
    failed_count: int = 0
    cancelled_count: int = 0
    lost_count: int = 0
    holds: int = 0
    round: Round = field(default_factory=Round)
    rounds_count: int = 0
    dropped_count: int = 0
    ended_runs: Counter[int] = field(default_factory=Counter)
    ends: DataEnds = field(init=False)
    waiting: PriorityQueue = field(init=False)

    def __post_init__(self) -> None:
        self.waiting = self.queues.waiting
        self.round.absent = set(self.trainer_indices)
        if isinstance(self.consistency, Ssp):
            self.free = NearSlots(self.clocks, self.consistency.staleness)
        self.ends = DataEnds(self.free)

    @property
    def trainers_expected(self) -> int:
        """How many trainers the cluster has, whether they have joined or not."""
        return len(self.trainer_indices)

    @property
    def is_idle(self) -> bool:
        return not self.queues and self.is_quiet

    @property
    def is_quiet(self) -> bool:
        """True if no closure runs, is prepared, or is being applied."""
        return not self.running and not self.round.prepared and not self.round.decided

    @property
    def is_settled(self) -> bool:
        """True if no closure is under way and what lost trainers left, or held, is settled."""
        return self.is_quiet and not self.unsettled and not self.ends.releases

    @property
    def has_partly_committed(self) -> bool:
        """True if a closure waits of which a lost trainer has committed a part."""
        return any(closure in self.waiting for closure in self.parts)

    def has_prepared(self, trainer: int) -> bool:
        """True if a closure that ``trainer`` ran waits for its round to be decided."""
        known = self.trainers.get(trainer)
        return known is not None and bool(known.prepared)

    def has_ready(self, closures: int) -> bool:
        """True if the queue is empty, and a trainer with a free slot runs below ``closures``."""
        return not self.waiting and self.free.has_below(closures)

    def apply(self, event: ev.Event) -> None:
        match event:
            case ev.ClosureQueued():
                self._queue(event)
            case ev.ClosureStarted():
                self._start(event)
            case ev.ClosureFinished():
                self._finish(event.closure)
            case ev.ClosureFailed():
                self._tick(event.closure)
                self._end(event.closure)
                self.failed.append(event.closure)
                self.failed_count += 1
            case ev.ClosureReturned():
                self._return(event)
            case ev.EndMet():
                self._meet_end(event)
            case ev.ClosureCancelled():
                self._end(event.closure)
                self.cancelled_count += 1
            case ev.CancelAsked():
                self.cancelling[event.closure] = event.reason
            case ev.CancelGranted():
                pass  # it ends with its run
            case ev.CancelRefused():
                del self.cancelling[event.closure]
            case ev.TrainerJoined():
                self._join(event.trainer, event.slots)
            case ev.TrainerSilenced():
                self._silence(event.trainer)
            case ev.TrainerLost():
                self.trainers.pop(event.trainer, None)
                self.unsettled.discard(event.trainer)
                self.lost_count += 1
                self._forget_ends()  # what it had not used is given to others
            case ev.DataRenewed():
                self._forget_ends()
            case ev.ReleaseBegun():
                self.ends.releases += 1
            case ev.ReleaseEnded():
                self.ends.releases -= 1
                self._forget_ends()
            case ev.ClosureReopened():
                self._reopen(event)
            case ev.PartsRestored():
                self.parts = {c: count for c, count in event.parts if c in self.attempts}
            case ev.WorkGivenUp():
                self.failed.append(GIVEN_UP)
            case ev.SchedulingHeld():
                self.holds += 1
            case ev.SchedulingResumed():
                self.holds -= 1
            case ev.ErrorsReported():
                self.failed.clear()
                self.round.tail.clear()
                self._forget_ends()  # a program that goes on asks all trainers again
            case _:
                self._apply_to_round(event)

    def _queue(self, event: ev.ClosureQueued) -> None:
        self._note_options(event)
        self.round.count(event.closure, self.trainers_expected)
        self.queues.add(event.closure, event.inputs)

    def _finish(self, closure: int) -> None:
        self._tick(closure)
        self._end(closure)
        self.finished_count += 1
        if closure in self.queues.dependencies.dependants:
            # In rounds, closures run in the order of their numbers.
            self.queues.release(closure, in_order=isinstance(self.consistency, Sync))

    def _return(self, event: ev.ClosureReturned) -> None:
        closure = event.closure
        self._leave_trainer(closure)
        self.queues.add_first(closure)
        self.cancelling.pop(closure, None)
        if event.parts is not None:
            self.parts[closure] = max(event.parts, self.parts.get(closure, 0))

    def _meet_end(self, event: ev.EndMet) -> None:
        """Queues a closure again, and lifts its trainer's clock to the slowest of the others.

        The trainer may get no more work, and ``ssp`` must not hold up the others because of it. An
        end that may have been met before data came back says nothing any more.
        """
        closure, trainer = event.closure, event.trainer
        self.clocks[trainer] = max(self.clocks[trainer], self.clocks.slowest_but(trainer))
        if self.running[closure].renewals == self.ends.renewals:
            self.ends.note(closure, trainer, event.iterators)
        self._leave_trainer(closure)
        if isinstance(self.consistency, Sync):
            self.waiting.insert(closure)
        else:
            self.queues.put_back(closure)
        self.ended_runs[closure] += 1

    def _forget_ends(self) -> None:
        self.ends.forget()
        self.clocks.count_all()

    def _reopen(self, event: ev.ClosureReopened) -> None:
        closure = event.closure
        self._note_options(event)
        self.queues.add_first(closure)
        self.reported.add(closure)
        if event.round is not None:
            self.round.old_rounds[closure] = event.round

    def _note_options(self, event: ev.ClosureQueued | ev.ClosureReopened) -> None:
        self.attempts[event.closure] = 0
        self.queues.note_options(event.closure, event.trainer, event.priority)
        if event.trainer is None and event.iterators:
            self.ends.reads[event.closure] = event.iterators

    def _apply_to_round(self, event: ev.Event) -> None:
        this = self.round
        match event:
            case ev.ClosurePrepared():
                run = self._leave_trainer(event.closure)
                run.has_changes, run.has_failed = event.has_changes, event.has_failed
                this.prepared[event.closure] = run
                self.trainers[run.trainer].prepared[event.closure] = None
            case ev.ClosureDropped():
                self._drop(event.closure)
            case ev.DropEnded():
                trainer = self.trainers[event.trainer]
                del trainer.dropping[event.closure]
                self.free.give_back(event.trainer)
            case ev.RoundsSealed():
                this.sealed_below = max(this.sealed_below, event.below)
                if event.end is not None:
                    this.ends.append(event.end)
                    this.tail.clear()
            case ev.RoundDecided():
                this.decided = {c: this.prepared.pop(c) for c in event.closures}
                for run in this.decided.values():
                    if run.trainer in self.trainers:
                        self.trainers[run.trainer].drops = 0
                        self.trainers[run.trainer].prepared.clear()
            case ev.RoundApplied():
                self.rounds_count += 1
                this.number += 1
                this.trainers.begin()
                if this.ends:
                    first = min(self.attempts, default=this.ends[-1])
                    this.ends = [end for end in this.ends if end > first]
            case ev.AbsentGivenUp():
                this.absent.clear()
            case ev.TrainersAwaited():
                this.absent.update(event.trainers)
            case ev.RoundUndone():
                for closure in sorted(this.decided, reverse=True):
                    self.waiting.appendleft(closure)
                    self.ends.end(closure)
                    self.cancelling.pop(closure, None)
                    this.old_rounds[closure] = this.number
                this.number += 1
                this.decided.clear()
                this.trainers.begin()

    def _drop(self, closure: int) -> None:
        run = self._leave_trainer(closure)
        self.free.take(run.trainer)  # until its run has ended
        trainer = self.trainers[run.trainer]
        trainer.dropping[closure] = run.attempt
        trainer.drops += 1
        self.waiting.insert(closure)
        self.ends.end(closure)
        self.ended_runs[closure] += 1
        self.dropped_count += 1

    def _join(self, trainer: int, slots: int) -> None:
        self.trainers[trainer] = Trainer(slots)
        self.clocks[trainer] = self.clocks.slowest
        self.free.add(trainer, slots)
        self.round.trainers.join(trainer)
        self.unsettled.discard(trainer)
        self.round.absent.discard(trainer)

    def _silence(self, trainer: int) -> None:
        """Silences a trainer; its prepared closures, which are not decided, count as running."""
        known = self.trainers[trainer]
        known.is_silenced = True
        self.clocks.discard(trainer)
        self.free.discard(trainer)
        self.round.trainers.leave(trainer)
        self.unsettled.add(trainer)
        for closure in known.prepared:
            self.running[closure] = self.round.prepared.pop(closure)
            known.running[closure] = None
        known.prepared.clear()

    def _tick(self, closure: int) -> None:
        run = self.running.get(closure) or self.round.decided.get(closure)
        if run is not None and closure not in self.queues.bound and run.trainer in self.clocks:
            self.clocks[run.trainer] += 1

    def _start(self, event: ev.ClosureStarted) -> None:
        if not self.running and not self.round.prepared:
            self.round.trainers.begin()
        self.queues.remove(event.closure)
        if self.ends.trainers:
            self.ends.leave_queue(event.closure)
            if event.closure not in self.queues.bound:
                self.clocks.count(event.trainer)
        self.running[event.closure] = Run(event.trainer, event.attempt, renewals=self.ends.renewals)
        self.attempts[event.closure] = event.attempt + 1
        self.free.take(event.trainer)
        self.trainers[event.trainer].running[event.closure] = None
        self.round.trainers.use(event.trainer)

    def _end(self, closure: int) -> None:
        if closure in self.running:
            self._leave_trainer(closure)
        elif closure in self.round.prepared:
            run = self.round.prepared.pop(closure)
            del self.trainers[run.trainer].prepared[closure]
        elif closure in self.round.decided:
            del self.round.decided[closure]
        else:
            self.queues.remove(closure)
        self.attempts.pop(closure, None)
        self.round.old_rounds.pop(closure, None)
        self.parts.pop(closure, None)
        self.cancelling.pop(closure, None)
        self.reported.discard(closure)
        self.ended_runs.pop(closure, None)
        self.ends.reads.pop(closure, None)
        if self.ends.trainers:
            self.ends.end(closure)
        self.queues.forget(closure)

    def _counted(self, trainer: Trainer) -> bool:
        """True if a trainer runs a closure that its clock counts."""
        return any(closure not in self.queues.bound for closure in trainer.running)

    def _leave_trainer(self, closure: int) -> Run:
        run = self.running.pop(closure)
        trainer = self.trainers.get(run.trainer)
        if trainer is not None:
            del trainer.running[closure]
            trainer.ended += 1
            if run.trainer in self.ends.trainers and not self._counted(trainer):
                self.clocks.leave_out(run.trainer)
            if not trainer.is_silenced:
                self.free.give_back(run.trainer)
        return run
