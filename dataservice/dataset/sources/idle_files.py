"""Files that are kept open after reading because they may be read again soon.

Opening a file and reading its footer can take as long as reading thousands of its rows. Knows no
format and no path, only keys. Invariant: an open file belongs either to this cache or to one
caller, and is closed once.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import Any, Final, NamedTuple

# Each open file takes a file descriptor.
_MAX_IDLE: Final = 16


class OpenFile(NamedTuple):
    """A file that was opened and checked; closing `stack` closes it."""

    reader: Any
    stack: contextlib.ExitStack


class IdleFiles:
    """A cache of the files that were put into it last. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: deque[tuple[tuple[Any, ...], OpenFile]] = deque()

    def take(self, key: tuple[Any, ...]) -> OpenFile | None:
        """Removes and returns a file with this key, for the caller alone; None if there is none."""
        with self._lock:
            for index, (known, file) in enumerate(self._files):
                if known == key:
                    del self._files[index]
                    return file
        return None

    def put(self, key: tuple[Any, ...], file: OpenFile) -> None:
        """Stores a file that was taken or opened; closes the oldest file if there are too many."""
        with self._lock:
            self._files.append((key, file))
            dropped = self._files.popleft()[1] if len(self._files) > _MAX_IDLE else None
        if dropped is not None:
            dropped.stack.close()
