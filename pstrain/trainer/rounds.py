"""The committer of synchronous rounds: prepares changes, which the coordinator has applied.

All changes of a closure are prepared at the servers, then its end is reported; the coordinator
decides which closures make the round. A run that was late for the round is undone: its changes are
dropped, and its elements go back to their iterators, for the next run here. Invariant: a closure
reads no value and takes no element after its changes, so its round is one step.
"""

from __future__ import annotations

import logging

from dataservice.errors import DataServiceError
from pstrain.errors import FailedPreconditionError
from pstrain.failpoints import reached
from pstrain.paramserver.messages import Header
from pstrain.trainer.cancelling import Fail, Send
from pstrain.trainer.client import RemoteParameters
from pstrain.trainer.committing import Committer
from pstrain.trainer.decisions import encoded_marks
from pstrain.trainer.outgoing import Answers, Pulls
from pstrain.trainer.staging import ClosureRun, PendingPart, one_message
from pstrain.trainer.turns import Phase
from pstrain.trainer.two_phase_commit import GiveUp
from pstrain.vocabulary import StepToken
from pstrain.wire import trainer_pb2 as pb

logger = logging.getLogger(__name__)


class RoundCommitter(Committer):
    """The committer of a trainer that runs one closure at a time.

    ``keeps_elements``: runs may be late, so their elements are kept until they have ended.
    """

    def __init__(
        self,
        parameters: RemoteParameters,
        trainer: str,
        send: Send,
        give_up: GiveUp,
        fail: Fail,
        keeps_elements: bool,
    ) -> None:
        super().__init__(parameters, trainer, send, give_up, fail)
        self._keeps_elements = keeps_elements
        self._latest: ClosureRun | None = None
        self._late: set[StepToken] = set()

    def new_run(
        self, token: StepToken, parts_decided: int, held: PendingPart | None = None
    ) -> ClosureRun:
        run = ClosureRun(token, self, parts_decided, held, self._keeps_elements)
        run.is_of_round = True
        self._latest = run
        self._open.begin(run)
        return run

    def commit_part(self, run: ClosureRun, pulls: Pulls) -> Answers:  # noqa: ARG002
        raise FailedPreconditionError(
            f"closure {run.token.closure} would read a value that it has changed, or take another "
            "element after changing values: with consistency sync() a function makes one step, "
            "whose changes are made with those of the other trainers; schedule one step at a time"
        )

    def end(self, run: ClosureRun, result: pb.ClosureResult) -> PendingPart | None:
        """Prepares the changes of a closure, unless it failed or is late, and sends its result."""
        if self.is_late(run.token):
            return None
        result = self._final_result(run, result)
        if result.WhichOneof("outcome") == "error_json":
            return super().end(run, result)
        self._check_open()
        messages = {ps: one_message(changes) for ps, changes in run.changes.items()}
        header = self._header(run)
        with self._giving_up:
            self._prepare(sorted(messages), header, messages, {})
        run.is_prepared = True
        reached("prepared")
        with self._lock:
            self._sent[run.token.closure] = run.tickets
            for ticket in run.tickets:
                ticket.phase = Phase.SENT
        result.is_prepared = True
        result.servers.extend(sorted(messages))
        result.has_gradient = any(h["kind"] == "push" for m in messages.values() for h in m[0])
        result.rows_json = encoded_marks(run.tickets)
        self._report([result])
        return None

    def is_late(self, token: StepToken) -> bool:
        """True if a run's round was decided without it."""
        with self._lock:
            return token in self._late

    def note_late(self, token: StepToken) -> None:
        """Marks a run as late; :meth:`give_back` follows when it has ended."""
        with self._lock:
            self._late.add(token)

    def give_back(self, token: StepToken) -> None:
        """Undoes a late run that has ended, and reports that."""
        run = self._latest
        if run is not None and run.token == token:
            self._undo(run)
        with self._lock:
            self._late.discard(token)
        self._report([pb.ClosureResult(id=token.closure, attempt=token.attempt, was_dropped=True)])

    def _undo(self, run: ClosureRun) -> None:
        with self._lock:
            self._sent.pop(run.token.closure, None)
            self._turns.withdraw(run.tickets)
        run.give_back()
        if not run.is_prepared:
            return
        abort = {**self._header(run), "kind": "abort"}
        try:
            self._parameters.exchange(dict.fromkeys(run.changes, (abort, None)))
        except DataServiceError as error:
            # The servers drop it when the closure has ended for good (the low-water mark).
            logger.warning("servers keep what closure %d prepared: %s", run.token.closure, error)

    def _header(self, run: ClosureRun) -> Header:
        key = [run.token.closure, run.token.attempt, 0]
        return {"trainer": self.trainer, "key": key, "low_water": self.low_water}
