"""The part of a save after its snapshot: writing, committing and notifying, here or in a thread.

Knows nothing of variables or of the contents of a manifest. Invariant: a save ends with a whole
checkpoint, or with none and an error that is reported; the snapshot is released in both cases.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dataservice.runtime.arguments import limit_s
from dataservice.runtime.process.ending import end_with_program
from dataservice.runtime.refused_timeouts import refuse_timeout_s
from dataservice.runtime.threads import wait_until
from pstrain.checkpoints.manifest import PartialCheckpoint
from pstrain.errors import DataServiceError, DeadlineExceededError

logger = logging.getLogger(__name__)

OnWritten = Callable[[str], None]


class Written(NamedTuple):
    """A manifest, and the bytes written for it if they are fewer than the size of the values."""

    contents: dict[str, Any]
    size_bytes: int | None = None


class SavedCheckpoint(str):
    """The path of a checkpoint that is saved, or is being saved, with figures about the save.

    ``pause_s`` is how long no closure ran while the snapshot was taken, ``drain_s`` how long the
    closures in flight took to end before that, while no other began. ``write_s`` is the time for
    the files; None until they are written. ``size_bytes`` is the size of the values, or the size of
    what was written once an incremental save has ended. ``was_error_raised`` means that the error
    of a failed save has been raised to a caller.
    """

    pause_s: float
    drain_s: float
    write_s: float | None
    size_bytes: int
    was_error_raised: bool
    _ended: threading.Event
    _error: BaseException | None

    def __new__(
        cls, path: str, *, pause_s: float, drain_s: float, size_bytes: int
    ) -> SavedCheckpoint:
        saved = super().__new__(cls, path)
        saved.pause_s, saved.drain_s = pause_s, drain_s
        saved.write_s = None
        saved.size_bytes = size_bytes
        saved._ended = threading.Event()
        saved._error = None
        saved.was_error_raised = False
        return saved

    @property
    def is_complete(self) -> bool:
        """Whether the whole checkpoint is on the disk."""
        return self._ended.is_set() and self._error is None

    @property
    def has_ended(self) -> bool:
        """Whether the save has ended, with success or not."""
        return self._ended.is_set()

    @property
    def has_failed(self) -> bool:
        """Whether the save has failed, with an error that :meth:`wait` raises."""
        return self._ended.is_set() and self._error is not None

    @refuse_timeout_s("wait")
    def wait(self, timeout: float | None = None) -> SavedCheckpoint:
        """Blocks until the checkpoint is on the disk; raises the error of a failed save.

        Raises DeadlineExceededError after ``timeout`` seconds; the save then still goes on.
        """
        if not wait_until(self._ended.wait, limit_s(timeout)):
            raise DeadlineExceededError(f"{self} is not written after {timeout} s")
        if self._error is not None:
            self.was_error_raised = True
            raise self._error
        return self

    def wait_ended(self) -> None:
        """Blocks until the save has ended, with success or not."""
        wait_until(self._ended.wait)

    def _run(self, write: Callable[[], None], written: Sequence[OnWritten]) -> None:
        started_s = time.monotonic()
        try:
            write()
            self.write_s = time.monotonic() - started_s
            logger.info(
                "saved checkpoint %s: training paused for %.3f s, %.1f MB written in %.1f s",
                str(self), self.pause_s, self.size_bytes / 1e6, self.write_s,
            )  # fmt: skip
            for tell in written:
                tell(str(self))
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._ended.set()

    def _run_in_thread(self, write: Callable[[], None], written: Sequence[OnWritten]) -> None:
        def run() -> None:
            try:
                self._run(write, written)
            except Exception as error:
                logger.error("checkpoint %s was not saved: %s", str(self), error)

        thread = threading.Thread(target=run, name="checkpoint", daemon=False)
        try:
            thread.start()
        except RuntimeError:  # the system allows no more threads
            self._run(write, written)
            return
        # A program that ends waits for its last checkpoint, before the pools that write it end.
        end_with_program(thread, threading.Thread.join)


def save(
    saved: SavedCheckpoint,
    partial: PartialCheckpoint,
    write: Callable[[str], Written],
    release: Callable[[], None],
    *,
    asynchronous: bool,
    written: Sequence[OnWritten] = (),
) -> None:
    """Calls ``write(folder)``, commits what it returns, and calls ``release`` in any case.

    Calls each of ``written`` with the path once the checkpoint is visible.
    """

    def run() -> None:
        try:
            contents, size_bytes = write(partial.folder)
            partial.commit(contents)
            saved.size_bytes = saved.size_bytes if size_bytes is None else size_bytes
        finally:
            partial.end()
            release()

    if asynchronous:
        saved._run_in_thread(run, written)
    else:
        saved._run(run, written)


def end_save(wait: Callable[[], object]) -> None:
    """Waits for a save under way; if it fails, as when a server is lost, logs a warning."""
    try:
        wait()
    except (DataServiceError, OSError) as error:
        logger.warning("abandoned a checkpoint that was being written: %s", error)
