"""The scheduler's part in what can be seen of it: counts, how trainers do, a trace of closures.

Decides nothing. Invariant: who looks changes nothing and holds nobody up; what nobody traces is
not remembered.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from pstrain.coordinator.cancelling import Cancelling
from pstrain.coordinator.orders import Ended
from pstrain.coordinator.tracing import Trace
from pstrain.coordinator.trainer_stats import Present, Record, TrainerTable, table
from pstrain.errors import FailedPreconditionError


class Observing(Cancelling):
    """What of the scheduler is for who watches it. Thread-safe."""

    def __init__(self, trainer_timeout_s: float) -> None:
        super().__init__(trainer_timeout_s)
        self.retries = 0
        self._records: dict[int, Record] = {}
        self._idle: set[int] = set()  # trainers that had no closure when they were looked at last
        self._trace: Trace | None = None

    def counts(self) -> dict[str, int]:
        with self.changed:
            return {
                "waiting": self._state.waiting_count,
                "running": len(self._state.running),
                "finished": self._state.finished_count,
                "failed": self._state.failed_count,
                "cancelled": self._state.cancelled_count,
                "trainers": len(self._state.trainers),
                "retries": self.retries,
                "losses": self._state.lost_count,
                "rounds": self._state.rounds_count,
                "dropped": self._state.dropped_count,
            }

    def trainer_table(self) -> TrainerTable:
        """How each trainer does."""
        with self.changed:
            slowest = self._state.slowest
            live = {
                index: Present(len(trainer.running), trainer.clock - slowest)
                for index, trainer in self._state.trainers.items()
                if not trainer.is_silenced
            }
            return table(self._records, live, time.monotonic())

    def begin_trace(self, runs_max: int) -> Trace:
        """Notes what closures do from now on. FailedPreconditionError where one is under way."""
        with self.changed:
            if self._trace is not None:
                raise FailedPreconditionError(
                    "a trace of this coordinator is under way: end that one first"
                )
            self._trace = Trace(self._name_of, time.monotonic(), runs_max)
            return self._trace

    def end_trace(self) -> None:
        """Inverse of :meth:`begin_trace`."""
        with self.changed:
            self._trace = None

    @property
    def is_traced(self) -> bool:
        """Whether somebody traces just now."""
        return self._trace is not None

    def _name_of(self, closure: int) -> str:
        known = self._closures.get(closure)
        return "" if known is None else known.name

    def _record(self, trainer: int) -> Record:
        record = self._records.get(trainer)
        if record is None:
            record = self._records[trainer] = Record()
        return record

    def _note_results(self, trainer: int, ended: Iterable[Ended]) -> None:
        """Runs have ended at a trainer, and are told."""
        now_s = time.monotonic()
        runs = [end for end in ended if not end.was_dropped]
        self._record(trainer).reports(now_s, [end.seconds for end in runs])
        if self._trace is not None:
            for end in runs:
                self._trace.told(end.closure, end.seconds, end.commit_s, now_s)

    def _note_work(self) -> None:
        """Closures were started: some who had nothing to do have something now."""
        busy = [index for index in self._idle if self._has_work(index)]
        for index in busy:
            self._record(index).begins(time.monotonic())
        self._idle.difference_update(busy)

    def _has_work(self, index: int) -> bool:
        trainer = self._state.trainers.get(index)
        return trainer is not None and bool(trainer.running)
