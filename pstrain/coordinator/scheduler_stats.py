"""Observability of a scheduler: counts, statistics of trainers, a trace of closures.

Decides nothing. Invariant: reading statistics changes nothing and blocks no other thread; closures
are recorded only while a trace is under way.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from pstrain.coordinator import events as ev
from pstrain.coordinator.orders import RunResult
from pstrain.coordinator.state import CoordinatorState, Trainer
from pstrain.coordinator.tracing import Trace
from pstrain.coordinator.trainer_stats import Load, Record
from pstrain.errors import FailedPreconditionError


class SchedulerStats:
    """The statistics of one scheduler, guarded by its lock. ``retries``: runs that were lost."""

    def __init__(self) -> None:
        self.retries = 0
        self.trace: Trace | None = None
        self._records: defaultdict[int, Record] = defaultdict(Record)
        self._idle: set[int] = set()  # trainers that had no closure when last checked

    def counts(self, state: CoordinatorState) -> dict[str, int]:
        """Returns counts of closures, trainers and rounds."""
        return {
            "waiting": len(state.queues),
            "running": len(state.running),
            "finished": state.finished_count,
            "failed": state.failed_count,
            "cancelled": state.cancelled_count,
            "trainers": len(state.trainers),
            "retries": self.retries,
            "losses": state.lost_count,
            "rounds": state.rounds_count,
            "dropped": state.dropped_count,
        }

    def observed(self, state: CoordinatorState) -> tuple[dict[int, Record], dict[int, Load], float]:
        """Returns what `trainer_stats.table` takes, which may be called without the lock."""
        slowest = state.clocks.slowest
        live = {
            index: Load(len(trainer.running), state.clocks[index] - slowest)
            for index, trainer in state.trainers.items()
            if not trainer.is_silenced
        }
        records = {index: record.copy() for index, record in self._records.items()}
        return records, live, time.monotonic()

    def begin_trace(self, name_of: Callable[[int], str], runs_max: int) -> Trace:
        """Starts a trace of closures; FailedPreconditionError if one is under way."""
        if self.trace is not None:
            raise FailedPreconditionError(
                "a trace of this coordinator is under way: end that one first"
            )
        self.trace = Trace(name_of, time.monotonic(), runs_max)
        return self.trace

    def note_event(self, event: ev.Event) -> None:
        """Notes an event that is about to be applied."""
        if self.trace is not None:
            self.trace.note(event, time.monotonic())

    def note_results(self, trainer: int, ended: Iterable[RunResult]) -> None:
        """Notes ends of runs that a trainer reports."""
        now_s = time.monotonic()
        runs = [end for end in ended if not end.was_dropped]
        self._records[trainer].add_report(now_s, [end.seconds for end in runs])
        if self.trace is not None:
            for end in runs:
                self.trace.note_times(end.closure, end.seconds, end.commit_s, now_s)

    def note_idle(self, index: int, trainers: Mapping[int, Trainer]) -> None:
        """Notes that a trainer may be idle, because it joined or a run of it has ended."""
        trainer = trainers.get(index)
        if trainer is None or not trainer.running:
            self._idle.add(index)

    def note_work(self, index: int) -> None:
        """Notes that a closure starts on a trainer."""
        if index in self._idle:
            self._idle.discard(index)
            self._records[index].begin_work(time.monotonic())
