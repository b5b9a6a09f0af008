"""Open runs at a trainer, whose end is not reported yet, and which of them may be cancelled.

Commits nothing and knows no server. Invariant: a run is cancelled before it begins to commit or not
at all, so a cancelled run commits nothing; the record of a run is dropped when its end is reported.
"""

from __future__ import annotations

import math
import threading
import time
from abc import ABC
from collections.abc import Callable, Iterable

from pstrain.errors import CancelledError
from pstrain.trainer.flush_timer import FlushTimer
from pstrain.trainer.staging import ClosureRun, PendingPart
from pstrain.wire import trainer_pb2 as pb

Send = Callable[[list[pb.ClosureResult]], None]
Fail = Callable[[pb.ClosureResult, Exception], pb.ClosureResult]
Key = tuple[int, int]
"""(closure, attempt): identifies a run."""


class OpenRuns:
    """The open runs of one session. Not thread-safe."""

    def __init__(self) -> None:
        self._begun: dict[Key, ClosureRun | None] = {}
        self._cancelled: set[Key] = set()

    def admit(self, keys: Iterable[Key]) -> None:
        """Adds runs that were ordered and wait for a thread."""
        self._begun.update(dict.fromkeys(keys))

    def begin(self, run: ClosureRun) -> None:
        """Notes that a thread has begun a run."""
        self._begun[run.token.closure, run.token.attempt] = run

    def end(self, key: Key) -> ClosureRun | None:
        """Removes a run whose end is reported; returns it if it had begun."""
        if self._cancelled:
            self._cancelled.discard(key)
        return self._begun.pop(key, None)

    def __contains__(self, key: Key) -> bool:
        return key in self._begun

    def run(self, key: Key) -> ClosureRun | None:
        """Returns the run; None if it has not begun or is not open."""
        return self._begun.get(key)

    def cancel(self, key: Key) -> None:
        """Marks a run as cancelled: nothing of it may be committed."""
        self._cancelled.add(key)

    def is_cancelled(self, run: ClosureRun) -> bool:
        cancelled = self._cancelled
        return bool(cancelled) and (run.token.closure, run.token.attempt) in cancelled


def cancelled_error(run: ClosureRun) -> CancelledError:
    """Returns the error of a cancelled run."""
    return CancelledError(f"closure {run.token.closure} was cancelled while it ran")


class Cancelling(ABC):
    """The part of a committer that cancels runs. Thread-safe."""

    _flush_timer: FlushTimer

    def __init__(self, send: Send, fail: Fail) -> None:
        self._send = send
        self._fail = fail
        # Code that does not wait takes the lock itself: a Condition takes it by Python calls.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0  # threads that wait for a change; mostly there are none
        self._open = OpenRuns()
        self.is_traced = False
        self._pending: dict[ClosureRun, PendingPart] = {}

    def admit(self, keys: Iterable[Key]) -> None:
        """Adds runs that were ordered; from now on they can be cancelled."""
        # Without the lock: the thread that admits runs is the one that cancels them.
        self._open.admit(keys)

    def cancel(self, key: Key) -> bool:
        """Cancels a run, which then fails; True if nothing of it is or will be committed.

        False if the run has begun to commit, or its end is reported.
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
                self._fail_cancelled(pending)
            return True

    def check_wanted(self, run: ClosureRun) -> None:
        """Raises CancelledError if a run was cancelled before it began."""
        # Without the lock: a later cancel is still noticed at the run's end.
        if self._open.is_cancelled(run):
            raise cancelled_error(run)

    def _report(self, results: list[pb.ClosureResult]) -> None:
        """Sends results of closures that have ended here."""
        for result in results:
            run = self._open.end((result.id, result.attempt))
            if run is not None and self.is_traced:
                result.commit_seconds = time.perf_counter() - run.ran_s
        self._send(results)

    def _final_result(self, run: ClosureRun, result: pb.ClosureResult) -> pb.ClosureResult:
        """Returns the result to report of a run, which cannot be cancelled from now on."""
        with self._lock:
            if self._open.is_cancelled(run):
                run.drop_changes()
                return self._fail(result, cancelled_error(run))
            run.is_ending = True
            return result

    def _fail_cancelled(self, pending: PendingPart) -> None:
        """Drops the changes of a cancelled closure's part. Callers hold the lock."""
        error = cancelled_error(pending.run)
        if pending.result is None:
            pending.error, pending.is_done = error, True
            self._pending.pop(pending.run, None)
        else:
            pending.result = self._fail(pending.result, error)
        if pending.held_s is not None:
            pending.held_s = -math.inf  # it is overdue
            self._flush_timer.arm()
        pending.run.drop_changes()
        self._tell_change()

    def _await_change(self, timeout_s: float) -> None:
        """Waits until parts or turns may have changed. Callers hold the lock."""
        self._waiting += 1
        try:
            self._changed.wait(timeout_s)
        finally:
            self._waiting -= 1

    def _tell_change(self) -> None:
        """Wakes the threads that wait for a change. Callers hold the lock."""
        if self._waiting:
            self._changed.notify_all()
