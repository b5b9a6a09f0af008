"""Safe use of Arrow's streaming readers, which read files ahead on threads of their own.

These readers read further than they are asked to, and closing them does not wait for their threads.
A read that is still on its way to the operating system would then meet a closed descriptor, or the
same descriptor number of a file opened since, whose own reader would miss those bytes without
noticing. And a thread that enters Python during interpreter shutdown, to release a block or an
error, crashes the process.

Knows nothing of the contents of files. Invariant: after `close`, at the latest at the end of the
program, Arrow does not read the file and holds no reference to it or to bytes read from it.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import logging
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from dataservice.runtime.process.forking import Origin, left_to_parent

logger = logging.getLogger(__name__)

_LET_GO_TIMEOUT_S: Final = 1.0


class _Gate:
    """A lock that lets one read through at a time, until it is closed."""

    def __init__(self) -> None:
        # Reentrant: the garbage collector may run during a read and close this very file.
        self.lock = threading.RLock()
        self.closed = False

    def close(self) -> None:
        with self.lock:
            self.closed = True


class _Hold:
    """An object that a file and its blocks share, so that it is freed when all of them are."""


class _Block(np.ndarray):
    """Bytes of a file, uint8 [n], that keep the file's hold alive."""

    hold: _Hold


class ReadAheadFile:
    """A file that Arrow reads from beginning to end, on any thread."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self.gate = _Gate()
        self.hold = _Hold()

    @property
    def closed(self) -> bool:
        return self.gate.closed

    def read(self, size: int) -> np.ndarray:
        """Returns at most `size` bytes; none at the end, or once the file is closed."""
        with self.gate.lock:
            # Not an error: Arrow would keep it and release it later than the file.
            read = b"" if self.gate.closed else self._read(size)
        block = np.ndarray(len(read), np.uint8, read).view(_Block)
        block.hold = self.hold
        return block

    def close(self) -> None:
        """Waits for a read in progress and prevents further ones.

        Idempotent; leaves the handle open.
        """
        self.gate.close()

    def _read(self, size: int) -> bytes:
        return bytes(self._handle.read(size))


class _AtExit:
    """Waits at the end of the program until Arrow holds none of the files that it failed to open.

    It has read ahead of them too, and its threads would go on doing so in the shutdown.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[weakref.ref[_Hold], queue.SimpleQueue[Any]] = {}

    def let_go_of(self, hold: _Hold) -> None:
        """Has the end of the program wait until nobody has ``hold``, if somebody still has."""
        let_go: queue.SimpleQueue[Any] = queue.SimpleQueue()
        with self._lock:
            if not self._held:
                atexit.register(self._wait, Origin())
            self._held = {ref: left for ref, left in self._held.items() if ref() is not None}
            self._held[weakref.ref(hold, let_go.put)] = let_go

    def _wait(self, origin: Origin) -> None:
        if not origin.is_here:  # a forked child has none of the threads
            return
        gc.collect()  # frees errors with their frames
        deadline_s = time.monotonic() + _LET_GO_TIMEOUT_S
        for let_go in self._held.values():
            with contextlib.suppress(queue.Empty):
                let_go.get(timeout=max(0.0, deadline_s - time.monotonic()))


_at_exit = _AtExit()


class ReadAheadBatches:
    """The batches that the reader made by `open_reader` reads from `file`."""

    def __init__(self, file: ReadAheadFile, open_reader: Callable[[ReadAheadFile], Any]) -> None:
        try:
            reader = open_reader(file)
        except BaseException:
            file.close()
            # Not here: frames of the error, and whoever handles it, hold the file.
            _at_exit.let_go_of(file.hold)
            raise
        self.schema: pa.Schema = reader.schema
        self._reading = _Reading(left_to_parent(reader), file)
        # For batches that are dropped before their end, and for the end of the program.
        weakref.finalize(self, self._reading.close)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while (batch := self._reading.next_batch()) is not None:
            yield batch

    def close(self) -> None:
        """Ends reading after a read in progress. Idempotent; leaves the file's handle open."""
        self._reading.close()


class _Reading:
    """The only reference to a reader, of which `close` waits for the threads; holds no file."""

    def __init__(self, reader: Any, file: ReadAheadFile) -> None:
        self._reader = reader
        self._gate = file.gate
        # Signalled by the last thread to release the file. By a callback in C: a thread that ran
        # Python code here could lose the interpreter to the thread that waits for it, and find no
        # interpreter to come back to at the end of the program.
        self._let_go: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._hold = weakref.ref(file.hold, self._let_go.put)
        self._origin = Origin()

    def next_batch(self) -> pa.RecordBatch | None:
        """Returns the next batch, None at the end; ValueError once closed.

        Closing the file looks to Arrow like the end of the file, which it is not.
        """
        reader, batch = self._reader, None
        try:
            if reader is not None:
                with contextlib.suppress(StopIteration):
                    batch = reader.read_next_batch()
        finally:
            # An error on its way keeps this frame, and `close` waits until nothing has the reader.
            reader = None
        if self._gate.closed:
            raise ValueError("read of a closed file")
        return batch

    def close(self) -> None:
        # A forked child has none of the threads, and the locks that they held stay locked.
        if self._reader is None or not self._origin.is_here:
            return
        self._gate.close()
        self._reader = None
        try:
            self._let_go.get(timeout=_LET_GO_TIMEOUT_S)
        except queue.Empty:
            logger.debug("Arrow still holds a file that was closed")
