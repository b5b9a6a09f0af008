"""Commits what closures changed, in the order of their elements: when, and what with what.

The end of a closure with changes is held back for a moment: its thread goes on, and what the next
closure pulls goes along with the decision and the commits, which saves a message to each server. It
is not held for long: a thread that has nothing else to do commits it, and what is overdue is
committed by a thread of its own. What servers refuse fails the closure that wanted it; those that
would commit with it are committed again without its changes. How a group is committed is in
``deciding``. Invariant: a thread that waits for a turn has no element in a part that is not ready,
so nobody waits for ever.
"""

from __future__ import annotations

import contextlib
import math
import time
from typing import Final

from pstrain.errors import (
    CancelledError,
)
from pstrain.trainer.cancelling import Fail, Pending, Send, cancelled_error
from pstrain.trainer.client import RemoteParameters
from pstrain.trainer.deciding import Deciding, GiveUp
from pstrain.trainer.decisions import encoded_notes
from pstrain.trainer.outgoing import Answers, Pulls
from pstrain.trainer.overdue import Overdue
from pstrain.trainer.staging import ClosureRun, Held
from pstrain.trainer.turns import Receipt
from pstrain.vocabulary import StepToken
from pstrain.wire import trainer_pb2 as pb

HELD_S: Final = 0.05
"""The end of a closure is held back for so long, up to twice, for the next pull of its thread.

Who looks for what is overdue takes the interpreter from steps each time.
"""

_LOOK_AROUND_S: Final = 1.0
_CLOSE_TIMEOUT_S: Final = 5.0


class Committer(Deciding):
    """Of one trainer in one session. Thread-safe; ``send`` carries results to the coordinator.

    ``trainer`` names this incarnation, by which servers fence it. ``give_up`` ends the stream to
    the coordinator, which then takes the trainer for lost and settles what it left. ``fail`` makes
    a result into that of a closure that failed with an error.
    """

    def __init__(
        self,
        parameters: RemoteParameters,
        trainer: str,
        send: Send,
        give_up: GiveUp,
        fail: Fail,
    ) -> None:
        super().__init__(parameters, trainer, send, give_up, fail)
        self._overdue = Overdue(self._commit_overdue, HELD_S)

    def new_run(self, token: StepToken, parts_decided: int, held: Held | None = None) -> ClosureRun:
        """A run that commits here; so many parts of earlier runs were decided.

        ``held`` is what the last run of the same thread left.
        """
        run = ClosureRun(token, self, parts_decided, held)
        self._open.begin(run)
        return run

    def take(self, run: ClosureRun, source: int, receipt: Receipt) -> None:
        """A closure took an element; in the order in which the source gave them."""
        with self._lock:
            run.take(self._turns.take(source, receipt, run))

    def commit_part(self, run: ClosureRun, pulls: Pulls) -> Answers:
        """Makes the changes of a closure that goes on; pulls may go along."""
        self.commit_held(run, {})
        if run.was_decided:
            run.next_part()
            return {}
        return self._commit(run, None, pulls)

    def commit_held(self, run: ClosureRun, pulls: Pulls) -> Answers:
        """Commits what the run's thread held back, unless others have to be committed before.

        To wait for them is not for a run that has taken elements: they may wait for those. One
        without any does, so that what a thread does without elements stays in its order.
        """
        answers: Answers = {}
        held = run.held
        while isinstance(held, Pending) and not held.is_done:
            group = self._wait_for_turn(held, patiently=not run.tickets)
            if not group:
                break
            answers |= self._commit_group(group, pulls)
        return answers

    def end(self, run: ClosureRun, result: pb.ClosureResult) -> Held | None:
        """Ends a closure; what its thread has to commit with its next pull is given back.

        Without changes, or where it failed, its result is sent now. CancelledError once this
        trainer counts for nothing: nobody must hear of an end then.
        """
        self._check_open()
        if result.WhichOneof("outcome") == "error_json":
            run.drop_changes()
        if not run.tickets and (not run.has_changes or run.was_decided):
            # Without the lock: there is nothing to commit, whoever cancels it meanwhile.
            is_cancelled = self._open.is_cancelled(run)
            self._tell([self._fail(result, cancelled_error(run)) if is_cancelled else result])
        elif run.has_changes:
            return self._hold(run, result)
        else:
            self._commit(run, result, {})
        return run.held

    def flush(self, held: Held) -> None:
        """Commits what a thread held back that runs no closure now."""
        while isinstance(held, Pending) and not held.is_done:
            group = self._wait_for_turn(held, patiently=True)
            if group:
                self._commit_group(group, {})

    def close(self) -> None:
        """Commits nothing more; waits, bounded, for what is being committed. Idempotent."""
        until_s = time.monotonic() + _CLOSE_TIMEOUT_S
        with self._lock:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: not any(p.is_busy for p in self._pending.values()), _CLOSE_TIMEOUT_S
            )
        # That thread does no more than was waited for.
        self._overdue.close(max(0.0, until_s - time.monotonic()))

    def _hold(self, run: ClosureRun, result: pb.ClosureResult) -> Pending:
        """One part for a thread: what it held before is committed first."""
        earlier, run.held = run.held, None
        pending = Pending(run, result, held_s=time.monotonic())
        # One with elements may be what the earlier one waits for: it is ready first then.
        if earlier is not None and not run.tickets:
            self.flush(earlier)
        self._add(pending)
        self._overdue.note()
        if earlier is not None:
            self.flush(earlier)
        return pending

    def _add(self, pending: Pending) -> None:
        with self._lock:
            self._pending[pending.run] = pending
            if self._open.is_cancelled(pending.run):
                self._refuse(pending)
            # Others may wait for this one, to commit with it.
            self._changed.notify_all()

    def _commit_overdue(self) -> bool:
        """Commits what was held for too long, where its turn has come; whether any is left."""
        until_s = time.monotonic() - HELD_S
        with self._lock:
            held = [p for p in self._pending.values() if p.held_s is not None]
        for pending in held:
            if pending.held_s is not None and pending.held_s <= until_s:
                with contextlib.suppress(CancelledError):
                    group = self._wait_for_turn(pending, patiently=False)
                    if group:
                        self._commit_group(group, {})
        return any(not pending.is_done for pending in held)

    def _commit(self, run: ClosureRun, result: pb.ClosureResult | None, pulls: Pulls) -> Answers:
        """Returns once the part is decided and applied everywhere, alone or in a group."""
        # Whoever hears of the end needs no notes.
        note = encoded_notes(run) if result is None else None
        pending = Pending(run, result, note=note)
        self._add(pending)
        answers: Answers = {}
        while not pending.is_done:
            group = self._wait_for_turn(pending, patiently=True)
            if group:
                answers |= self._commit_group(group, pulls)
        if pending.error is not None:
            raise pending.error
        return answers

    def _wait_for_turn(self, pending: Pending, *, patiently: bool) -> list[Pending]:
        """Those to commit with it, once it may; none where another thread has done it.

        Or where it may not commit now, and is not to be waited for ``patiently``.
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
                self._changed.wait(_LOOK_AROUND_S)
            return []

    def _group(self, run: ClosureRun) -> list[Pending] | None:
        free = {run for run, pending in self._pending.items() if not pending.is_busy}
        members = self._turns.group(run, free)
        return None if members is None else [self._pending[member] for member in members]

    def _commit_group(self, group: list[Pending], pulls: Pulls) -> Answers:
        """Whoever waits for a member hears what came of it; CancelledError where nobody may.

        Where a server refuses what some have changed, the others are left to be committed again.
        """
        answers: Answers = {}
        errors: dict[Pending, Exception] = {}
        try:
            self._perform(group, pulls, answers)
        except Exception as raised:
            errors = self._whose(group, raised)
        failed = self._end_group(group, errors)
        if failed:
            self._tell(failed)
        for error in errors.values():
            if isinstance(error, CancelledError):
                raise error
        return answers

    def _end_group(
        self, group: list[Pending], errors: dict[Pending, Exception]
    ) -> list[pb.ClosureResult]:
        """Results of closures that have failed by that, and have used nothing up."""
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
            self._changed.notify_all()
        return failed

    def _hold_as_failed(self, member: Pending, error: Exception) -> bool:
        """Its result says so; what it took is used up once that is heard, when its turn comes.

        False if it took nothing.
        """
        assert member.result is not None
        member.result = self._fail(member.result, error)
        member.run.drop_changes()
        member.held_s = -math.inf  # it is overdue
        self._overdue.note()
        return bool(member.run.tickets)
