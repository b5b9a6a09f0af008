"""Files that Arrow reads on threads of its own, further than it was asked to.

Its streaming readers do not wait for those threads when they are closed. A read that is still on
its way to the operating system would meet a closed descriptor there, or the file that was opened
since and has the same number: whose reader would then miss those bytes, and not know it.

Knows nothing of what is in the files. Invariant: nothing is read of a file while it is being closed
or after.
"""

from __future__ import annotations

import threading
from typing import Any


class ReadAheadFile:
    """A file to be read from its beginning to its end by whoever holds it, on any thread."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        # The garbage collector may come by in the middle of a read, and close this very file.
        self._lock = threading.RLock()
        self.closed = False

    def read(self, size: int) -> bytes:
        """At most `size` bytes, none at the end; ValueError once it is closed."""
        with self._lock:
            if self.closed:
                raise ValueError("read of a closed file")
            return self._read(size)

    def close(self) -> None:
        """Ends reading, after a read that is under way. Idempotent; leaves the handle open."""
        with self._lock:
            self.closed = True

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
