"""Makes decisions durable in the order in which they were applied, many per write.

A decision is applied under the service's lock, but its answer waits here, outside of it, until
its frame and all earlier ones are on disk; meanwhile others decide, and their frames share the
next write. Invariant: nobody is told of a fact that a restart could forget. So the service must
stop answering while the journal fails: until `retry` has written what is left, where there was no
room, and for good after any other failure.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from dataservice.errors import DataServiceError, ResourceExhaustedError, UnavailableError
from dataservice.runtime.brief_lock import BriefLock

if TYPE_CHECKING:
    from dataservice.runtime.journal import Journal

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Telling:
    """What an answer tells. One without `has_facts`, and that decided nothing, need not wait."""

    has_facts: bool = True


class GroupCommit:
    """Frames on their way to a journal. Thread-safe, where one thread at a time enqueues."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._lock = BriefLock()
        self._is_writing = False
        self._is_replacing = False
        # Added to by whoever enqueues, and without a lock; taken from by whoever writes.
        self._frames: deque[bytes] = deque()
        self._enqueued = 0
        self._taken = 0
        # Taken, but not yet written; belongs to whoever writes.
        self._unwritten: list[bytes] = []
        # Frames since the state was copied that is to replace the journal.
        self._since: list[bytes] | None = None
        self._copied_at = 0
        self._durable = 0
        self._failure: Exception | None = None
        # Those who wait, each asleep in a lock of its own: nobody who is woken waits for another.
        self._asleep: list[tuple[int, threading.Lock]] = []
        self.frames_kept = 0

    def enqueue(self, frame: bytes) -> None:
        """Adds a frame; the caller's lock decides the order. Does not block."""
        self._frames.append(frame)
        since = self._since
        if since is not None:
            since.append(frame)
        # Last: whoever writes takes as many frames as this counts.
        self._enqueued += 1

    def ticket(self) -> int:
        """What to wait for, so that everything enqueued until now is durable."""
        return self._enqueued

    def wait_durable(self, ticket: int) -> None:
        """Blocks until the ticket's frames are on disk; whoever comes first writes for all."""
        while ticket > self._durable or self._failure is not None:
            with self._lock:
                self.check()
                may_write = not self._is_writing and not self._is_replacing
                if may_write:
                    self._is_writing = True
                else:
                    alarm = self._fall_asleep(ticket)
            if may_write:
                self._write(self._append, self._take())
            else:
                alarm.acquire()

    def retry(self) -> None:
        """Writes what found no room, if there is room by now; else UnavailableError, as before."""
        if isinstance(self._failure, ResourceExhaustedError):
            with self._lock:
                if self._is_writing:
                    return
                self._is_writing = True
            self._write(self._append, self._take())
            logger.warning("the journal can be written again; the dispatcher goes on")

    def begin_replacing(self) -> None:
        """The state is copied now; the caller's lock keeps others from enqueuing meanwhile."""
        self._since, self._copied_at = [], self._enqueued

    def replace(self, frames: list[bytes]) -> None:
        """Puts frames, and those enqueued since `begin_replacing`, in place of all.

        What was enqueued before that need not be written any more: `frames` contain it. Where
        is room for the latter alone, these are added, which is logged.
        """
        while not self._may_replace():
            pass
        upto = self._take()
        since, self._since = (self._since or [])[: upto - self._copied_at], None
        self._write(partial(self._replace_or_append, [*frames, *since]), upto)

    def _may_replace(self) -> bool:
        """Begins a write, or waits for the end of another; nobody else begins one meanwhile."""
        with self._lock:
            self.check()
            self._is_replacing = self._is_writing
            if not self._is_replacing:
                self._is_writing = True
                return True
            alarm = self._fall_asleep(0)
        alarm.acquire()
        return False

    def check(self) -> None:
        """UnavailableError while the journal fails."""
        failure = self._failure
        if failure is not None:
            remedy = "until it is restarted; see to the disk of its work_dir"
            if isinstance(failure, ResourceExhaustedError):
                remedy = "until it can; make room on the disk of its work_dir"
            raise UnavailableError(
                f"the dispatcher cannot write its journal ({failure}) and serves nothing {remedy}"
            )

    def _take(self) -> int:
        """Takes what was enqueued until now, for the one that writes; up to which ticket."""
        upto = self._enqueued
        self._unwritten += [self._frames.popleft() for _ in range(upto - self._taken)]
        self._taken = upto
        return upto

    def _append(self) -> int:
        """Adds what was taken; how many frames the journal has then."""
        self._journal.append(self._unwritten)
        return self.frames_kept + len(self._unwritten)

    def _replace_or_append(self, frames: list[bytes]) -> int:
        try:
            self._journal.replace(frames)
        except ResourceExhaustedError as error:
            logger.warning("the journal is not shortened: %s", error)
            return self._append()
        return len(frames)

    def _write(self, put: Callable[[], int], upto: int) -> None:
        """Writes alone; afterwards everything `upto` is durable, or the journal has failed."""
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

    def _fall_asleep(self, ticket: int) -> threading.Lock:
        """What to acquire, without the lock, to be woken after a write."""
        alarm = threading.Lock()
        alarm.acquire()
        self._asleep.append((ticket, alarm))
        return alarm

    def _wake(self) -> None:
        """Wakes who has what it waits for, and one of the others, which writes for them."""
        asleep, self._asleep = self._asleep, []
        has_writer = False
        for ticket, alarm in asleep:
            if ticket <= self._durable or self._failure is not None:
                alarm.release()
            elif not has_writer:
                has_writer = True
                alarm.release()
            else:
                self._asleep.append((ticket, alarm))
