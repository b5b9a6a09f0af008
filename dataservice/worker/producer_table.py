"""The table of a worker's producers, by iteration and reader, and their totals.

Starts and stops none, and knows no streams. Not thread-safe: its owner holds a lock. Invariant: the
rows of a producer count once, while it is in the table and after it has left.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dataservice.worker.cached_task import CachedTask
from dataservice.worker.outgoing import FrameBuffer
from dataservice.worker.producer import WindowProducer
from dataservice.worker.rounds import RoundProducer
from dataservice.worker.task_producer import TaskProducer

Producer = WindowProducer[Any] | TaskProducer | CachedTask | RoundProducer


class ProducerTable:
    """Producers of windows by iteration and reader; `tasks`: all others, by iteration."""

    def __init__(self) -> None:
        self._windows: dict[tuple[str, str], WindowProducer[FrameBuffer]] = {}
        self.tasks: dict[str, Producer] = {}
        self._rows_of_ended = 0

    def iterations(self) -> set[str]:
        """Those that there are producers for."""
        return {iteration for iteration, _ in self._windows} | set(self.tasks)

    def by_iteration(self) -> list[tuple[str, Producer]]:
        """All producers, each with its iteration."""
        windows = ((iteration, producer) for (iteration, _), producer in self._windows.items())
        return [*windows, *self.tasks.items()]

    def load(self) -> tuple[int, int]:
        """Rows produced so far, and bytes that wait for readers."""
        producers = [producer for _, producer in self.by_iteration()]
        return (
            self._rows_of_ended + sum(producer.frames.rows for producer in producers),
            sum(producer.frames.size_bytes for producer in producers),
        )

    def forget(self, iteration_ids: Iterable[str]) -> list[Producer]:
        """Takes out the producers of these iterations."""
        iteration_ids = set(iteration_ids)
        keys = [key for key in self._windows if key[0] in iteration_ids]
        gone: list[Producer] = [self._windows.pop(key) for key in keys]
        gone.extend(self.tasks.pop(i) for i in iteration_ids if i in self.tasks)
        self._rows_of_ended += sum(producer.frames.rows for producer in gone)
        return gone

    def replace_windows(
        self, key: tuple[str, str], producer: WindowProducer[FrameBuffer]
    ) -> WindowProducer[FrameBuffer] | None:
        """Puts in the producer of a reader's windows; the one that was there before."""
        older = self._windows.get(key)
        self._windows[key] = producer
        self._rows_of_ended += 0 if older is None else older.frames.rows
        return older

    def drop_windows(self, key: tuple[str, str], producer: WindowProducer[FrameBuffer]) -> None:
        """Takes out a producer, unless another has its place."""
        if self._windows.get(key) is producer:
            del self._windows[key]
            self._rows_of_ended += producer.frames.rows
