"""A file that is being written: counted, checksummed, and synced when it is finished.

Knows nothing of formats. Invariant: a file that was finished is on the disk, its folder's entry
too; one that was not is of no use to anybody and will be removed with its folder.
"""

from __future__ import annotations

import os
import zlib
from types import TracebackType
from typing import Any

from pstrain.failpoints import reached


class OutputFile:
    """Also a sink for ``pyarrow.PythonFile``. Blocks; what the disk refuses is an OSError."""

    def __init__(self, path: str) -> None:
        self._stream = open(path, "wb", buffering=0)  # noqa: SIM115
        self.size_bytes = 0
        self.crc32 = 0
        self.closed = False

    def write(self, data: Any) -> int:
        """All of ``data``, which is something with a buffer."""
        reached("checkpoint_write")
        view = memoryview(data).cast("B")
        self.crc32 = zlib.crc32(view, self.crc32)
        self.size_bytes += len(view)
        left = view
        while left:
            left = left[self._stream.write(left) :]
        return len(view)

    def __enter__(self) -> OutputFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                os.fsync(self._stream.fileno())
        finally:
            self._stream.close()

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        return self.size_bytes

    def flush(self) -> None:
        """Everything is with the system already."""

    def close(self) -> None:
        self.closed = True
