"""Checks SQLite's write-ahead log, before SQLite reads it, for damage that SQLite would ignore.

Knows the format of this log, https://www.sqlite.org/fileformat2.html, section 4, but not the
contents of its pages. Changes no file. Invariant: a log whose tail was torn by a crash passes; a
log from which SQLite would drop a synced transaction is an error.
"""

from __future__ import annotations

import struct
from pathlib import Path

from dataservice.errors import DataLossError

REMEDY = "restore it from a backup, or move it away to start anew without what it remembers"
# https://www.sqlite.org/fileformat2.html, section 4: all numbers are big-endian.
_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
_MAGIC = 0x377F0682
# Section 1.3: two bytes, 1 for 65,536.
_PAGE_SIZE_AT = 16
_NEW_PAGE_BYTES = 4096


def check_log(path: Path) -> None:
    """Raises DataLossError if the write-ahead log is damaged, but not if a crash tore its tail.

    SQLite silently drops everything from the first bad frame of the log on. Each transaction is
    synced before the next one begins, so only the last one may be torn. Frames of a later
    transaction behind the bad frame prove that a synced transaction would be lost.
    """
    file = path.with_name(path.name + "-wal")
    log = file.read_bytes() if file.exists() else b""
    if len(log) < _HEADER.size:
        return
    if not any(log[: _HEADER.size]):
        _check_never_synced(file, log, _page_bytes(path))
        return
    magic, _, page_size, _, *salt, sum0, sum1 = _HEADER.unpack_from(log)
    order = "<" if magic == _MAGIC else ">"
    sums = _checksum(log[:24], order, (0, 0))
    if sums != (sum0, sum1):
        raise DataLossError(f"the log {file} has a damaged header; {REMEDY}")
    valid, committed = True, False
    step = _FRAME.size + page_size
    for start in range(_HEADER.size, len(log) - step + 1, step):
        _, commit_size, salt0, salt1, *stored = _FRAME.unpack_from(log, start)
        if valid:
            sums = _checksum(log[start : start + 8], order, sums)
            sums = _checksum(log[start + _FRAME.size : start + step], order, sums)
            valid = [salt0, salt1] == salt and list(sums) == stored
        if not valid and [salt0, salt1] == salt:
            if committed:
                raise DataLossError(f"the log {file} of the journal is damaged; {REMEDY}")
            committed = commit_size != 0


def _check_never_synced(file: Path, log: bytes, page_bytes: int) -> None:
    """Raises DataLossError if a log whose header is all zeros had one: a crash may leave it so.

    The header is synced with the first transaction, so there is no second one behind it.
    """
    step, ended = _FRAME.size + page_bytes, list[int]()
    for start in range(_HEADER.size, len(log) - step + 1, step):
        _, commit_size, *salt, _, _ = _FRAME.unpack_from(log, start)
        if salt == ended:
            raise DataLossError(f"the log {file} has lost its header; {REMEDY}")
        if commit_size:
            ended = salt


def _page_bytes(path: Path) -> int:
    """Returns the size of a page by the database's own header, or that of a new database."""
    with path.open("rb") as database:
        start = database.read(_PAGE_SIZE_AT + 2)
    stated = int.from_bytes(start[_PAGE_SIZE_AT:], "big")
    return (1 << 16 if stated == 1 else stated) or _NEW_PAGE_BYTES


def _checksum(data: bytes, order: str, sums: tuple[int, int]) -> tuple[int, int]:
    """Returns the log's checksum of `data`; see the file format, section 4.2."""
    sum0, sum1 = sums
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for first, second in zip(words[::2], words[1::2], strict=True):
        sum0 = (sum0 + first + sum1) & 0xFFFFFFFF
        sum1 = (sum1 + second + sum0) & 0xFFFFFFFF
    return sum0, sum1
