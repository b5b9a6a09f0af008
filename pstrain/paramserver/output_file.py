"""Writes a file of a checkpoint: counts and checksums its bytes, and syncs it at the end.

Knows nothing of formats. The checksum of a file is the checksum of the checksums of its pieces of
``PIECE_BYTES``, of which the last may be shorter. Invariant: a finished file is on the disk, once
the caller has synced its folder; an unfinished one is useless, and is removed with its folder.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dataservice.runtime.checksum import checksum
from pstrain.errors import DataLossError, ResourceExhaustedError
from pstrain.failpoints import reached

PIECE_BYTES: Final = 8 << 20
_PIECES: Final = 3
# The sizes of direct writes are multiples of this; disks require this much or less.
_SECTOR_BYTES: Final = 4096

Piece = NDArray[np.uint8]

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def written_into(directory: str) -> Iterator[None]:
    """Turns OSErrors of the block, which writes a checkpoint, into ResourceExhaustedErrors."""
    try:
        yield
    except OSError as error:
        remedy = "Make sure that it can be written to, or save into another directory"
        if error.errno in _NO_ROOM:
            remedy = "Make room there, or keep fewer (max_to_keep)"
        elif error.errno == errno.ENOENT:
            remedy = "Something has removed it: only one program may save into a directory"
        raise ResourceExhaustedError(
            f"a checkpoint could not be written into {directory}: {error}; the one before it is "
            f"untouched. {remedy}"
        ) from error


class OutputFile:
    """A file to write, as a context manager. Blocks; errors of the disk are raised as OSError.

    Bypasses the page cache if the file system allows it: filling the cache with a table of
    gigabytes takes longer than writing the table, and evicts what others have cached. A thread,
    which ends with the context, writes pieces while the next ones are filled.
    """

    def __init__(self, path: str) -> None:
        self._handle = _open(path)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint-file")
        self._writing: deque[tuple[Future[None], Piece]] = deque()
        self._piece: Piece | None = None
        self._filled = 0
        self.size_bytes = 0
        self._sums: list[int] = []

    @property
    def checksum(self) -> int:
        """The checksum of the whole file; valid once the context has ended."""
        return joined(self._sums)

    @property
    def sums(self) -> str:
        """The checksums of the pieces, in the hexadecimal form of manifests."""
        return _as_array(self._sums).tobytes().hex()

    def write(self, data: Any) -> int:
        """Writes all of ``data``, any object with a buffer; returns its size in bytes."""
        view = np.frombuffer(data, np.uint8)

        def copy(start: int, target: Piece) -> None:
            target[...] = view[start : start + target.size]

        self.write_from(view.size, copy)
        return int(view.size)

    def write_from(self, size: int, read: Callable[[int, Piece], None]) -> None:
        """Writes ``size`` bytes; ``read(start, target)`` copies them into the piece to write."""
        reached("checkpoint_write")
        at = 0
        while at < size:
            if self._piece is None:
                self._piece = self._next_piece()
            count = min(size - at, PIECE_BYTES - self._filled)
            read(at, self._piece[self._filled : self._filled + count])
            at, self._filled = at + count, self._filled + count
            if self._filled == PIECE_BYTES:
                self._sums.append(checksum(self._piece))
                self._writing.append((self._writer.submit(self._put, self._piece), self._piece))
                self._piece, self._filled = None, 0
        self.size_bytes += size

    def _next_piece(self) -> Piece:
        if len(self._writing) < _PIECES:
            # Memory that begins with a page, as direct writes require.
            return np.frombuffer(mmap.mmap(-1, PIECE_BYTES, mmap.MAP_PRIVATE), np.uint8)
        written, piece = self._writing.popleft()
        written.result()
        return piece

    def _finish(self) -> None:
        for written, _ in self._writing:
            written.result()
        if self._piece is not None:
            self._sums.append(checksum(self._piece[: self._filled]))
            whole = self._filled - self._filled % _SECTOR_BYTES
            self._put(self._piece[:whole])
            _write_through_cache(self._handle)
            self._put(self._piece[whole : self._filled])
        os.fsync(self._handle)

    def _put(self, piece: Piece) -> None:
        left = piece.data
        while left:
            reached("checkpoint_write")
            try:
                count = os.write(self._handle, left)
            except OSError as error:
                # Some file systems refuse direct writes only at the first write.
                if error.errno != errno.EINVAL or not _write_through_cache(self._handle):
                    raise
                continue
            left = left[count:]
            if count % _SECTOR_BYTES and left:
                _write_through_cache(self._handle)

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
                self._finish()
        finally:
            self._writer.shutdown(cancel_futures=True)
            os.close(self._handle)


def size_and_checksum(path: str) -> tuple[int, int]:
    """Returns the size and the checksum of a file, as :class:`OutputFile` computes it; blocks."""
    size, sums = 0, []
    piece = np.empty(PIECE_BYTES, np.uint8)
    with open(path, "rb") as stream:
        while count := stream.readinto(piece.data):
            sums.append(checksum(piece[:count]))
            size += count
    return size, joined(sums)


def sums_of(text: str) -> list[int]:
    """Parses :attr:`OutputFile.sums`; raises DataLossError if ``text`` has no checksums."""
    try:
        return [int(value) for value in np.frombuffer(bytes.fromhex(text), "<u8")]
    except ValueError as error:
        raise DataLossError(
            f"the checkpoint's manifest is damaged: {text[:40]!r} are not checksums ({error})"
        ) from error


def joined(sums: list[int]) -> int:
    """Computes the checksum of a file from those of its pieces."""
    return checksum(_as_array(sums))


def _as_array(sums: list[int]) -> NDArray[np.uint64]:
    return np.array(sums, "<u8")


def _open(path: str) -> int:
    """Creates a file and fails if it exists: it may be a link to another checkpoint's file."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags | getattr(os, "O_DIRECT", 0), 0o666)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # Some file systems create the file before they refuse direct writes. A file that existed
        # before would have failed with EEXIST instead.
        return os.open(path, flags & ~os.O_EXCL, 0o666)


def _write_through_cache(handle: int) -> bool:
    """Ends direct writes; returns False if they were not in use."""
    flags = fcntl.fcntl(handle, fcntl.F_GETFL)
    direct = flags & getattr(os, "O_DIRECT", 0)
    if direct:
        fcntl.fcntl(handle, fcntl.F_SETFL, flags & ~direct)
    return bool(direct)
