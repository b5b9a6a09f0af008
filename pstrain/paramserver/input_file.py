"""Reads a file of a checkpoint once, and checks each piece before any byte of it is used.

Knows nothing of formats. Pieces are those of ``OutputFile``. Invariant: no byte of a piece is
returned unless the checksum of the piece is the one in the checkpoint.
"""

from __future__ import annotations

import mmap
import os
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dataservice.runtime.checksum import checksum
from pstrain.errors import DataLossError
from pstrain.paramserver import output_file
from pstrain.paramserver.messages import reused_buffer
from pstrain.paramserver.saved import SavedShard

Piece = NDArray[np.uint8]


class InputFile:
    """The file of ``part`` in ``directory``, as a file object for Arrow. Blocks; a context manager.

    A thread, which ends with the context, reads the next piece while one is used. Raises
    FileNotFoundError if there is no file, DataLossError if it has another size, and DataLossError
    at the first read from a damaged piece.
    """

    def __init__(self, directory: str, part: SavedShard) -> None:
        self._path = os.path.join(directory, part.file)
        self._part = part
        self._sums = output_file.sums_of(part.sums)
        self._at = 0
        self._coming: dict[int, tuple[Future[Piece], Piece]] = {}
        self._spare: list[Piece] = []
        self._handle = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint-input")
        found = os.fstat(self._handle).st_size
        if found != part.size_bytes or len(self._sums) != -(-found // output_file.PIECE_BYTES):
            self.close()
            raise self._damaged(f"{found} bytes of {part.size_bytes}")
        if output_file.joined(self._sums) != part.checksum:
            self.close()
            raise self._damaged("the manifest's checksums are not one another's")

    def read(self, size: int = -1) -> pa.Buffer:
        """Reads the next ``size`` bytes, fewer at the end of the file; -1 reads to the end."""
        left = self._part.size_bytes - self._at
        out = reused_buffer(left if size < 0 else min(size, left))
        target = np.frombuffer(out, np.uint8)
        while len(target):
            index, start = divmod(self._at, output_file.PIECE_BYTES)
            some = self._piece(index)[start : start + len(target)]
            target[: len(some)] = some
            self._at, target = self._at + len(some), target[len(some) :]
        return out

    def _piece(self, index: int) -> Piece:
        for left in [i for i in self._coming if i not in (index, index + 1)]:
            coming, memory = self._coming.pop(left)
            coming.result()
            self._spare.append(memory)
        for wanted in (index, index + 1):
            if wanted < len(self._sums) and wanted not in self._coming:
                memory = self._spare.pop() if self._spare else _memory()
                self._coming[wanted] = (self._thread.submit(self._read, wanted, memory), memory)
        return self._coming[index][0].result()

    def _read(self, index: int, memory: Piece) -> Piece:
        start = index * output_file.PIECE_BYTES
        piece = memory[: min(output_file.PIECE_BYTES, self._part.size_bytes - start)]
        done = 0
        while done < len(piece):
            count = os.preadv(self._handle, [piece[done:].data], start + done)
            if not count:
                raise self._damaged(f"it ends after {start + done} bytes")
            done += count
        if checksum(piece) != self._sums[index]:
            raise self._damaged(f"bytes {start} to {start + done} are others")
        return piece

    def _damaged(self, how: str) -> DataLossError:
        return DataLossError(
            f"file {self._path} of variable {self._part.name!r} is damaged: {how}; restore an "
            "older checkpoint"
        )

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._part.size_bytes}[whence]
        self._at = min(max(0, base + offset), self._part.size_bytes)
        return self._at

    def tell(self) -> int:
        return self._at

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return True

    @property
    def closed(self) -> bool:
        return self._handle < 0

    def close(self) -> None:
        """Ends the thread and closes the file. Idempotent."""
        self._thread.shutdown(cancel_futures=True)
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    def __enter__(self) -> InputFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _memory() -> Piece:
    return np.frombuffer(mmap.mmap(-1, output_file.PIECE_BYTES, mmap.MAP_PRIVATE), np.uint8)
