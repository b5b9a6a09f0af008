"""Writes event files of scalars, which TensorBoard reads.

Implements the format, a sequence of TFRecords with Event messages, so that writing needs no
package. Knows nothing of training. Invariant: flushed files consist of whole records.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
import time
from collections.abc import Mapping
from typing import Final

import numpy as np

from pstrain.output.result_files import naming

_VERSION: Final = "brain.Event:2"
_MASK_DELTA: Final = 0xA282EAD8
_files = itertools.count()


class EventFile:
    """A new event file in a folder, which is made if it is missing. Not thread-safe."""

    def __init__(self, folder: str) -> None:
        os.makedirs(folder, exist_ok=True)
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}"
        self._path = os.path.join(folder, f"{name}.{os.getpid()}.{next(_files)}")
        self._file = open(self._path, "xb")  # noqa: SIM115
        self._append(_text(3, _VERSION))

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Adds the named scalars of one step."""
        values = b"".join(
            _nested(1, _text(1, tag) + _key(2, 5) + _float32(value))
            for tag, value in scalars.items()
        )
        self._append(_key(2, 0) + _varint(step) + _nested(5, values))

    def flush(self) -> None:
        """Makes all that was written visible to readers."""
        with naming(self._path):
            self._file.flush()

    def close(self) -> None:
        """Flushes and closes the file. Idempotent."""
        with naming(self._path):
            self._file.close()

    def _append(self, fields: bytes) -> None:
        event = _key(1, 1) + struct.pack("<d", time.time()) + fields
        length = struct.pack("<Q", len(event))
        with naming(self._path):
            self._file.write(length + _checksum(length) + event + _checksum(event))


# Protocol buffers: a field is a key, made from its number and wire type, and a value.


def _key(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    value &= (1 << 64) - 1
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def _float32(value: float) -> bytes:
    with np.errstate(over="ignore"):
        return np.array(value, dtype="<f4").tobytes()


def _nested(number: int, message: bytes) -> bytes:
    return _key(number, 2) + _varint(len(message)) + message


def _text(number: int, text: str) -> bytes:
    return _nested(number, text.encode())


# TFRecord: length and data, each followed by its masked CRC-32C.


def _crc_table() -> list[int]:
    table = list(range(256))
    for _ in range(8):
        table = [crc >> 1 ^ (0x82F63B78 if crc & 1 else 0) for crc in table]
    return table


_TABLE: Final = _crc_table()


def _checksum(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    masked = ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF
    return struct.pack("<I", masked)
