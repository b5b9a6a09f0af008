"""Files that were read and may be read again soon, kept open.

To open a file and look at its footer can take as long as reading thousands of its rows. It knows no
format and no path, only keys. Invariant: a file is here or with one caller, and closed once.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import Any, Final, NamedTuple

# Each costs a descriptor.
_MAX_IDLE: Final = 16


class OpenFile(NamedTuple):
    """A file that was opened and found in order."""

    reader: Any
    stack: contextlib.ExitStack


class IdleFiles:
    """The files that were put here last. Thread safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: deque[tuple[tuple[Any, ...], OpenFile]] = deque()

    def take(self, key: tuple[Any, ...]) -> OpenFile | None:
        """One for the caller alone."""
        with self._lock:
            for index, (known, file) in enumerate(self._files):
                if known == key:
                    del self._files[index]
                    return file
        return None

    def put(self, key: tuple[Any, ...], file: OpenFile) -> None:
        """What was taken, or opened anew."""
        with self._lock:
            self._files.append((key, file))
            dropped = self._files.popleft()[1] if len(self._files) > _MAX_IDLE else None
        if dropped is not None:
            dropped.stack.close()
