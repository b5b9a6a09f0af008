"""Makes decisions durable in the order in which they were applied, many per write.

A decision is applied under the service's lock, but its answer waits here, outside of it, until
its frame and all earlier ones are on disk; meanwhile others decide, and their frames share the
next write. Invariant: nobody is told of a fact that a restart could forget. A journal that fails
once is never written again, so the service must stop answering.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dataservice.errors import DataServiceError, UnavailableError

if TYPE_CHECKING:
    from dataservice.runtime.journal import Journal

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Telling:
    """What an answer tells. One without `has_facts`, and that decided nothing, need not wait."""

    has_facts: bool = True


class GroupCommit:
    """Frames on their way to a journal. Thread-safe."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._queue_lock = threading.Lock()
        # Told whenever a write has ended. Nobody who is durable waits for the next one.
        self._written = threading.Condition(self._queue_lock)
        self._is_writing = False
        self._is_replacing = False
        self._frames: list[bytes] = []
        # Frames since the state was copied that is to replace the journal.
        self._since: list[bytes] | None = None
        self._enqueued = 0
        self._durable = 0
        self._failure: Exception | None = None
        self.frames_kept = 0

    def enqueue(self, frame: bytes) -> None:
        """Adds a frame; the caller's lock decides the order. Does not block."""
        with self._queue_lock:
            self._frames.append(frame)
            if self._since is not None:
                self._since.append(frame)
            self._enqueued += 1

    def ticket(self) -> int:
        """What to wait for, so that everything enqueued until now is durable."""
        return self._enqueued

    def wait_durable(self, ticket: int) -> None:
        """Blocks until the ticket's frames are on disk; whoever comes first writes for all."""
        if ticket <= self._durable and self._failure is None:
            return
        with self._written:
            while (self._is_writing or self._is_replacing) and ticket > self._durable:
                self._written.wait()
            self.check()
            if ticket <= self._durable:
                return
            self._is_writing = True
            frames, self._frames = self._frames, []
            upto = self._enqueued
        self._write(self._journal.append, frames, upto, self.frames_kept + len(frames))

    def begin_replacing(self) -> None:
        """The state is copied now; the caller's lock keeps others from enqueuing meanwhile."""
        with self._queue_lock:
            self._since = []

    def replace(self, frames: list[bytes]) -> None:
        """Puts frames, and those enqueued since `begin_replacing`, in place of all.

        What was enqueued before that need not be written any more: `frames` contain it.
        """
        with self._written:
            # Who waits for other frames lets this write go first, and needs no other then.
            self._is_replacing = True
            while self._is_writing:
                self._written.wait()
            self._is_replacing = False
            self.check()
            self._is_writing = True
            since, self._since = self._since or [], None
            self._frames.clear()
            upto = self._enqueued
        frames = [*frames, *since]
        self._write(self._journal.replace, frames, upto, len(frames))

    def check(self) -> None:
        """UnavailableError once the journal has failed."""
        if self._failure is not None:
            raise UnavailableError(
                f"the dispatcher cannot write its journal ({self._failure}) and serves nothing "
                "until it is restarted; see to the disk of its work_dir"
            )

    def _write(
        self, put: Callable[[list[bytes]], None], frames: list[bytes], upto: int, kept: int
    ) -> None:
        """Writes alone; afterwards everything `upto` is durable, or the journal has failed."""
        failure: Exception | None = RuntimeError("a write was interrupted")
        try:
            put(frames)
            failure = None
        except (DataServiceError, OSError, RuntimeError, ValueError) as error:
            failure = error
            logger.critical("the journal failed; the dispatcher stops answering: %s", error)
        finally:
            with self._written:
                self._is_writing, self._failure = False, failure
                if failure is None:
                    self._durable, self.frames_kept = upto, kept
                self._written.notify_all()
        self.check()
