"""The scheduler: applies decisions about closures and hands them to the trainers' outboxes.

Holds one lock around decide and apply, and knows neither gRPC nor what a closure computes.
Invariant: every closure that was submitted ends: with a value, an error, or CancelledError.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pstrain.coordinator import decide
from pstrain.coordinator import events as ev
from pstrain.coordinator.paces import Paces
from pstrain.coordinator.recovery import Legacy, Marks
from pstrain.coordinator.remote_value import RemoteValue
from pstrain.coordinator.state import CoordinatorState
from pstrain.errors import (
    AbortedError,
    CancelledError,
    DeadlineExceededError,
    UnavailableError,
)

logger = logging.getLogger(__name__)

_WARN_AFTER_S = 10.0


@dataclass(slots=True)
class Closure:
    """A function applied to arguments, pickled, and where its value goes.

    ``arguments`` keeps what the pickled form refers to, such as iterators, alive on the trainers.
    """

    id: int
    function_id: str
    pickled_arguments: bytes
    arguments: object
    value: RemoteValue
    error: Exception | None = None


@dataclass(slots=True)
class Outbox:
    """What one trainer is to be sent, in order; None ends its stream."""

    items: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)


@dataclass(frozen=True, slots=True)
class Run:
    """An order to a trainer: run this closure; ``attempt`` tells it from earlier runs.

    ``parts``: so many of its parts were decided in earlier runs.
    """

    closure: Closure
    attempt: int
    parts: int = 0


@dataclass(frozen=True, slots=True)
class Settled:
    """Closures whose end, which decides what becomes of their elements, was heard."""

    closures: tuple[int, ...]


class Ended(NamedTuple):
    """How a closure ended, as its trainer says; ``rows`` count if its end is heard."""

    closure: int
    attempt: int
    value: Any
    error: Exception | None
    needs_settling: bool = False
    rows: tuple[dict[str, Any], ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class DefineResource:
    id: str
    pickled: bytes


@dataclass(frozen=True, slots=True)
class DropResource:
    id: str


class Scheduler:
    """Thread-safe; ``submit`` and ``wait_idle`` block, nothing else does."""

    def __init__(
        self,
        *,
        ids: Iterator[int],
        capacity: int,
        attempts_max: int,
        trainer_timeout_s: float,
    ) -> None:
        self.changed = threading.Condition()
        self._capacity = capacity
        self._attempts_max = attempts_max
        self._trainer_timeout_s = trainer_timeout_s
        self._state = CoordinatorState()
        self._closures: OrderedDict[int, Closure] = OrderedDict()
        self._next_id = 0
        self._paces = Paces()
        self._rows: dict[int, Marks] = {}
        self._services: dict[int, set[str]] = {}
        self._ids = ids
        self._outboxes: dict[int, Outbox] = {}
        self._resources: dict[str, bytes] = {}
        self._errors: list[Exception] = []
        self._fatal: Exception | None = None
        self._alone_since_s = time.monotonic()
        self.retries = 0

    # -- the user's side

    def submit(self, function_id: str, pickled_arguments: bytes, arguments: object) -> RemoteValue:
        """Queues a closure; blocks while the queue is full; raises errors of earlier ones."""
        with self.changed:
            if self._fatal is not None:
                raise self._fatal
            if self._state.is_idle and not self._outboxes:
                self._alone_since_s = time.monotonic()
            self._wait(lambda: len(self._closures) < self._capacity, None, "room in the queue")
            number = next(self._ids)
            self._next_id = number + 1
            closure = Closure(
                number,
                function_id,
                pickled_arguments,
                arguments,
                RemoteValue(number, self.changed),
            )
            self._closures[closure.id] = closure
            self._apply(decide.schedule(self._state, closure.id))
            self._raise_errors(None)
            self._apply(decide.assign(self._state, self._is_quick))
            return closure.value

    def wait_idle(self, timeout_s: float | None) -> None:
        """Blocks until every closure has ended, then raises their errors, if any."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self.changed:
            self._wait(lambda: self._state.is_idle, deadline_s, "scheduled closures to end")
            self._raise_errors(deadline_s)

    def is_idle(self) -> bool:
        """Raises errors of ended closures (once those in flight have ended)."""
        with self.changed:
            self._raise_errors(None)
            return self._state.is_idle

    def add_resource(self, resource_id: str, pickled: bytes) -> None:
        with self.changed:
            self._resources[resource_id] = pickled
            for outbox in self._outboxes.values():
                outbox.items.put(DefineResource(resource_id, pickled))

    def drop_resource(self, resource_id: str) -> None:
        """May be called from a finalizer on any thread: touches the queues only."""
        self._resources.pop(resource_id, None)
        for outbox in list(self._outboxes.values()):
            outbox.items.put(DropResource(resource_id))

    def counts(self) -> dict[str, int]:
        with self.changed:
            return {
                "waiting": len(self._state.waiting),
                "running": len(self._state.running),
                "finished": self._state.finished_count,
                "trainers": len(self._state.trainers),
                "retries": self.retries,
                "losses": self._state.lost_count,
            }

    def low_water(self) -> int:
        """All closures below have ended for good."""
        with self.changed:
            return next(iter(self._closures), self._next_id)

    def live_trainers(self) -> frozenset[int]:
        """Indices of the trainers that take closures now, or whose loss is not settled yet."""
        with self.changed:
            return frozenset(self._state.trainers)

    def stop(self, error: Exception | None = None) -> None:
        """Ends what has not ended, for good; ``error`` is raised by whoever waits or asks."""
        with self.changed:
            self._fatal = self._fatal or error
            self._apply(decide.cancel_all(self._state))
            for outbox in self._outboxes.values():
                outbox.items.put(None)
            self.changed.notify_all()

    def give_up_if_alone(self) -> None:
        """Stops with UnavailableError when closures have waited too long without any trainer."""
        with self.changed:
            alone_s = time.monotonic() - self._alone_since_s
            if self._outboxes or self._state.is_idle or self._fatal is not None:
                return
            if alone_s > self._trainer_timeout_s:
                self.stop(
                    UnavailableError(
                        f"no trainer could be reached for {alone_s:.0f} s while "
                        f"{len(self._closures)} closures wait; start the cluster's 'worker' tasks"
                    )
                )

    # -- the trainers' side

    def trainer_joined(self, trainer: int, slots: int, outbox: Outbox) -> None:
        with self.changed:
            for resource_id, pickled in list(self._resources.items()):
                outbox.items.put(DefineResource(resource_id, pickled))
            self._outboxes[trainer] = outbox
            self._apply(decide.join_trainer(self._state, trainer, slots))
            self._apply(decide.assign(self._state, self._is_quick))

    def trainer_silenced(self, trainer: int) -> bool:
        """Takes a trainer for lost; False if it was not there. :meth:`trainer_lost` must follow."""
        with self.changed:
            outbox = self._outboxes.pop(trainer, None)
            if outbox is None:
                return False
            outbox.items.put(None)
            self._apply(decide.silence_trainer(self._state, trainer))
            return True

    def left_by(self, trainer: int) -> tuple[frozenset[str], Marks]:
        """Data services that a trainer read, and marks that count by what it said here."""
        with self.changed:
            services = frozenset(self._services.get(trainer, ()))
            return services, dict(self._rows.get(trainer, {}))

    def trainer_lost(self, trainer: int, legacy: Legacy) -> None:
        """What a silenced trainer left is settled; its other closures run again."""
        with self.changed:
            self._rows.pop(trainer, None)
            self._services.pop(trainer, None)
            for closure_id, (value, error) in legacy.outcomes.items():
                run = self._state.running.get(closure_id)
                if run is not None and run.trainer == trainer:
                    self._keep(self._closures[closure_id], value, error)
            self._apply(
                decide.lose_trainer(
                    self._state, trainer, legacy.left, attempts_max=self._attempts_max
                )
            )
            self._apply(decide.assign(self._state, self._is_quick))
            if not self._outboxes:
                self._alone_since_s = time.monotonic()
            self.changed.notify_all()

    def reads_services(self, trainer: int, services: Iterable[str]) -> None:
        """A trainer says which data services it reads from now on."""
        with self.changed:
            self._services.setdefault(trainer, set()).update(services)

    def results(self, trainer: int, ended: Iterable[Ended]) -> None:
        """In the order in which they ended."""
        with self.changed:
            settled = []
            for end in ended:
                if not decide.is_current(self._state, end.closure, trainer, end.attempt):
                    continue
                if end.needs_settling:
                    settled.append(end.closure)
                if end.rows:
                    known = self._rows.setdefault(trainer, {})
                    known.update((mark["reader"], mark) for mark in end.rows)
                closure = self._closures[end.closure]
                self._paces.note(closure.function_id, end.seconds)
                self._keep(closure, end.value, end.error)
                settle = decide.finish if end.error is None else decide.fail
                self._apply(settle(self._state, end.closure, trainer, end.attempt))
            if settled and trainer in self._outboxes:
                # Before anything that follows from the results, such as dropping an iterator.
                self._outboxes[trainer].items.put(Settled(tuple(settled)))
            self._apply(decide.assign(self._state, self._is_quick))
            self.changed.notify_all()

    def _is_quick(self, closure: int) -> bool:
        return self._paces.is_quick(self._closures[closure].function_id)

    @staticmethod
    def _keep(closure: Closure, value: Any, error: Exception | None) -> None:
        if error is None:
            closure.value._set(value, None)
        else:
            closure.error = error

    # -- effects, with the lock held

    def _apply(self, decision: decide.Decision) -> None:
        for event in decision.events:
            self._state.apply(event)
            match event:
                case ev.ClosureStarted():
                    parts = self._state.parts.get(event.closure, 0)
                    run = Run(self._closures[event.closure], event.attempt, parts)
                    self._outboxes[event.trainer].items.put(run)
                case ev.ClosureFinished():
                    del self._closures[event.closure]
                case ev.ClosureFailed():
                    self._end_failed(self._closures.pop(event.closure))
                case ev.ClosureCancelled():
                    cancelled = self._fatal or CancelledError(
                        f"closure {event.closure} was cancelled because another one failed or "
                        "the coordinator was closed; schedule it again"
                    )
                    self._closures.pop(event.closure).value._set(None, cancelled)
                case ev.ClosureReturned():
                    self.retries += 1
                    logger.warning("closure %d lost its trainer and runs again", event.closure)
        if decision.events:
            self.changed.notify_all()

    def _end_failed(self, closure: Closure) -> None:
        error = closure.error or AbortedError(
            f"closure {closure.id} lost its trainer {self._attempts_max} times; it may be what "
            "kills them: run it locally to see"
        )
        closure.value._set(None, error)
        self._errors.append(error)

    def _raise_errors(self, deadline_s: float | None) -> None:
        """Waits for what is in flight, then raises the first error; the others are notes of it."""
        if self._fatal is not None:
            raise self._fatal
        if not self._state.failed:
            return
        self._wait(lambda: not self._state.running, deadline_s, "closures in flight to end")
        self._apply(decide.report_errors(self._state))
        first, *others = self._errors
        self._errors = []
        for other in others:
            first.add_note(f"Also failed: {type(other).__name__}: {other}")
        raise first

    def _wait(self, condition: Callable[[], bool], deadline_s: float | None, what: str) -> None:
        """Waits with the lock; warns of long waits; gives up where no trainer is to be had."""
        warn_at_s = time.monotonic() + _WARN_AFTER_S
        while not condition():
            now_s = time.monotonic()
            if self._fatal is not None:
                raise self._fatal
            if deadline_s is not None and now_s >= deadline_s:
                raise DeadlineExceededError(
                    f"gave up waiting for {what}: {len(self._state.waiting)} closures wait, "
                    f"{len(self._state.running)} run, {len(self._state.trainers)} trainers live"
                )
            self.give_up_if_alone()
            if now_s >= warn_at_s and not self._outboxes:
                logger.warning("waiting for a trainer: none is connected")
                warn_at_s = now_s + _WARN_AFTER_S
            remaining_s = 1.0 if deadline_s is None else min(1.0, deadline_s - now_s)
            self.changed.wait(remaining_s)
