"""Commits what closures changed: at all servers or at none, in the order of their elements.

A part that changes one server is one message to it. One that changes several is prepared at all
but its home, decided at its home, then committed at the others. A part that changes nothing is
decided by the coordinator's hearing of its end. What an element made counts as consumed, and is
acknowledged, only then. Invariant: no reply that was lost, no repeat and no end of this process
leaves a part half applied: what was decided, somebody completes.
"""

from __future__ import annotations

import base64
import contextlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from dataservice.errors import DataServiceError
from pstrain.errors import (
    AbortedError,
    CancelledError,
    DeadlineExceededError,
    UnavailableError,
)
from pstrain.failpoints import reached
from pstrain.trainer.client import RemoteParameters
from pstrain.trainer.staging import ClosureRun, Header, one_message
from pstrain.trainer.turns import Phase, Receipt, Ticket, Turns, last_receipts
from pstrain.vocabulary import StepToken
from pstrain.wire import trainer_pb2 as pb

OUTCOME_MAX_BYTES: Final = 1 << 20
"""A result that a server keeps with its decision; the value of a larger one may be lost."""

_LOOK_AROUND_S: Final = 1.0
_CLOSE_TIMEOUT_S: Final = 5.0

Send = Callable[[list[pb.ClosureResult]], None]
GiveUp = Callable[[Exception], None]


@dataclass(slots=True, eq=False)
class _Pending:
    """A part that waits for its turn. ``result`` None: its closure goes on."""

    run: ClosureRun
    result: pb.ClosureResult | None
    is_busy: bool = False
    is_done: bool = False
    error: Exception | None = None


class Committer:
    """Of one trainer in one session. Thread-safe; ``send`` carries results to the coordinator.

    ``trainer`` names this incarnation, by which servers fence it. ``give_up`` ends the stream to
    the coordinator, which then takes the trainer for lost and settles what it left.
    """

    def __init__(
        self,
        parameters: RemoteParameters,
        trainer: str,
        send: Send,
        give_up: GiveUp,
    ) -> None:
        self.trainer = trainer
        self.low_water = 0
        self._parameters = parameters
        self._send = send
        self._give_up = give_up
        self._turns = Turns()
        self._changed = threading.Condition()
        self._pending: dict[ClosureRun, _Pending] = {}
        self._sent: dict[int, list[Ticket]] = {}
        self._closed = False

    def new_run(self, token: StepToken, parts_decided: int) -> ClosureRun:
        """A run that commits here; so many parts of earlier runs were decided."""
        return ClosureRun(token, self.commit_part, parts_decided)

    def take(self, run: ClosureRun, source: int, receipt: Receipt) -> None:
        """A closure took an element; in the order in which the source gave them."""
        with self._changed:
            run.take(self._turns.take(source, receipt, run))

    def commit_part(self, run: ClosureRun) -> None:
        """Makes the changes of a closure that goes on."""
        if run.was_decided:
            run.next_part()
        else:
            self._commit(run, None)

    def end(self, run: ClosureRun, result: pb.ClosureResult) -> None:
        """Makes the last changes of a closure, unless it failed, and sends its result.

        CancelledError once this trainer counts for nothing: nobody must hear of an end then.
        """
        self._check_open()
        if result.WhichOneof("outcome") == "error_json":
            run.drop_changes()
        if not run.tickets and (not run.has_changes or run.was_decided):
            self._send([result])
        else:
            self._commit(run, result)

    def settle(self, closures: Iterable[int]) -> None:
        """The coordinator has heard of the end of these."""
        with self._changed:
            tickets = [ticket for c in closures for ticket in self._sent.pop(c, ())]
        self._use_up(tickets)

    def close(self) -> None:
        """Commits nothing more; waits, bounded, for what is being committed. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: not any(p.is_busy for p in self._pending.values()), _CLOSE_TIMEOUT_S
            )

    def _check_open(self) -> None:
        if self._closed:
            raise CancelledError("this trainer's coordinator left, or took it for lost")

    def _commit(self, run: ClosureRun, result: pb.ClosureResult | None) -> None:
        """Returns once the part is decided and applied everywhere, alone or in a group."""
        pending = _Pending(run, result)
        group = self._wait_for_turn(pending)
        if group:
            error: Exception | None = None
            try:
                self._perform(group)
            except Exception as raised:
                error = raised
            self._end_group(group, error)
        if pending.error is not None:
            raise pending.error

    def _wait_for_turn(self, pending: _Pending) -> list[_Pending]:
        """Those to commit with it, once it may; none where another thread has done it."""
        with self._changed:
            self._pending[pending.run] = pending
            # Others may wait for this one, to commit with it.
            self._changed.notify_all()
            while not pending.is_done:
                if self._closed and not pending.is_busy:
                    del self._pending[pending.run]
                    self._check_open()
                group = None if pending.is_busy else self._group(pending.run)
                if group is not None:
                    for member in group:
                        member.is_busy = True
                    return group
                self._changed.wait(_LOOK_AROUND_S)
            return []

    def _group(self, run: ClosureRun) -> list[_Pending] | None:
        free = {run for run, pending in self._pending.items() if not pending.is_busy}
        members = self._turns.group(run, free)
        return None if members is None else [self._pending[member] for member in members]

    def _end_group(self, group: list[_Pending], error: Exception | None) -> None:
        with self._changed:
            for member in group:
                member.is_busy, member.is_done, member.error = False, True, error
                del self._pending[member.run]
            self._changed.notify_all()

    def _perform(self, group: list[_Pending]) -> None:
        ended = [member.result for member in group if member.result is not None]
        if any(member.run.has_changes for member in group):
            self._decide(group)
        else:
            self._let_decide(group, ended)
        if ended:
            self._send(ended)

    def _let_decide(self, group: list[_Pending], ended: list[pb.ClosureResult]) -> None:
        """The coordinator's hearing decides; until it says so the elements are not used up."""
        tickets = [ticket for member in group for ticket in member.run.tickets]
        ended[-1].rows_json = encoded_marks(tickets)
        for result in ended:
            result.needs_settling = True
        with self._changed:
            for member in group:
                self._sent[member.run.token.closure] = member.run.tickets
            for ticket in tickets:
                ticket.phase = Phase.SENT

    def _decide(self, group: list[_Pending]) -> None:
        tickets = [ticket for member in group for ticket in member.run.tickets]
        messages = _by_server(group)
        first = group[0].run
        header = {
            "trainer": self.trainer,
            "key": [first.token.closure, first.token.attempt, first.part],
            "low_water": self.low_water,
        }
        servers = sorted(messages)
        home = servers[first.token.closure % len(servers)]
        others = [ps for ps in servers if ps != home]
        decision = {
            **header,
            "kind": "decide",
            "entries": [_entry(member) for member in group],
            "rows": _marks(tickets),
        }
        if others:
            with self._giving_up():
                self._prepare(others, header, messages)
        reached("prepared")
        with self._giving_up():
            self._parameters.exchange({home: _with_changes(decision, messages[home])})
        reached("decided")
        for member in group:
            member.run.next_part()
        self._use_up(tickets)
        if others:
            commit = {**header, "kind": "commit"}
            with self._giving_up():
                self._parameters.exchange(dict.fromkeys(others, (commit, None)))

    @contextlib.contextmanager
    def _giving_up(self) -> Iterator[None]:
        """Who cannot know what was decided, or complete it, leaves both to the coordinator.

        Nothing more is said then, of these closures or others, as if this trainer were lost.
        """
        try:
            yield
        except (UnavailableError, DeadlineExceededError) as error:
            with self._changed:
                self._closed = True
                self._changed.notify_all()
            self._give_up(error)
            raise CancelledError(f"left to the coordinator: {error}") from error

    def _prepare(self, servers: list[int], header: Header, messages: dict[int, Any]) -> None:
        prepare = {**header, "kind": "prepare"}
        try:
            self._parameters.exchange({ps: _with_changes(prepare, messages[ps]) for ps in servers})
        except (UnavailableError, DeadlineExceededError, AbortedError):
            raise
        except DataServiceError:
            # One of them refused what the user asked for: the others need not keep theirs.
            abort: tuple[Header, Any] = ({**header, "kind": "abort"}, None)
            self._parameters.exchange(dict.fromkeys(servers, abort))
            raise

    def _use_up(self, tickets: Iterable[Ticket]) -> None:
        with self._changed:
            receipts = self._turns.finish(tickets)
            self._changed.notify_all()
        for receipt in receipts:
            receipt.acknowledge()


def _by_server(group: list[_Pending]) -> dict[int, tuple[list[Header], Any]]:
    changes: dict[int, list[tuple[Header, Any]]] = {}
    for member in group:
        for ps, mine in member.run.changes().items():
            changes.setdefault(ps, []).extend(mine)
    return {ps: one_message(mine) for ps, mine in changes.items()}


def _with_changes(header: Header, message: tuple[list[Header], Any]) -> tuple[Header, Any]:
    return {**header, "changes": message[0]}, message[1]


def _entry(member: _Pending) -> list[Any]:
    token = member.run.token
    run, outcome = member.run, _outcome(member.result)
    return [token.closure, token.attempt, run.part, outcome, run.plain + (not run.tickets)]


def _outcome(result: pb.ClosureResult | None) -> dict[str, Any] | None:
    if result is None:
        return None
    if result.WhichOneof("outcome") == "error_json":
        return {"error": result.error_json}
    if len(result.value) > OUTCOME_MAX_BYTES:
        return {"bytes": len(result.value)}
    return {"value": base64.b64encode(result.value).decode()}


def _marks(tickets: Iterable[Ticket]) -> list[dict[str, Any]]:
    return [mark for receipt in last_receipts(tickets) for mark in receipt.marks()]


def encoded_marks(tickets: Iterable[Ticket]) -> str:
    """What is to be told to the data services once these elements are used up, as JSON."""
    return json.dumps(_marks(tickets))
