"""A durable sequence of frames: what a server must remember when it is killed.

Kept through a single connection to one SQLite file, used by one thread at a time: SQLite before
3.51.3 can damage a write-ahead log that several connections share. Every frame carries a CRC over
its position and contents, and positions have no gaps.

Knows nothing of what frames mean. Invariant: frames for which `append` returned are replayed after
any crash; damage is an error, except that a transaction torn by the crash itself is dropped.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import struct
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Protocol

from dataservice.errors import (
    DataLossError,
    DataServiceError,
    FailedPreconditionError,
    ResourceExhaustedError,
)
from dataservice.runtime.folders import sync_folder
from dataservice.runtime.write_ahead_log import REMEDY, check_log

logger = logging.getLogger(__name__)

_FORMAT = 1
_PAGE_BYTES = 4096
_PAGE_FRAMES = 1000
_TABLES = (
    "CREATE TABLE header (format INTEGER, first_position INTEGER)",
    "CREATE TABLE frames (position INTEGER PRIMARY KEY, crc INTEGER, payload BLOB)",
)
_SELECT = (
    "SELECT position, crc, payload FROM frames WHERE position >= ? AND position < ? "
    "ORDER BY position LIMIT ?"
)
_POSITION = struct.Struct("<q")
# Failed writes, also because a quota is used up. The data that is already on disk stays intact.
_WRITE_ERRORS = (
    sqlite3.SQLITE_IOERR_WRITE,
    sqlite3.SQLITE_IOERR_FSYNC,
    sqlite3.SQLITE_IOERR_DIR_FSYNC,
    sqlite3.SQLITE_IOERR_TRUNCATE,
    sqlite3.SQLITE_IOERR_SHMSIZE,
)


class Journal(Protocol):
    """A place where a server records its facts. Thread safe."""

    def append(self, frames: Sequence[bytes]) -> None:
        """Appends frames, all or none; durable on return."""

    def replay(self) -> Iterator[bytes]:
        """Yields all frames from the oldest on, as of this call."""

    def replace(self, frames: Sequence[bytes]) -> None:
        """Replaces all frames by `frames`, all or nothing; durable on return."""

    def close(self) -> None:
        """Releases the journal. Idempotent; nothing can be appended afterwards."""


class SqliteJournal:
    """A journal in the file `path`, which is created if missing, readable by its user only.

    Raises FailedPreconditionError if another journal holds the file, DataLossError if it is
    damaged. Damage may be found only in `replay`, which checks every frame. Appending costs one
    fsync, so callers should put many frames into one call.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._guard = _lock_file(self._path)
        try:
            is_new = _create(self._path)
            # Before SQLite opens the log, since it would drop the damaged part and then the log.
            check_log(self._path)
            with self._translated():
                self._connection = sqlite3.connect(
                    self._path, timeout=0.0, isolation_level=None, check_same_thread=False
                )
                self._configure()
                self._first, self._next = self._prepare(is_new)
        except BaseException:
            self.close()
            raise

    def append(self, frames: Sequence[bytes]) -> None:
        """Appends frames, all or none; durable on return.

        Raises ResourceExhaustedError if there is no room on the disk.
        """
        if not frames:
            return
        with self._lock:
            with self._transaction() as connection:
                self._insert(connection, frames)
            self._next += len(frames)

    def replay(self) -> Iterator[bytes]:
        """Yields all frames from the oldest on, as of the first step of the iteration.

        Raises DataLossError at the first damaged frame.
        """
        position, end = self._first, self._next
        while position < end:
            with self._lock, self._translated():
                query = self._opened().execute(_SELECT, (position, end, _PAGE_FRAMES))
                rows = query.fetchall()
            if not rows:
                raise self._loss(f"frame {position} of {end} is missing")
            for found, crc, payload in rows:
                if (
                    found != position
                    or not isinstance(payload, bytes)
                    or _crc(position, payload) != crc
                ):
                    raise self._loss(f"frame {position} does not match its CRC")
                yield payload
                position += 1

    def replace(self, frames: Sequence[bytes]) -> None:
        """Replaces all frames by `frames`, all or nothing; durable on return."""
        with self._lock:
            with self._transaction() as connection:
                connection.execute("DELETE FROM frames")
                connection.execute("UPDATE header SET first_position = ?", (self._next,))
                self._insert(connection, frames)
            self._first = self._next
            self._next += len(frames)

    def close(self) -> None:
        """Releases the file. Idempotent."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except sqlite3.Error as error:
                logger.warning("closing the journal %s: %s", self._path, error)
        self._guard.close()

    def _configure(self) -> None:
        connection = self._opened()
        # Set before the journal mode, so that the log's index is in memory, not in a shared file.
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            logger.info("%s cannot have a write-ahead log, its mode is %s", self._path, mode)
        connection.execute("PRAGMA synchronous = FULL")

    def _prepare(self, is_new: bool) -> tuple[int, int]:
        """Creates or checks the tables; returns the positions of the first and the next frame."""
        connection = self._opened()
        tables = connection.execute("SELECT sql FROM sqlite_master ORDER BY rowid").fetchall()
        # A crash may have left a file without tables, but never one longer than its first page.
        if is_new or (not tables and self._path.stat().st_size <= _PAGE_BYTES):
            with self._transaction():
                for statement in _TABLES:
                    connection.execute(statement)
                connection.execute("INSERT INTO header VALUES (?, 0)", (_FORMAT,))
            return 0, 0
        if tables != [(statement,) for statement in _TABLES]:
            raise self._loss("it has other tables than a journal")
        verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            raise self._loss(verdict)
        header = connection.execute("SELECT format, first_position FROM header").fetchall()
        if len(header) != 1 or not all(isinstance(value, int) for value in header[0]):
            raise self._loss(f"its header is {header!r:.200}")
        written_format, first = header[0]
        if written_format != _FORMAT:
            raise FailedPreconditionError(
                f"the journal {self._path} has format {written_format}, this version reads "
                f"{_FORMAT}: use the version that wrote it, or move it away to start anew"
            )
        count, last = connection.execute("SELECT count(*), max(position) FROM frames").fetchone()
        if count and last != first + count - 1:
            raise self._loss(f"it has {count} frames from {first} to {last}")
        return first, first + count

    def _insert(self, connection: sqlite3.Connection, frames: Sequence[bytes]) -> None:
        connection.executemany(
            "INSERT INTO frames VALUES (?, ?, ?)",
            (
                (position, _crc(position, frame), frame)
                for position, frame in enumerate(frames, self._next)
            ),
        )

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._translated():
            connection = self._opened()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._service_error(error) from error
        except UnicodeDecodeError as error:
            # SQLite quotes damaged names in its messages, and Python cannot decode these.
            raise self._loss("its tables cannot be read") from error

    def _service_error(self, error: sqlite3.Error) -> DataServiceError:
        extended = getattr(error, "sqlite_errorcode", 0)
        code = extended & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return _in_use(self._path)
        if code == sqlite3.SQLITE_FULL:
            return ResourceExhaustedError(f"no room on the disk of the journal {self._path}")
        if extended in _WRITE_ERRORS:
            return ResourceExhaustedError(
                f"the journal {self._path} cannot be written: {error}; the cause is a quota, a "
                "limit on file sizes (ulimit -f) or the disk itself; what was recorded before "
                "is intact"
            )
        if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
            return FailedPreconditionError(f"the journal {self._path} is not writable: {error}")
        return self._loss(str(error))

    def _loss(self, reason: str) -> DataLossError:
        return DataLossError(f"the journal {self._path} is damaged: {reason}; {REMEDY}")

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            raise FailedPreconditionError(f"the journal {self._path} is closed")
        return self._connection


def _crc(position: int, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(_POSITION.pack(position)))


def _in_use(path: Path) -> FailedPreconditionError:
    return FailedPreconditionError(
        f"the journal {path} is in use: stop the server that has it, or choose another work "
        "directory"
    )


def _lock_file(path: Path) -> IO[bytes]:
    """Locks a file beside the journal and returns it.

    SQLite takes its own lock only after it has read and changed the journal.
    """
    try:
        guard = path.with_name(path.name + "-lock").open("ab")
    except OSError as error:
        raise FailedPreconditionError(
            f"cannot make files next to the journal {path}: {error.strerror}"
        ) from error
    try:
        fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        guard.close()
        raise _in_use(path) from error
    return guard


def _create(path: Path) -> bool:
    """Creates an empty file if there is none; returns whether it did."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        return False
    sync_folder(path.parent)
    return True
