"""Group commit: makes decisions durable in the order in which they were applied, many per write.

A decision is applied under the service's lock, but its answer waits here, outside the lock, until
its frame and all earlier frames are on disk. Meanwhile other requests are decided, and their frames
share the next write. Invariant: no answer tells a fact that a restart could forget. So the service
must stop answering while the journal fails: after a full disk until `retry` has written the rest,
after any other failure for good.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from dataservice.errors import DataServiceError, ResourceExhaustedError, UnavailableError
from dataservice.runtime.brief_lock import BriefLock

if TYPE_CHECKING:
    from dataservice.runtime.journal import Journal

logger = logging.getLogger(__name__)


class GroupCommit:
    """A queue of frames to the journal. Thread-safe, provided one thread at a time enqueues."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._lock = BriefLock()
        self._is_writing = False
        self._is_replacing = False
        # Enqueuing appends without the lock; the writing thread takes from the left.
        self._frames: deque[bytes] = deque()
        self._enqueued = 0
        self._taken = 0
        # Frames taken but not yet written; owned by the writing thread.
        self._unwritten: list[bytes] = []
        # Frames enqueued since `begin_replacing`; None while the journal is not being replaced.
        self._since: list[bytes] | None = None
        self._copied_at = 0
        self._durable = 0
        self._failure: Exception | None = None
        # Waiting threads, each blocked on its own lock, so that woken threads do not contend.
        self._waiters: list[tuple[int, threading.Lock]] = []
        self.frames_kept = 0

    def enqueue(self, frame: bytes) -> None:
        """Appends a frame; the caller's lock fixes the order. Does not block."""
        self._frames.append(frame)
        since = self._since
        if since is not None:
            since.append(frame)
        # Incremented last: the writing thread takes as many frames as this counter says.
        self._enqueued += 1

    def ticket(self) -> int:
        """Returns the number to pass to `wait_durable` for all frames enqueued so far."""
        return self._enqueued

    def wait_durable(self, ticket: int) -> None:
        """Blocks until the ticket's frames are on disk; the first waiter writes for all.

        UnavailableError if the journal fails.
        """
        while ticket > self._durable or self._failure is not None:
            with self._lock:
                self.check()
                may_write = not self._is_writing and not self._is_replacing
                if may_write:
                    self._is_writing = True
                else:
                    alarm = self._add_waiter(ticket)
            if may_write:
                self._write(self._append, self._take())
            else:
                alarm.acquire()

    def retry(self) -> None:
        """Retries the write that found the disk full, if any; UnavailableError if it still is."""
        if isinstance(self._failure, ResourceExhaustedError):
            with self._lock:
                if self._is_writing:
                    return
                self._is_writing = True
            self._write(self._append, self._take())
            logger.warning(
                "the journal can be written again; the dispatcher answers requests again"
            )

    def begin_replacing(self) -> None:
        """Marks the moment at which the caller copies the state.

        The caller's lock must keep others from enqueuing while it copies.
        """
        self._since, self._copied_at = [], self._enqueued

    def replace(self, frames: list[bytes]) -> None:
        """Replaces the whole journal by `frames` and those enqueued since `begin_replacing`.

        Frames enqueued before that need no write of their own, as `frames` cover them. If the disk
        has no room for the replacement, logs that and appends the frames that are not yet written.
        """
        while not self._may_replace():
            pass
        upto = self._take()
        since, self._since = (self._since or [])[: upto - self._copied_at], None
        self._write(partial(self._replace_or_append, [*frames, *since]), upto)

    def _may_replace(self) -> bool:
        """Claims the write and returns True, or waits for the end of the current write.

        While it waits, no other thread may begin a write.
        """
        with self._lock:
            self.check()
            self._is_replacing = self._is_writing
            if not self._is_replacing:
                self._is_writing = True
                return True
            alarm = self._add_waiter(0)
        alarm.acquire()
        return False

    def check(self) -> None:
        """Raises UnavailableError while the journal fails."""
        failure = self._failure
        if failure is not None:
            remedy = "until it is restarted; check the disk of its work_dir"
            if isinstance(failure, ResourceExhaustedError):
                remedy = "until there is room on the disk of its work_dir"
            raise UnavailableError(
                f"the dispatcher cannot write its journal ({failure}) and refuses all requests "
                f"{remedy}"
            )

    def _take(self) -> int:
        """Moves the enqueued frames to the writing thread; returns their last ticket."""
        upto = self._enqueued
        self._unwritten += [self._frames.popleft() for _ in range(upto - self._taken)]
        self._taken = upto
        return upto

    def _append(self) -> int:
        """Appends the taken frames and returns how many frames the journal has then."""
        self._journal.append(self._unwritten)
        return self.frames_kept + len(self._unwritten)

    def _replace_or_append(self, frames: list[bytes]) -> int:
        try:
            self._journal.replace(frames)
        except ResourceExhaustedError as error:
            logger.warning("could not compact the journal: %s", error)
            return self._append()
        return len(frames)

    def _write(self, put: Callable[[], int], upto: int) -> None:
        """Calls `put` as the only writer, then wakes the waiters.

        On return all frames up to ticket `upto` are durable; UnavailableError if the journal fails.
        """
        before = self._failure
        failure: Exception | None = RuntimeError("a write was interrupted")
        try:
            kept = put()
            failure = None
        except (DataServiceError, OSError, RuntimeError, ValueError) as error:
            failure = error
            if before is None:
                logger.critical("the journal failed; the dispatcher stops answering: %s", error)
        finally:
            with self._lock:
                self._is_writing, self._failure = False, failure
                if failure is None:
                    self._durable, self.frames_kept, self._unwritten = upto, kept, []
                self._wake()
        self.check()

    # Inside the lock

    def _add_waiter(self, ticket: int) -> threading.Lock:
        """Adds a waiter for `ticket`; returns the lock to block on, outside `self._lock`."""
        alarm = threading.Lock()
        alarm.acquire()
        self._waiters.append((ticket, alarm))
        return alarm

    def _wake(self) -> None:
        """Wakes the threads whose frames are durable, and one other, which writes for the rest."""
        waiters, self._waiters = self._waiters, []
        has_writer = False
        for ticket, alarm in waiters:
            if ticket <= self._durable or self._failure is not None:
                alarm.release()
            elif not has_writer:
                has_writer = True
                alarm.release()
            else:
                self._waiters.append((ticket, alarm))
