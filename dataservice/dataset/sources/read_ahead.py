"""What Arrow's streaming readers give of files, which they read on threads of their own.

They read further than they are asked to, and do not wait for those threads when they are closed. A
read that is still on its way to the operating system would meet a closed descriptor there, or the
file that was opened since and has the same number: whose reader would then miss those bytes, and
not know it. And a thread that comes to Python while the interpreter goes down, be it to give back
a block or an error, takes the process with it.

Knows nothing of what is in the files. Invariant: once it is closed, at the end of the program at
the latest, Arrow reads nothing of a file and holds nothing of it, nor of what it has read.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from dataservice.runtime.forking import Origin, left_to_parent

logger = logging.getLogger(__name__)

_LET_GO_TIMEOUT_S: Final = 1.0


class _Gate:
    """Lets one read through at a time, until it is closed."""

    def __init__(self) -> None:
        # The garbage collector may come by in the middle of a read, and close this very file.
        self.lock = threading.RLock()
        self.closed = False

    def close(self) -> None:
        with self.lock:
            self.closed = True


class _Hold:
    """What a file and its blocks have in common: it is gone when all of them are."""


class _Block(np.ndarray):
    """Bytes, uint8 [n], with the hold of their file."""

    hold: _Hold


class ReadAheadFile:
    """A file to be read from its beginning to its end by Arrow, on any thread."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self.gate = _Gate()
        self.hold = _Hold()

    @property
    def closed(self) -> bool:
        return self.gate.closed

    def read(self, size: int) -> np.ndarray:
        """At most `size` bytes; none at the end, and once it is closed."""
        with self.gate.lock:
            # No error: Arrow would hold that, and let it go later than the file.
            read = b"" if self.gate.closed else self._read(size)
        block = np.ndarray(len(read), np.uint8, read).view(_Block)
        block.hold = self.hold
        return block

    def close(self) -> None:
        """Ends reading, after a read that is under way. Idempotent; leaves the handle open."""
        self.gate.close()

    def _read(self, size: int) -> bytes:
        return bytes(self._handle.read(size))


class LinesFile(ReadAheadFile):
    """One of which no block ends between the two characters of a line's end.

    Arrow's reader of CSV drops the second one at the beginning of a block, also inside of quotes.
    """

    def _read(self, size: int) -> bytes:
        block: bytes = self._handle.read(max(1, size - 1))
        if block.endswith(b"\r"):
            block += self._handle.read(1)
        return block


class ReadAheadBatches:
    """The batches that the reader which `open_reader` makes gives of `file`."""

    def __init__(self, file: ReadAheadFile, open_reader: Callable[[ReadAheadFile], Any]) -> None:
        try:
            reader = open_reader(file)
        except BaseException:
            file.close()
            raise
        self.schema: pa.Schema = reader.schema
        self._reading = _Reading(left_to_parent(reader), file)
        # Where it is forgotten in the middle, and at the end of the program.
        weakref.finalize(self, self._reading.close)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while (batch := self._reading.next_batch()) is not None:
            yield batch

    def close(self) -> None:
        """Waits for a read that is under way. Idempotent; leaves the file's handle open."""
        self._reading.close()


class _Reading:
    """Holds the only reference to a reader, whose end waits for its thread; none to its file."""

    def __init__(self, reader: Any, file: ReadAheadFile) -> None:
        self._reader = reader
        self._gate = file.gate
        # Told by whichever thread lets go last: in C, for one that ran Python code there could lose
        # the interpreter to who waits for it, and would come back to none at the program's end.
        self._let_go: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._hold = weakref.ref(file.hold, self._let_go.put)
        self._origin = Origin()

    def next_batch(self) -> pa.RecordBatch | None:
        """None at the end; ValueError once it is closed, where Arrow sees an end that is none."""
        reader, batch = self._reader, None
        if reader is not None:
            with contextlib.suppress(StopIteration):
                batch = reader.read_next_batch()
        if self._gate.closed:
            raise ValueError("read of a closed file")
        return batch

    def close(self) -> None:
        # A forked child has none of the threads, and their locks may be held for ever.
        if self._reader is None or not self._origin.is_here:
            return
        self._gate.close()
        self._reader = None
        try:
            self._let_go.get(timeout=_LET_GO_TIMEOUT_S)
        except queue.Empty:
            logger.debug("Arrow still holds a file that was closed")
