"""Runs a whole plan, or a static share of it, into frames: first come first served.

Knows threads and pipelines, nothing of gRPC or Flight. Invariants: the rows of a task have the same
numbers each time that it runs, and come in their order; frames that did not arrive come again.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from dataservice.dataset.static_sharding import Share
from dataservice.dataset.stream import BatchStream
from dataservice.errors import DataLossError, InvalidArgumentError
from dataservice.ranges import Pairs, Ranges
from dataservice.wire.bookmarks import Bookmark, encode_bookmark
from dataservice.wire.elements import NO_WINDOW, RowSpan
from dataservice.worker.failures import outcome_of
from dataservice.worker.outgoing import Frame, FrameBuffer
from dataservice.worker.plan_thread import PlanThread
from dataservice.worker.rebatch import Element
from dataservice.worker.task import Pipeline

logger = logging.getLogger(__name__)

# What a reader that goes on may have made again; a position is cheap, but not free.
BOOKMARK_EVERY_S: Final = 1.0
MAX_POSITION_CHARS: Final = 16 << 10


class Task(NamedTuple):
    """What to run, and the rows of it that its reader has.

    `number` tells it from other tasks of the reader; NO_WINDOW: readers share it and count nothing.
    With a `bookmark` what lies before it need not be made again, if the reader has all of that.
    `variant` tells it from passes beside it, which are shuffled otherwise where no seed was given.
    """

    number: int = NO_WINDOW
    had: Pairs = ()
    bookmark: Bookmark | None = None
    variant: str = ""


def tasks_of(
    told: Mapping[str, Pairs] | None,
    place: int | None,
    bookmarks: Mapping[str, Sequence[Any]] = MappingProxyType({}),
    *,
    worker_id: str = "",
    varied: bool = False,
) -> tuple[Task, ...]:
    """The tasks of a worker at a `place` of the list, or elsewhere, by what a reader told it.

    A worker makes the share of its place, or all passes that it is told of, which are `varied`
    unless they began before passes were. DataLossError for bookmarks that are none.
    """
    if told is None:
        return (Task(variant=worker_id),)
    numbers = told if place is None else (str(place),)
    try:
        return tuple(
            Task(
                int(number),
                told.get(number, ()),
                Bookmark.from_json(bookmarks[number]) if number in bookmarks else None,
                # The first is the one that is made without a service.
                variant=number if varied and number != "0" else "",
            )
            for number in numbers
        )
    except (ValueError, TypeError) as error:
        raise DataLossError(f"a reader sent a damaged bookmark: {error}") from error


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
        bookmark_every_s: float = BOOKMARK_EVERY_S,
    ) -> None:
        self.frames = FrameBuffer(buffer_bytes, pipeline.compression)
        self._pipeline = pipeline
        self._epoch = epoch
        self._share = share
        self._tasks = tasks
        self._bookmark_every_s = bookmark_every_s
        self._on_drained = on_drained
        self._lock = threading.Lock()
        self._streams = 0
        self._taken: set[tuple[int, int]] = set()
        self._came_to_end = False
        self._drained = False
        super().__init__(self.frames, owner=name, name="task")

    def begin_stream(self) -> None:
        """A reader begins to take frames."""
        with self._lock:
            self._streams += 1

    def note_taken(self, beginnings: Iterable[tuple[int, int]]) -> None:
        """A reader that leaves has had the frames that begin with these rows of these tasks."""
        with self._lock:
            self._taken.update(beginnings)

    def end_stream(self, unconfirmed: Iterable[Frame], *, came_to_end: bool) -> None:
        """A reader's stream is over; frames that it did not confirm go to whoever comes next.

        Reports the task as finished when this was the last that it waited for.
        """
        with self._lock:
            if not self._closed:
                self.frames.put_back(f for f in unconfirmed if _beginning(f) not in self._taken)
            self._streams -= 1
            if not self._streams:
                self._taken.clear()  # nobody has any of them
            self._came_to_end = self._came_to_end or came_to_end
            pending = self._streams or self.frames.has_returned() or not self._came_to_end
            if pending or self._closed or self._drained:
                return
            self._drained = True
        self._on_drained()

    def close(self) -> None:
        # Not while a stream puts frames back: those would stay, in a cycle with this object.
        with self._lock:
            super().close()

    def _run(self, _stop: threading.Event) -> None:
        self.frames.end(outcome_of(self._store_elements))

    def _store_elements(self) -> None:
        for task in self._tasks:
            for element in self._rest_of(task):
                self.frames.put(element, divisible=False)

    def _rest_of(self, task: Task) -> Iterator[Element]:
        """Elements, or the parts of them that the reader lacks."""
        had = Ranges(task.had)
        plan = None if task.number == NO_WINDOW else self._pipeline.positions_id(self._share)
        bookmark = _usable(task, had, plan)
        marker = Marker(task.number, plan, self._bookmark_every_s)
        omitted = self.frames.omissions.page()
        restores = bookmark is not None
        with self._pipeline.open_whole(
            self._epoch,
            self.is_closed,
            self._share,
            omitted,
            restores=restores,
            variant=task.variant,
        ) as stream:
            row = 0 if bookmark is None else _restore(stream, bookmark)
            mark = marker.at(row, stream)
            while (batch := next(stream, None)) is not None:
                begin, row = row, row + batch.num_rows
                for first, end in had.missing(begin, row):
                    part = batch.slice(first - begin, end - first)
                    yield Element(part, (RowSpan(task.number, 0, first, end),), bookmark=mark)
                    mark = b""
                mark = marker.at(row, stream) or mark


def _beginning(frame: Frame) -> tuple[int, int]:
    """Task and row of the first row of a frame, by which a reader names it."""
    return frame.spans[0].window, frame.spans[0].first_row


def _usable(task: Task, had: Ranges, plan: str | None) -> Bookmark | None:
    """A bookmark of the same plan before which the reader lacks nothing."""
    bookmark = task.bookmark
    if bookmark is None or any(had.missing(0, bookmark.row)):
        return None
    if bookmark.plan != plan:
        logger.warning(
            "the rows of task %d that its reader has are made again: its saved position is of plan "
            "%s, this is %s; go on with the version that saved it to avoid that",
            *(task.number, bookmark.plan, plan),
        )
        return None
    return bookmark


def _restore(stream: BatchStream, bookmark: Bookmark) -> int:
    """Moves a fresh stream to a bookmark; the row it is at."""
    try:
        stream.restore(json.loads(bookmark.stream))
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise InvalidArgumentError(
            f"the saved position of row {bookmark.row} is malformed ({error!r}); load a state that "
            "was saved before"
        ) from error
    return bookmark.row


class Marker:
    """Makes bookmarks of a task now and then, where its positions can be saved."""

    def __init__(self, task: int, plan: str | None, every_s: float) -> None:
        self._task = task
        self._plan = plan
        self._every_s = every_s
        self._due_s = math.inf if plan is None else time.monotonic() + every_s

    def at(self, row: int, stream: BatchStream) -> bytes:
        """The bookmark of where a stream stands, before its row `row`; b"" while none is due."""
        now_s = time.monotonic()
        if now_s < self._due_s or self._plan is None:
            return b""
        self._due_s = now_s + self._every_s
        position = json.dumps(stream.state())
        if len(position) <= MAX_POSITION_CHARS:
            return encode_bookmark(self._task, Bookmark(row, self._plan, position))
        self._every_s *= 2
        logger.info(
            "no bookmark of task %d for %g s: its position takes %d bytes",
            *(self._task, self._every_s, len(position)),
        )
        return b""
