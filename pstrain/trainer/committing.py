"""Decides when closures commit their changes, and which commit together: in element order.

The end of a closure with changes is held back briefly: its thread goes on, and the pull of the next
closure travels with the preparation and the decision, which saves a message to each server. A
thread that has nothing else to do commits what was held back, and a thread of its own commits what
is overdue. Changes that servers refuse fail their closure; the others of the group are committed
again without them. Must not know how a group is committed: that is ``two_phase_commit``. Invariant:
a thread that waits for a turn has no element in a part that is not ready, so no wait is endless.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from typing import Final

from pstrain.errors import CancelledError
from pstrain.trainer.cancelling import Fail, Send, cancelled_error
from pstrain.trainer.client import RemoteParameters
from pstrain.trainer.decisions import encoded_notes
from pstrain.trainer.flush_timer import FlushTimer
from pstrain.trainer.outgoing import Answers, Pulls
from pstrain.trainer.staging import ClosureRun, PendingPart, notes_max_bytes
from pstrain.trainer.turns import Receipt
from pstrain.trainer.two_phase_commit import GiveUp, TwoPhaseCommit
from pstrain.vocabulary import StepToken
from pstrain.wire import trainer_pb2 as pb

HELD_S: Final = 0.05
"""How long the end of a closure is held back, up to twice, for the next pull of its thread.

Each check for overdue ends takes the interpreter from the steps, so it must not be too short.
"""

_HELD_PER_THREAD: Final = 2
"""The ends held, each with its changes in memory, before a thread waits for the turn of its own."""

_FOLLOWER_MAX_BYTES: Final = 8 << 20
"""The most bytes of changes with which a closure may commit along with an earlier one.

More would gain nothing, as bytes then take longer than messages, and a message has a limit.
"""

_RECHECK_S: Final = 1.0
_CLOSE_TIMEOUT_S: Final = 5.0


class Committer(TwoPhaseCommit):
    """Commits the closures of one trainer in one session. Thread-safe.

    ``trainer`` names this incarnation, by which servers fence it. ``send`` sends results to the
    coordinator. ``give_up`` ends the stream to the coordinator, which then takes the trainer for
    lost and settles what it left. ``fail`` turns a result into that of a closure that failed with
    an error. ``closures``: how many closures the trainer runs at a time.
    """

    def __init__(
        self,
        parameters: RemoteParameters,
        trainer: str,
        send: Send,
        give_up: GiveUp,
        fail: Fail,
        closures: int = 1,
    ) -> None:
        super().__init__(parameters, trainer, send, give_up, fail, closures)
        self._notes_max_bytes = notes_max_bytes(closures)
        self._held_max = _HELD_PER_THREAD * closures
        self._flush_timer = FlushTimer(self._commit_overdue, HELD_S)

    def new_run(
        self, token: StepToken, parts_decided: int, held: PendingPart | None = None
    ) -> ClosureRun:
        """Begins a run that commits here.

        ``parts_decided``: as in ClosureRun. ``held``: what the last run of the same thread left.
        """
        limit = self._notes_max_bytes
        run = ClosureRun(token, self, parts_decided, held, notes_max_bytes=limit)
        self._open.begin(run)
        return run

    def take(self, run: ClosureRun, source: int, receipt: Receipt) -> None:
        """Notes that a closure took an element; callers keep to the order of the source."""
        with self._lock:
            run.tickets.append(self._turns.take(source, receipt, run))

    def commit_part(self, run: ClosureRun, pulls: Pulls) -> Answers:
        """Commits the current part of a closure that goes on; pulls may go along."""
        self.commit_held(run, {})
        if run.was_decided:
            run.next_part()
            return {}
        return self._commit(run, None, pulls)

    def commit_held(self, run: ClosureRun, pulls: Pulls) -> Answers:
        """Commits what the run's thread held back, if its turn has come.

        A run that has taken no element waits for the turn, so that changes of a thread stay in
        order, and so does each run of a trainer that runs one at a time. Others do not if they have
        taken elements, because closures whose turn is earlier may wait for these.
        """
        answers: Answers = {}
        mine: set[PendingPart] = set()
        held = [] if run.held is None else run.held.waiting()
        patiently = not run.tickets or not self._is_side_by_side
        for part in held:
            while group := self._wait_for_turn(part, patiently=patiently):
                answers |= self._commit_group(group, pulls)
                mine.update(group)
            if not part.is_done:
                break
        # What another thread has committed meanwhile may be missing in the answers.
        is_complete = all(part in mine for part in held if part.is_done)
        return answers if is_complete else {}

    def end(self, run: ClosureRun, result: pb.ClosureResult) -> PendingPart | None:
        """Ends a closure; returns what its thread has to commit with its next pull, if anything.

        The result of a closure that failed or made no changes is sent at once. Raises
        CancelledError once the trainer was given up, because no end may be reported then.
        """
        self._check_open()
        if result.WhichOneof("outcome") == "error_json":
            run.drop_changes()
        if not run.tickets and (not run.has_changes or run.was_decided):
            # Without the lock: there is nothing to commit, even if it is cancelled meanwhile.
            is_cancelled = self._open.is_cancelled(run)
            self._report([self._fail(result, cancelled_error(run)) if is_cancelled else result])
        elif run.has_changes:
            return self._hold(run, result)
        else:
            self._commit(run, result, {})
        return run.held

    def flush(self, held: PendingPart | None) -> None:
        """Commits what was held back by a thread that runs no closure now, and all commits left."""
        if held is not None:
            self._commit_held_alone(held)
        self._commit_left()

    def close(self) -> None:
        """Stops committing; waits, bounded, for commits under way and left. Idempotent."""
        until_s = time.monotonic() + _CLOSE_TIMEOUT_S
        with self._lock:
            self._closed = True
            self._tell_change()
            self._await_others(until_s)
        # The timer thread commits nothing beyond what was waited for above.
        self._flush_timer.close(max(0.0, until_s - time.monotonic()))
        if self._left:
            # A coordinator that leaves settles nothing: parts would stay half applied.
            last = threading.Thread(target=self._commit_last, name="last-commits", daemon=True)
            last.start()
            last.join(max(0.0, until_s - time.monotonic()))
        with self._lock:
            self._await_others(until_s)  # which may have sent them instead

    def _await_others(self, until_s: float) -> None:
        """Waits, bounded, for commits that other threads make. Callers hold the lock."""
        while self._left.are_under_way or any(p.is_busy for p in self._pending.values()):
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                break
            self._await_change(left_s)

    def _commit_last(self) -> None:
        with contextlib.suppress(CancelledError):
            self._commit_left()

    def _hold(self, run: ClosureRun, result: pb.ClosureResult) -> PendingPart:
        """Holds back the end of a closure; what its thread held before is committed first.

        Not if that still waits for its turn: it then commits along with what comes before it, or
        with this end at the latest. The thread waits for it only if much is held, or if the trainer
        runs one closure at a time.
        """
        earlier, run.held = run.held, None
        if earlier is not None and not earlier.waiting():
            earlier = None
        pending = PendingPart(run, result, held_s=time.monotonic(), earlier=earlier)
        # The earlier closure may wait for elements of this one, which must be pending by then.
        if earlier is not None and not run.tickets:
            self._commit_held_alone(earlier)
        self._add(pending)
        self._flush_timer.arm()
        is_much = not self._is_side_by_side or len(self._pending) > self._held_max
        if earlier is not None and is_much:
            self._commit_held_alone(earlier)
        return pending

    def _commit_held_alone(self, held: PendingPart) -> None:
        for part in held.waiting():
            while group := self._wait_for_turn(part, patiently=True):
                self._commit_group(group, {})

    def _add(self, pending: PendingPart) -> None:
        with self._lock:
            self._pending[pending.run] = pending
            if self._open.is_cancelled(pending.run):
                self._fail_cancelled(pending)
            # Other threads may wait for this part, to commit with it.
            self._tell_change()

    def _commit_overdue(self) -> bool:
        """Commits what was held or left for too long, if its turn has come; True if any is left."""
        until_s = time.monotonic() - HELD_S
        with self._lock:
            held = [p for p in self._pending.values() if p.held_s is not None]
        for pending in held:
            if pending.held_s is not None and pending.held_s <= until_s:
                with contextlib.suppress(CancelledError):
                    group = self._wait_for_turn(pending, patiently=False)
                    if group:
                        self._commit_group(group, {})
        with contextlib.suppress(CancelledError):
            self._commit_left(until_s)
        return bool(self._left) or any(not pending.is_done for pending in held)

    def _commit(self, run: ClosureRun, result: pb.ClosureResult | None, pulls: Pulls) -> Answers:
        """Commits a part, alone or in a group; blocks until it is decided and fully applied."""
        # A closure that ends here has a result and needs no notes.
        note = encoded_notes(run) if result is None else None
        pending = PendingPart(run, result, note=note)
        self._add(pending)
        answers: Answers = {}
        while not pending.is_done:
            group = self._wait_for_turn(pending, patiently=True)
            if group:
                answers |= self._commit_group(group, pulls)
        if pending.error is not None:
            raise pending.error
        return answers

    def _wait_for_turn(self, pending: PendingPart, *, patiently: bool) -> list[PendingPart]:
        """Waits until ``pending`` may commit and returns the group that commits with it.

        Returns an empty list if another thread has committed it meanwhile, or, unless
        ``patiently``, if its turn has not come yet.
        """
        with self._lock:
            while not pending.is_done:
                if self._closed and not pending.is_busy:
                    self._pending.pop(pending.run, None)
                    self._check_open()
                group = None if pending.is_busy else self._group(pending.run)
                if group is not None:
                    for member in group:
                        member.is_busy = True
                    return group
                if not patiently and not pending.is_busy:
                    break
                self._await_change(_RECHECK_S)
            return []

    def _group(self, run: ClosureRun) -> list[PendingPart] | None:
        if not run.tickets:  # it waits for no other
            return [self._pending[run]]
        free = {run for run, pending in self._pending.items() if not pending.is_busy}
        followers = [each for each in free if each is not run and _is_small(each)]
        members = self._turns.group(run, free, followers)
        return None if members is None else [self._pending[member] for member in members]

    def _commit_group(self, group: list[PendingPart], pulls: Pulls) -> Answers:
        """Commits a group and tells the threads that wait for its members.

        If a server refuses changes of some members, the others stay pending, to be committed again.
        Raises CancelledError if the trainer was given up.
        """
        answers: Answers = {}
        errors: dict[PendingPart, Exception] = {}
        try:
            self._perform(group, pulls, answers)
        except Exception as raised:
            errors = self._failed_members(group, raised)
        failed = self._end_group(group, errors)
        if failed:
            self._report(failed)
        for error in errors.values():
            if isinstance(error, CancelledError):
                raise error
        return answers

    def _end_group(
        self, group: list[PendingPart], errors: dict[PendingPart, Exception]
    ) -> list[pb.ClosureResult]:
        """Marks members as committed, failed, or pending again.

        Returns the results of failed closures that took no element, which can be sent at once.
        """
        failed = []
        with self._lock:
            self._tries += bool(errors)
            for member in group:
                member.is_busy = False
                error = errors.get(member)
                if errors and error is None:
                    continue
                if error is None or isinstance(error, CancelledError) or member.held_s is None:
                    member.error = error
                elif self._hold_as_failed(member, error):
                    continue
                elif member.result is not None:
                    failed.append(member.result)
                member.is_done = True
                del self._pending[member.run]
            self._tell_change()
        return failed

    def _hold_as_failed(self, member: PendingPart, error: Exception) -> bool:
        """Makes a held member one that failed; its elements are used up when its turn comes.

        False if it took no element.
        """
        assert member.result is not None
        member.result = self._fail(member.result, error)
        member.run.drop_changes()
        member.held_s = -math.inf  # it is overdue
        self._flush_timer.arm()
        return bool(member.run.tickets)


def _is_small(run: ClosureRun) -> bool:
    """True if a run may commit along with one that comes before it."""
    return run.changed_bytes <= _FOLLOWER_MAX_BYTES
