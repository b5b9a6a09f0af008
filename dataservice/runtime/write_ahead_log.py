"""Reads SQLite's write-ahead log before SQLite does, for damage that it would pass over.

Knows the format of that log, https://www.sqlite.org/fileformat2.html, section 4, and nothing of
what is in its pages. Changes no file. Invariant: a log that a crash tore is let through, one of
which SQLite would drop a transaction that had been synced is not.
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


def check_log(path: Path) -> None:
    """Tell damage in the write-ahead log from a tail torn by a crash.

    SQLite drops everything behind the first bad frame of the log, silently. Each transaction is
    synced before the next one begins, so only the last may be torn: frames of a later one behind
    the bad frame prove that a transaction which had been synced would be lost.
    """
    file = path.with_name(path.name + "-wal")
    log = file.read_bytes() if file.exists() else b""
    if len(log) < _HEADER.size or not any(log[: _HEADER.size]):
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


def _checksum(data: bytes, order: str, sums: tuple[int, int]) -> tuple[int, int]:
    """https://www.sqlite.org/fileformat2.html, section 4.2."""
    sum0, sum1 = sums
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for first, second in zip(words[::2], words[1::2], strict=True):
        sum0 = (sum0 + first + sum1) & 0xFFFFFFFF
        sum1 = (sum1 + second + sum0) & 0xFFFFFFFF
    return sum0, sum1
