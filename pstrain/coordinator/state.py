"""Which closures wait, which run where, and which have failed.

``apply`` is total and deterministic: it never validates, never fails, never reads a clock.
Invariant: a closure is either waiting, running on exactly one live trainer, or ended, and a
trainer has a free slot for each that its closures leave, and none while they are more.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from pstrain.coordinator import events as ev


@dataclass(slots=True)
class Run:
    """Where a closure runs."""

    trainer: int
    attempt: int


@dataclass(slots=True)
class Trainer:
    """``is_silenced``: it gets no more closures, and its word counts for nothing."""

    slots: int
    is_silenced: bool = False
    running: dict[int, None] = field(default_factory=dict)


@dataclass(slots=True)
class CoordinatorState:
    """Not thread-safe: the service holds its lock around decide and apply."""

    waiting: deque[int] = field(default_factory=deque)
    running: dict[int, Run] = field(default_factory=dict)
    attempts: dict[int, int] = field(default_factory=dict)
    parts: dict[int, int] = field(default_factory=dict)  # decided, of closures that were returned
    trainers: dict[int, Trainer] = field(default_factory=dict)
    free: deque[int] = field(default_factory=deque)
    failed: list[int] = field(default_factory=list)
    finished_count: int = 0
    lost_count: int = 0

    @property
    def is_idle(self) -> bool:
        return not self.waiting and not self.running

    def apply(self, event: ev.Event) -> None:
        match event:
            case ev.ClosureQueued():
                self.waiting.append(event.closure)
                self.attempts[event.closure] = 0
            case ev.ClosureStarted():
                self._start(event)
            case ev.ClosureFinished():
                self._end(event.closure)
                self.finished_count += 1
            case ev.ClosureFailed():
                self._end(event.closure)
                self.failed.append(event.closure)
            case ev.ClosureReturned():
                self._leave_trainer(event.closure)
                self.waiting.appendleft(event.closure)
                if event.parts:
                    self.parts[event.closure] = max(event.parts, self.parts.get(event.closure, 0))
            case ev.ClosureCancelled():
                self._end(event.closure)
            case ev.TrainerJoined():
                self.trainers[event.trainer] = Trainer(event.slots)
                self.free.extend([event.trainer] * event.slots)
            case ev.TrainerSilenced():
                self.trainers[event.trainer].is_silenced = True
                self.free = deque(t for t in self.free if t != event.trainer)
            case ev.TrainerLost():
                self.trainers.pop(event.trainer, None)
                self.free = deque(t for t in self.free if t != event.trainer)
                self.lost_count += 1
            case ev.ErrorsReported():
                self.failed.clear()

    def _start(self, event: ev.ClosureStarted) -> None:
        if self.waiting and self.waiting[0] == event.closure:
            self.waiting.popleft()
        else:
            self.waiting.remove(event.closure)
        self.running[event.closure] = Run(event.trainer, event.attempt)
        self.attempts[event.closure] = event.attempt + 1
        trainer = self.trainers[event.trainer]
        if len(trainer.running) < trainer.slots:
            if self.free[0] == event.trainer:
                self.free.popleft()
            else:
                self.free.remove(event.trainer)
        trainer.running[event.closure] = None

    def _end(self, closure: int) -> None:
        if closure in self.running:
            self._leave_trainer(closure)
        elif self.waiting and self.waiting[0] == closure:
            self.waiting.popleft()
        else:
            self.waiting.remove(closure)
        self.attempts.pop(closure, None)
        self.parts.pop(closure, None)

    def _leave_trainer(self, closure: int) -> None:
        run = self.running.pop(closure)
        trainer = self.trainers.get(run.trainer)
        if trainer is not None:
            del trainer.running[closure]
            if not trainer.is_silenced and len(trainer.running) < trainer.slots:
                self.free.append(run.trainer)

    def check_invariants(self) -> None:
        """Raises AssertionError where two indexes disagree."""
        assert not set(self.waiting) & set(self.running)
        assert len(set(self.waiting)) == len(self.waiting)
        assert set(self.attempts) == set(self.waiting) | set(self.running)
        assert set(self.parts) <= set(self.attempts)
        for closure, run in self.running.items():
            assert closure in self.trainers[run.trainer].running
        for index, trainer in self.trainers.items():
            free = self.free.count(index)
            spare = max(trainer.slots - len(trainer.running), 0)
            assert free == (0 if trainer.is_silenced else spare)
            assert all(self.running[c].trainer == index for c in trainer.running)
        assert set(self.free) <= set(self.trainers)
