"""TFRecord files without TensorFlow: tf.train.Example rows, raw blocks, and the record framing.

All rows of one call have the same encoded size, because ids from `bench.data` always take nine
varint bytes and floats four. A chunk is therefore a byte matrix: a template with the values patched
in. The bytes are what a protobuf serialiser writes, with the features in the order of the columns.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from bench.columns import CATEGORICAL, DENSE

_VARINT_BYTES = 9
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3


def encode_examples(labels: np.ndarray, dense: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Serialises rows as tf.train.Example with 40 scalar features: uint8 (n, bytes per row).

    `labels` (n,) is float32 or 0/1 int64; `ids` must lie in [2^56, 2^63).
    """
    if ids.size and ids.min() < 1 << 56:
        raise ValueError(f"ids must be at least 2^56 to be nine bytes long, got {ids.min()}")
    label_kind = _FLOAT_LIST if labels.dtype.kind == "f" else _INT64_LIST
    label_bytes = 4 if label_kind == _FLOAT_LIST else 1
    fields = [("label", label_kind, label_bytes)]
    fields += [(name, _FLOAT_LIST, 4) for name in DENSE]
    fields += [(name, _INT64_LIST, _VARINT_BYTES) for name in CATEGORICAL]
    template, offsets = _template(fields)
    rows = np.tile(np.frombuffer(template, np.uint8), (len(labels), 1))
    stored = labels.astype("<f4") if label_kind == _FLOAT_LIST else labels.astype(np.uint8)
    rows[:, offsets[0] : offsets[0] + label_bytes] = _as_bytes(stored[:, None])
    for column, offset in enumerate(offsets[1 : 1 + len(DENSE)]):
        rows[:, offset : offset + 4] = _as_bytes(dense[:, column : column + 1].astype("<f4"))
    for column, offset in enumerate(offsets[1 + len(DENSE) :]):
        rows[:, offset : offset + _VARINT_BYTES] = _varints(ids[:, column])
    return rows


def _as_bytes(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values).view(np.uint8)


def _varints(values: np.ndarray) -> np.ndarray:
    """Returns nine-byte varints of values in [2^56, 2^63): uint8 (n, 9)."""
    shifts = np.arange(0, 7 * _VARINT_BYTES, 7, dtype=np.uint64)
    groups = (values.astype(np.uint64)[:, None] >> shifts) & np.uint64(0x7F)
    groups[:, :-1] |= np.uint64(0x80)
    return groups.astype(np.uint8)


def _template(fields: list[tuple[str, int, int]]) -> tuple[bytes, list[int]]:
    """Returns an Example message with zeroed values, and the offset of each field's value."""
    entries, within = [], []
    for name, kind, size in fields:
        packed = _message(1, bytes(size))
        feature = _message(kind, packed)
        entry = _message(1, _message(1, name.encode()) + _message(2, feature))
        entries.append(entry)
        within.append(len(entry) - size)
    features = b"".join(entries)
    head = len(_message(1, features)) - len(features)
    starts = np.cumsum([0, *map(len, entries[:-1])])
    offsets = [head + int(start) + at for start, at in zip(starts, within, strict=True)]
    return _message(1, features), offsets


def _message(field: int, payload: bytes) -> bytes:
    """Returns a length-delimited protobuf field; payloads here are below 2^14 bytes."""
    size = len(payload)
    length = bytes([size]) if size < 0x80 else bytes([size & 0x7F | 0x80, size >> 7])
    return bytes([field << 3 | 2]) + length + payload


def pack_blocks(
    labels: np.ndarray, dense: np.ndarray, ids: np.ndarray, block_rows: int
) -> np.ndarray:
    """Packs whole blocks of rows as raw bytes: uint8 (blocks, bytes per block).

    A block is its ids as int64 (rows, 26), then dense as float32 (rows, 13), then labels as float32
    (rows,), all little-endian and row-major. The widest type is first, so each part is aligned.
    """
    blocks = len(labels) // block_rows
    rows = blocks * block_rows
    parts = (ids[:rows].astype("<i8"), dense[:rows].astype("<f4"), labels[:rows].astype("<f4"))
    return np.concatenate([_as_bytes(part).reshape(blocks, -1) for part in parts], axis=1)


def frame(records: np.ndarray) -> bytes:
    """Frames equally long records, uint8 (n, size), as TFRecord does: length, CRC, data, CRC."""
    count, size = records.shape
    head = np.frombuffer(np.array([size], "<u8").tobytes(), np.uint8)
    out = np.empty((count, size + 16), np.uint8)
    out[:, :8] = head
    out[:, 8:12] = _as_bytes(_masked(_crc32c_rows(head[None, :], _TABLE)).astype("<u4")[:, None])
    out[:, 12 : 12 + size] = records
    out[:, 12 + size :] = _as_bytes(_masked(_crc32c_rows(records, _TABLE)).astype("<u4")[:, None])
    return out.tobytes()


def _masked(crc: np.ndarray) -> np.ndarray:
    """Masks CRCs as TFRecord does: rotated, so that data that contain CRCs can be checked."""
    return ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(0xA282EAD8)


def _crc_table() -> np.ndarray:
    """Returns eight tables of the reflected Castagnoli polynomial, one per byte of a step of 8."""
    table = np.empty((8, 256), np.uint32)
    crc = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crc = (crc >> np.uint32(1)) ^ (np.uint32(0x82F63B78) * (crc & np.uint32(1)))
    table[0] = crc
    for step in range(1, 8):
        previous = table[step - 1]
        table[step] = (previous >> np.uint32(8)) ^ table[0][previous & np.uint32(0xFF)]
    return table


_TABLE = _crc_table()


@njit(nogil=True, cache=True)
def _crc32c_rows(rows: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Computes CRC-32C of rows, uint8 (n, size) to uint32 (n,); slicing by 8 (Kounavis, Berry)."""
    count, size = rows.shape
    out = np.empty(count, np.uint32)
    for r in range(count):
        row = rows[r]
        crc = np.uint32(0xFFFFFFFF)
        i = 0
        while i + 8 <= size:
            b0 = row[i] ^ (crc & 0xFF)
            b1 = row[i + 1] ^ ((crc >> 8) & 0xFF)
            b2 = row[i + 2] ^ ((crc >> 16) & 0xFF)
            b3 = row[i + 3] ^ ((crc >> 24) & 0xFF)
            crc = np.uint32(
                table[7, b0] ^ table[6, b1] ^ table[5, b2] ^ table[4, b3]
                ^ table[3, row[i + 4]] ^ table[2, row[i + 5]]
                ^ table[1, row[i + 6]] ^ table[0, row[i + 7]]
            )  # fmt: skip
            i += 8
        while i < size:
            crc = np.uint32(table[0, (crc ^ row[i]) & 0xFF] ^ (crc >> 8))
            i += 1
        out[r] = crc ^ np.uint32(0xFFFFFFFF)
    return out
