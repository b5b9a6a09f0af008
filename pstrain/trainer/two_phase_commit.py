"""Commits the parts of closures that commit together, at all servers or at none.

Changes to one server take one message. Changes to several are committed in two phases: prepared at
all servers but their home, decided at their home, then committed at the others. If no thread waits
for the end, and several closures run side by side, the commits are left to the next messages to
these servers, so each server is asked once a step. Parts without changes are decided when their end
reaches the coordinator. Only a decision uses elements up, and has them acknowledged. Must not know
when a part's turn comes, nor who waits for it. Invariants: no lost reply, repeat or crash of this
process leaves a part half applied: a decided part is completed, by this process or by the
coordinator. The end of a closure is reported when all of its servers have committed.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from dataservice.errors import DataServiceError
from pstrain.errors import (
    AbortedError,
    CancelledError,
    DeadlineExceededError,
    UnavailableError,
)
from pstrain.failpoints import reached
from pstrain.paramserver.messages import Header, Message
from pstrain.trainer.cancelling import Cancelling, Fail, Send
from pstrain.trainer.client import RemoteParameters
from pstrain.trainer.decisions import by_server, decision, encoded_marks, tickets_of, with_changes
from pstrain.trainer.left_commits import Keys, LeftCommits, Taken
from pstrain.trainer.outgoing import Answers, Pulls
from pstrain.trainer.staging import PendingPart
from pstrain.trainer.turns import Phase, Ticket, Turns
from pstrain.trainer.unreported import Unreported
from pstrain.wire import trainer_pb2 as pb

# Errors of servers that are not about the changes in a request.
_NO_REFUSALS: Final = (UnavailableError, DeadlineExceededError, AbortedError, CancelledError)

_RECHECK_S: Final = 1.0

GiveUp = Callable[[Exception], None]


def _is_refusal(error: BaseException) -> bool:
    return isinstance(error, DataServiceError) and not isinstance(error, _NO_REFUSALS)


class _OnError(AbstractContextManager[None]):
    """A scope that calls ``on_error`` with the error if it fails, which may raise another."""

    def __init__(self, on_error: Callable[[BaseException], None]) -> None:
        self._on_error = on_error

    def __exit__(self, _kind: object, error: BaseException | None, _where: object) -> None:
        if error is not None:
            self._on_error(error)


class TwoPhaseCommit(Cancelling):
    """The part of a committer that talks to servers and decides. Thread-safe.

    ``trainer`` names this incarnation, by which servers fence it. ``give_up`` ends the stream to
    the coordinator, which then takes the trainer for lost and settles what it left. Unless the
    trainer runs several closures side by side (``closures``), it leaves no commits for later: each
    closure sees what the one before it has changed.
    """

    def __init__(
        self,
        parameters: RemoteParameters,
        trainer: str,
        send: Send,
        give_up: GiveUp,
        fail: Fail,
        closures: int,
    ) -> None:
        super().__init__(send, fail)
        self.trainer = trainer
        self._is_side_by_side = closures > 1
        self.low_water = 0
        self._parameters = parameters
        self._give_up = give_up
        self._giving_up = _OnError(self._hand_over)
        self._turns = Turns()
        self._sent: dict[int, list[Ticket]] = {}
        self._left = LeftCommits()
        self._unreported = Unreported()
        self._tries = 0
        self._closed = self._is_given_up = False

    def settle(self, closures: Iterable[int]) -> None:
        """Uses up the elements of closures whose end has reached the coordinator."""
        with self._lock:
            tickets = [ticket for c in closures for ticket in self._sent.pop(c, ())]
        self._use_up(tickets)

    def _check_open(self) -> None:
        if self._closed:
            raise CancelledError("this trainer's coordinator left, or took it for lost")

    def _failed_members(
        self, group: list[PendingPart], error: Exception
    ) -> dict[PendingPart, Exception]:
        """Returns members that fail by ``error``: those whose changes are refused, or all."""
        changing = [member for member in group if member.run.has_changes]
        if not _is_refusal(error):
            return dict.fromkeys(group, error)
        if len(changing) == 1:
            return {changing[0]: error}
        refused: dict[PendingPart, Exception] = {}
        for member in changing:
            try:
                self._check(member)
            except Exception as raised:
                if not _is_refusal(raised):
                    return dict.fromkeys(group, raised)
                refused[member] = raised
        return refused or dict.fromkeys(group, error)

    def _check(self, member: PendingPart) -> None:
        """Raises the servers' refusal of a member's changes, if any; nothing is kept there."""
        check: Header = {"kind": "check"}
        changes = by_server([member])
        with self._giving_up:
            self._parameters.exchange({ps: with_changes(check, changes[ps]) for ps in changes})

    def _perform(self, group: list[PendingPart], pulls: Pulls, answers: Answers) -> None:
        """Commits a group; adds replies to pulls that went along to ``answers``."""
        ended = [member.result for member in group if member.result is not None]
        if any(member.run.has_changes for member in group):
            self._commit_changes(group, ended, pulls, answers)
            return
        self._defer_decision(group, ended)
        if ended:
            self._report(ended)

    def _defer_decision(self, group: list[PendingPart], ended: list[pb.ClosureResult]) -> None:
        """Leaves the decision to the arrival of the ends at the coordinator.

        The elements are used up once :meth:`settle` confirms the arrival.
        """
        tickets = tickets_of(group)
        ended[-1].rows_json = encoded_marks(tickets)
        for result in ended:
            result.needs_settling = True
        with self._lock:
            for member in group:
                self._sent[member.run.token.closure] = member.run.tickets
            for ticket in tickets:
                ticket.phase = Phase.SENT

    def _commit_changes(
        self,
        group: list[PendingPart],
        ended: list[pb.ClosureResult],
        pulls: Pulls,
        answers: Answers,
    ) -> None:
        """Commits a group in two phases, the second one later if no thread waits for it."""
        is_waited_for = any(member.held_s is None for member in group)
        goes_on = self._is_side_by_side and bool(pulls) and not is_waited_for
        header, others = self._decide(group, pulls, answers, goes_on=goes_on)
        # Once closed, nothing that is added here would be sent.
        if others and goes_on and not self._closed:
            self._left.add(header["key"], others, ended, time.monotonic())
            self._flush_timer.arm()
            return
        if others:
            self._send_commits(others, [header["key"]], pulls, answers)
        if ended:
            self._report(ended)

    def _decide(
        self, group: list[PendingPart], pulls: Pulls, answers: Answers, *, goes_on: bool
    ) -> tuple[Header, list[int]]:
        """Prepares and decides a group; returns its header, and the servers still to commit it.

        If the thread ``goes_on``, it pulls from these servers before they have committed.
        """
        tickets = tickets_of(group)
        messages = by_server(group)
        first = group[0].run
        header = {
            "trainer": self.trainer,
            "key": [first.token.closure, first.token.attempt, first.part],
            "try": self._tries,
            "low_water": self.low_water,
        }
        servers = sorted(messages)
        home = servers[first.token.closure % len(servers)]
        others = [ps for ps in servers if ps != home]
        if others:
            with self._giving_up:
                answers |= self._prepare(others, header, messages, pulls if goes_on else {})
        reached("prepared")
        decide = with_changes(decision(header, group, tickets), messages[home])
        with self._giving_up, self._aborting(others, header), self._ending(group):
            answers |= self._exchange({home: decide}, pulls)
        reached("decided")
        for member in group:
            member.run.next_part()
        self._use_up(tickets)
        return header, others

    def _ending(self, group: list[PendingPart]) -> _OnError:
        """Blocks while too many ends are unreported; returns the scope that decides these."""
        closures = [each.run.token.closure for each in group if each.result is not None]
        while True:
            with self._lock:
                if self._unreported.add(closures):
                    return _OnError(lambda _: self._note_reported(closures))
                self._check_open()
                if not self._left:
                    self._await_change(_RECHECK_S)
            self._commit_left()

    def _report(self, results: list[pb.ClosureResult]) -> None:
        super()._report(results)
        self._note_reported([result.id for result in results])

    def _note_reported(self, closures: list[int]) -> None:
        with self._lock:
            if self._unreported.remove(closures):
                self._tell_change()

    def _commit_left(self, until_s: float = math.inf) -> None:
        """Sends the commits that were left by ``until_s``; blocks until they are made."""
        servers = self._left.servers(until_s)
        if servers and not self._is_given_up:
            self._send_commits(servers, [], {}, {})

    def _send_commits(
        self, servers: Sequence[int], keys: Keys, pulls: Pulls, answers: Answers
    ) -> None:
        header = {"kind": "commit", "trainer": self.trainer, "low_water": self.low_water}
        commit: Message = ({**header, "commits": keys}, None)
        # What was decided cannot fail any more.
        with _OnError(self._leave_to_coordinator):
            answers |= self._exchange(dict.fromkeys(servers, commit), pulls)

    def _exchange(self, messages: Mapping[int, Message], pulls: Pulls) -> Answers:
        """Sends messages about parts, with the commits left for their servers, and with pulls.

        Reports the closures that thereby have ended.
        """
        taken = self._left.take(messages)
        try:
            answers = self._parameters.exchange_with(_with_commits(messages, taken), pulls)
        except BaseException:
            # Some servers may have made theirs; a repeat does no harm.
            self._left.put_back(taken)
            self._flush_timer.arm()
            raise
        else:
            if ended := self._left.confirm(taken):
                self._report(ended)
            return answers
        finally:
            self._end_message(taken)

    def _end_message(self, taken: Taken) -> None:
        """Wakes the thread that closes, which waits for commits that others have sent."""
        if taken:
            self._left.end(taken)
            if self._closed:
                with self._lock:
                    self._tell_change()

    def _hand_over(self, error: BaseException) -> None:
        """Leaves the group to the coordinator if a server cannot be reached."""
        if isinstance(error, UnavailableError | DeadlineExceededError):
            self._leave_to_coordinator(error)

    def _leave_to_coordinator(self, error: BaseException) -> None:
        """Reports no more ends, of any closures, as if this trainer were lost.

        It cannot know what was decided, or cannot complete it. Raises CancelledError.
        """
        if not isinstance(error, Exception) or isinstance(error, CancelledError):
            return
        with self._lock:
            self._closed = self._is_given_up = True
            self._tell_change()
        self._give_up(error)
        raise CancelledError(f"left to the coordinator: {error}") from error

    def _prepare(
        self, servers: list[int], header: Header, messages: dict[int, Any], pulls: Pulls
    ) -> Answers:
        prepare = {**header, "kind": "prepare"}
        with self._aborting(servers, header):
            return self._exchange(
                {ps: with_changes(prepare, messages[ps]) for ps in servers}, pulls
            )

    def _aborting(self, servers: list[int], header: Header) -> _OnError:
        return _OnError(functools.partial(self._abort, servers, header))

    def _abort(self, servers: list[int], header: Header, error: BaseException) -> None:
        """Has ``servers`` drop what they prepared if ``error`` is a refusal of the changes."""
        if _is_refusal(error):
            abort: Message = ({**header, "kind": "abort"}, None)
            self._parameters.exchange(dict.fromkeys(servers, abort))

    def _use_up(self, tickets: Sequence[Ticket]) -> None:
        if not tickets:
            return
        with self._lock:
            receipts = self._turns.finish(tickets)
            self._tell_change()
        for receipt in receipts:
            receipt.acknowledge()


def _with_commits(messages: Mapping[int, Message], taken: Taken) -> Mapping[int, Message]:
    """Returns messages about parts with the commits that go along."""
    if not taken:
        return messages
    joined = dict(messages)
    for ps, keys in taken.items():
        header, body = messages[ps]
        joined[ps] = {**header, "commits": keys + header.get("commits", [])}, body
    return joined
