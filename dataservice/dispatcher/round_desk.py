"""The dispatcher's answers to consumers of coordinated reads: lock and journal around `rounds`.

A part of the service, over its ledger; decides nothing itself. Invariant: as there: no answer
leaves before its facts are durable. Thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dataservice.dispatcher import rounds
from dataservice.dispatcher.ledger import Ledger
from dataservice.dispatcher.parties import Worker
from dataservice.dispatcher.reports import ReaderReport
from dataservice.dispatcher.requests import RoundsAnswer, SyncRounds
from dataservice.vocabulary import IterationId, ReaderId, WorkerId


class RoundDesk:
    """`hear_of_reader` runs inside a transaction of the ledger."""

    def __init__(
        self,
        ledger: Ledger,
        hear_of_reader: Callable[[ReaderId, IterationId, ReaderReport], object],
    ) -> None:
        self._state = ledger.state
        self._transaction, self._commit = ledger.transaction, ledger.commit
        self._hear_of_reader = hear_of_reader

    def sync(
        self, request: SyncRounds, report: ReaderReport
    ) -> tuple[RoundsAnswer, Sequence[Worker]]:
        """Records how far a consumer is, and lets it go on; answers also all workers."""
        with self._transaction():
            self._hear_of_reader(request.reader_id, request.iteration_id, report)
            for decision in rounds.sync(self._state, request):
                self._commit(decision)
            return rounds.answer(self._state, request), tuple(self._state.workers.values())

    def hear_of_worker(self, worker_id: WorkerId, iteration_ids: Sequence[IterationId]) -> None:
        """Inside the lock: a worker that has consumers in these gives a sign of life."""
        self._commit(rounds.trust(self._state, worker_id, iteration_ids))
