"""Runs a whole plan, or a static share of it, into frames for readers: first come, first served.

Knows threads and pipelines, nothing of gRPC or Flight. Invariants: the rows of a task have the same
numbers each time that the task runs, and leave in that order; a frame that did not reach its reader
is sent again.
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

from dataservice.dataset.division.static_sharding import Share
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

# At most this much work is repeated for a reader that resumes. A position is cheap, but not free.
BOOKMARK_EVERY_S: Final = 1.0
MAX_POSITION_CHARS: Final = 16 << 10


class Task(NamedTuple):
    """One pass over the plan, and the rows of it that its reader has.

    `number` identifies the task among those of the reader; NO_WINDOW if readers share the task and
    count no rows. The rows before a `bookmark` need not be made again if the reader has all of
    them. `variant` identifies the pass among those beside it; where no seed was given, each variant
    is shuffled in a different order.
    """

    number: int = NO_WINDOW
    received: Pairs = ()
    bookmark: Bookmark | None = None
    variant: str = ""


def tasks_of(
    received: Mapping[str, Pairs] | None,
    place: int | None,
    bookmarks: Mapping[str, Sequence[Any]] = MappingProxyType({}),
    *,
    worker_id: str = "",
    varied: bool = False,
) -> tuple[Task, ...]:
    """Returns the tasks of a worker, from the rows that its reader has of each (`received`).

    A worker with a `place` in a list of workers runs the share of that place; without one, it runs
    all tasks that it is told of. If `varied`, each of them has a variant of its own, except for
    number 0. If `received` is None, there is one task, which all readers share. DataLossError for a
    malformed bookmark.
    """
    if received is None:
        return (Task(variant=worker_id),)
    numbers = received if place is None else (str(place),)
    try:
        return tuple(
            Task(
                int(number),
                received.get(number, ()),
                Bookmark.from_json(bookmarks[number]) if number in bookmarks else None,
                # The first pass has the order that the plan has without a service.
                variant=number if varied and number != "0" else "",
            )
            for number in numbers
        )
    except (ValueError, TypeError) as error:
        raise DataLossError(f"a reader sent a damaged bookmark: {error}") from error


class TaskProducer(PlanThread):
    """A producer that runs tasks, mostly one; each reader takes whatever element comes next.

    Spans number the rows of a task, so that a reader can tell which rows it already has. The
    producer is drained once a stream has reached the end and no stream has frames that may not have
    arrived.
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
        """Counts a reader's stream that begins to take frames."""
        with self._lock:
            self._streams += 1

    def record_taken(self, beginnings: Iterable[tuple[int, int]]) -> None:
        """Records which frames a leaving reader has taken, each as (task, first row)."""
        with self._lock:
            self._taken.update(beginnings)

    def end_stream(self, unconfirmed: Iterable[Frame], *, came_to_end: bool) -> None:
        """Ends a reader's stream; frames that it took but did not confirm go to the next reader.

        Calls `on_drained`, once, if the producer is drained by that.
        """
        with self._lock:
            if not self._closed:
                self.frames.put_back(f for f in unconfirmed if _beginning(f) not in self._taken)
            self._streams -= 1
            if not self._streams:
                self._taken.clear()  # without streams no frame is left unconfirmed
            self._came_to_end = self._came_to_end or came_to_end
            pending = self._streams or self.frames.has_returned() or not self._came_to_end
            if pending or self._closed or self._drained:
                return
            self._drained = True
        self._on_drained()

    def close(self) -> None:
        # Not while a stream puts frames back: they would be kept, in a reference cycle with self.
        with self._lock:
            super().close()

    def _run(self, _stop: threading.Event) -> None:
        self.frames.end(outcome_of(self._store_elements))

    def _store_elements(self) -> None:
        for task in self._tasks:
            for element in self._rest_of(task):
                self.frames.put(element)

    def _rest_of(self, task: Task) -> Iterator[Element]:
        """Yields the elements of a task, or the parts of them that the reader lacks."""
        received = Ranges(task.received)
        plan = None if task.number == NO_WINDOW else self._pipeline.positions_id(self._share)
        bookmark = _usable(task, received, plan)
        bookmarks = BookmarkMaker(task.number, plan, self._bookmark_every_s)
        omitted = self.frames.omissions.open_run()
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
            mark = bookmarks.at(row, stream)
            while (batch := next(stream, None)) is not None:
                begin, row = row, row + batch.num_rows
                for first, end in received.missing(begin, row):
                    part = batch.slice(first - begin, end - first)
                    yield Element(part, (RowSpan(task.number, 0, first, end),), bookmark=mark)
                    mark = b""
                mark = bookmarks.at(row, stream) or mark


def _beginning(frame: Frame) -> tuple[int, int]:
    """Returns the task and the number of a frame's first row, by which a reader names the frame."""
    return frame.spans[0].window, frame.spans[0].first_row


def _usable(task: Task, received: Ranges, plan: str | None) -> Bookmark | None:
    """Returns the bookmark of a task; None if the reader lacks rows before it.

    Also None, with a warning, if the bookmark is of another plan.
    """
    bookmark = task.bookmark
    if bookmark is None or any(received.missing(0, bookmark.row)):
        return None
    if bookmark.plan != plan:
        logger.warning(
            "computing again the rows of task %d that its reader already has: the saved "
            "position is of plan %s, and this is plan %s; continue with the version that "
            "saved it to avoid this",
            *(task.number, bookmark.plan, plan),
        )
        return None
    return bookmark


def _restore(stream: BatchStream, bookmark: Bookmark) -> int:
    """Moves a fresh stream to a bookmark and returns the number of the row there."""
    try:
        stream.restore(json.loads(bookmark.stream))
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise InvalidArgumentError(
            f"the saved position of row {bookmark.row} is malformed ({error!r}); load a state that "
            "was saved before"
        ) from error
    return bookmark.row


class BookmarkMaker:
    """Makes a bookmark of a task every `every_s` seconds; none if `plan` is None.

    The interval doubles each time that a position is too large to send.
    """

    def __init__(self, task: int, plan: str | None, every_s: float) -> None:
        self._task = task
        self._plan = plan
        self._every_s = every_s
        self._due_s = math.inf if plan is None else time.monotonic() + every_s

    def at(self, row: int, stream: BatchStream) -> bytes:
        """Returns an encoded bookmark of the stream before row `row`; b"" if none is due."""
        now_s = time.monotonic()
        if now_s < self._due_s or self._plan is None:
            return b""
        position = json.dumps(stream.state())
        is_small = len(position) <= MAX_POSITION_CHARS
        if not is_small:
            self._every_s *= 2
            logger.info(
                "sending no position of task %d for %g s, because it takes %d bytes",
                *(self._task, self._every_s, len(position)),
            )
        self._due_s = now_s + self._every_s
        return encode_bookmark(self._task, Bookmark(row, self._plan, position)) if is_small else b""
