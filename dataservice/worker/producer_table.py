"""The table of a worker's producers, by iteration and reader, and their totals.

Does not start or stop producers, and knows no streams. Not thread-safe: its owner holds a lock.
Invariant: the rows of a producer count once, both while it is in the table and after it has left.
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
    """The producers of windows by iteration and reader; all others by iteration, in `tasks`."""

    def __init__(self) -> None:
        self._windows: dict[tuple[str, str], WindowProducer[FrameBuffer]] = {}
        self.tasks: dict[str, Producer] = {}
        self._rows_of_ended = 0

    def iterations(self) -> set[str]:
        """Returns the ids of the iterations that have a producer."""
        return {iteration for iteration, _ in self._windows} | set(self.tasks)

    def by_iteration(self) -> list[tuple[str, Producer]]:
        """Returns all producers, each with its iteration."""
        windows = ((iteration, producer) for (iteration, _), producer in self._windows.items())
        return [*windows, *self.tasks.items()]

    def load(self) -> tuple[int, int]:
        """Returns the rows produced so far and the bytes that wait for readers."""
        producers = [producer for _, producer in self.by_iteration()]
        return (
            self._rows_of_ended + sum(producer.frames.rows for producer in producers),
            sum(producer.frames.size_bytes for producer in producers),
        )

    def forget(self, iteration_ids: Iterable[str]) -> list[Producer]:
        """Removes and returns the producers of these iterations."""
        iteration_ids = set(iteration_ids)
        keys = [key for key in self._windows if key[0] in iteration_ids]
        gone: list[Producer] = [self._windows.pop(key) for key in keys]
        gone.extend(self.tasks.pop(i) for i in iteration_ids if i in self.tasks)
        self._rows_of_ended += sum(producer.frames.rows for producer in gone)
        return gone

    def replace_windows(
        self, key: tuple[str, str], producer: WindowProducer[FrameBuffer]
    ) -> WindowProducer[FrameBuffer] | None:
        """Stores the producer of a reader's windows; returns the one that it replaces, if any."""
        older = self._windows.get(key)
        self._windows[key] = producer
        self._rows_of_ended += 0 if older is None else older.frames.rows
        return older

    def drop_windows(self, key: tuple[str, str], producer: WindowProducer[FrameBuffer]) -> None:
        """Removes a producer unless another has replaced it."""
        if self._windows.get(key) is producer:
            del self._windows[key]
            self._rows_of_ended += producer.frames.rows
