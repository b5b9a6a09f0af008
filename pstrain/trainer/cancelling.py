"""Runs at a trainer whose end is not told yet, and which of them may still be cancelled.

Commits nothing and knows no server. Invariant: a run that was cancelled commits nothing, for it is
cancelled before it begins to, or not at all; what is remembered of a run is forgotten with its end.
"""

from __future__ import annotations

import math
import threading
import time
from abc import ABC
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pstrain.errors import CancelledError
from pstrain.trainer.overdue import Overdue
from pstrain.trainer.staging import ClosureRun
from pstrain.wire import trainer_pb2 as pb

Send = Callable[[list[pb.ClosureResult]], None]
Fail = Callable[[pb.ClosureResult, Exception], pb.ClosureResult]
Key = tuple[int, int]
"""A closure, and the attempt at it."""


class OpenRuns:
    """Of one session. Not thread-safe."""

    def __init__(self) -> None:
        self._begun: dict[Key, ClosureRun | None] = {}
        self._cancelled: set[Key] = set()

    def admit(self, keys: Iterable[Key]) -> None:
        """They were ordered, and wait here for a thread."""
        self._begun.update(dict.fromkeys(keys))

    def begin(self, run: ClosureRun) -> None:
        """A thread runs it."""
        self._begun[run.token.closure, run.token.attempt] = run

    def end(self, key: Key) -> ClosureRun | None:
        """Its end is told."""
        if self._cancelled:
            self._cancelled.discard(key)
        return self._begun.pop(key, None)

    def __contains__(self, key: Key) -> bool:
        return key in self._begun

    def run(self, key: Key) -> ClosureRun | None:
        """None where it has not begun."""
        return self._begun.get(key)

    def cancel(self, key: Key) -> None:
        """Nothing of it is to be committed."""
        self._cancelled.add(key)

    def is_cancelled(self, run: ClosureRun) -> bool:
        cancelled = self._cancelled
        return bool(cancelled) and (run.token.closure, run.token.attempt) in cancelled


def cancelled_error(run: ClosureRun) -> CancelledError:
    """What a cancelled run ends with."""
    return CancelledError(f"closure {run.token.closure} was cancelled while it ran")


@dataclass(slots=True, eq=False)
class Pending:
    """A part that waits for its turn. ``result`` None: its closure goes on.

    ``note``: what the closure says of this part, for the case that its end is not heard.
    ``held_s``: since when nobody has waited for it; None where a thread does.
    """

    run: ClosureRun
    result: pb.ClosureResult | None
    held_s: float | None = None
    note: str | None = None
    is_busy: bool = False
    is_done: bool = False
    error: Exception | None = None


class Cancelling(ABC):
    """What of a committer is about runs that nobody wants any more. Thread-safe."""

    _overdue: Overdue

    def __init__(self, send: Send, fail: Fail) -> None:
        self._send = send
        self._fail = fail
        # Taken by itself where nobody waits: a condition takes its lock by calls of Python.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._open = OpenRuns()
        self.is_traced = False
        self._pending: dict[ClosureRun, Pending] = {}

    def admit(self, keys: Iterable[Key]) -> None:
        """These were ordered: from now on they can be cancelled."""
        # Without the lock: nobody can cancel what is not ordered, and who orders is who cancels.
        self._open.admit(keys)

    def cancel(self, key: Key) -> bool:
        """True if nothing of a run is committed, nor will be: it ends as one that failed.

        False where it has begun to commit, or its end is told.
        """
        with self._lock:
            run = self._open.run(key)
            pending = None if run is None else self._pending.get(run)
            if key not in self._open or (run is not None and (run.part or run.is_ending)):
                return False
            if pending is not None and pending.is_busy:
                return False
            self._open.cancel(key)
            if pending is not None:
                self._refuse(pending)
            return True

    def check_wanted(self, run: ClosureRun) -> None:
        """CancelledError where a run was cancelled that has yet to begin."""
        # Without the lock: its last word is what counts.
        if self._open.is_cancelled(run):
            raise cancelled_error(run)

    def _tell(self, results: list[pb.ClosureResult]) -> None:
        """Their closures have ended here."""
        for result in results:
            run = self._open.end((result.id, result.attempt))
            if run is not None and self.is_traced:
                result.commit_seconds = time.perf_counter() - run.ran_s
        self._send(results)

    def _last_word(self, run: ClosureRun, result: pb.ClosureResult) -> pb.ClosureResult:
        """The result that is told of a run, which nobody can cancel from now on."""
        with self._lock:
            if self._open.is_cancelled(run):
                run.drop_changes()
                return self._fail(result, cancelled_error(run))
            run.is_ending = True
            return result

    def _refuse(self, pending: Pending) -> None:
        """With the lock: nothing of what waits is committed, because its closure was cancelled."""
        error = cancelled_error(pending.run)
        if pending.result is None:
            pending.error, pending.is_done = error, True
            self._pending.pop(pending.run, None)
        else:
            pending.result = self._fail(pending.result, error)
        if pending.held_s is not None:
            pending.held_s = -math.inf  # it is overdue
            self._overdue.note()
        pending.run.drop_changes()
        self._changed.notify_all()
