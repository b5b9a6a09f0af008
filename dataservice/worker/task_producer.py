"""Runs a whole plan, or a static share of it, into frames: first come first served.

Knows threads and pipelines, nothing of gRPC or Flight. Invariants: the rows of a task have the same
numbers each time that it runs, and come in their order; frames that did not arrive come again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from dataservice.dataset.static_sharding import Share
from dataservice.ranges import Pairs, Ranges
from dataservice.wire.elements import NO_WINDOW, RowSpan
from dataservice.worker.failures import outcome_of
from dataservice.worker.outgoing import Frame, FrameBuffer
from dataservice.worker.plan_thread import PlanThread
from dataservice.worker.rebatch import Element
from dataservice.worker.task import Pipeline


class Task(NamedTuple):
    """What to run, and the rows of it that its reader has.

    `number` tells it from other tasks of the reader; NO_WINDOW: readers share it and count nothing.
    """

    number: int = NO_WINDOW
    had: Pairs = ()


def tasks_of(told: Mapping[str, Pairs] | None, place: int | None) -> tuple[Task, ...]:
    """The tasks of a worker at a `place` of the list, or elsewhere, by what a reader told it.

    A worker makes the share of its place, or all passes that it is told of.
    """
    if told is None:
        return (Task(),)
    if place is not None:
        return (Task(place, told.get(str(place), ())),)
    return tuple(Task(int(number), had) for number, had in told.items())


class TaskProducer(PlanThread):
    """Runs tasks, mostly one; every reader takes the next element.

    Spans count the rows of a task, so that a reader knows what it got already. The producer is
    drained once a stream came to the end and no stream has frames that may not have arrived.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        epoch: int,
        buffer_bytes: int,
        name: str,
        on_drained: Callable[[], None],
        share: Share | None = None,
        tasks: Sequence[Task] = (Task(),),
    ) -> None:
        self.frames = FrameBuffer(buffer_bytes, pipeline.compression)
        self._pipeline = pipeline
        self._epoch = epoch
        self._share = share
        self._tasks = tasks
        self._on_drained = on_drained
        self._lock = threading.Lock()
        self._streams = 0
        self._came_to_end = False
        self._drained = False
        super().__init__(self.frames, owner=name, name="task")

    def begin_stream(self) -> None:
        """A reader begins to take frames."""
        with self._lock:
            self._streams += 1

    def end_stream(self, unconfirmed: Iterable[Frame], *, came_to_end: bool) -> None:
        """A reader's stream is over; frames that it did not confirm go to whoever comes next.

        Reports the task as finished when this was the last that it waited for.
        """
        with self._lock:
            if not self._closed:
                self.frames.put_back(unconfirmed)
            self._streams -= 1
            self._came_to_end = self._came_to_end or came_to_end
            pending = self._streams or self.frames.has_returned() or not self._came_to_end
            if pending or self._closed or self._drained:
                return
            self._drained = True
        self._on_drained()

    def _run(self, _stop: threading.Event) -> None:
        self.frames.end(outcome_of(self._store_elements))

    def _store_elements(self) -> None:
        for task in self._tasks:
            for element in self._rest_of(task):
                self.frames.put(element, divisible=False)

    def _rest_of(self, task: Task) -> Iterator[Element]:
        """Elements, or the parts of them that the reader lacks."""
        had = Ranges(task.had)
        omitted = self.frames.omissions.page()
        row = 0
        for batch in self._pipeline.run_whole(self._epoch, self.is_closed, self._share, omitted):
            begin, row = row, row + batch.num_rows
            for first, end in had.missing(begin, row):
                part = batch.slice(first - begin, end - first)
                yield Element(part, (RowSpan(task.number, 0, first, end),))
