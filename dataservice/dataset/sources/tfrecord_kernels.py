"""Loops over the bytes of TFRecord files: framing with checksums, and tf.train.Example.

Arrays in, arrays out, without the GIL; knows no files and no Arrow. The checksum is CRC-32C by
slicing (Kounavis and Berry 2005), rotated as the format demands. Invariant: nothing is read outside
the given bounds, whatever the bytes hold.
"""

from __future__ import annotations

import os

import numpy as np
from numba import njit

from dataservice.runtime.kernel_cache import configure_numba

configure_numba(os.path.dirname(__file__))

COMPLETE, BAD_LENGTH, BAD_DATA = 0, 1, 2
BYTES, FLOATS, INTEGERS = 1, 2, 3  # fields of a Feature message


def _table() -> np.ndarray:
    table = np.empty((8, 256), np.uint32)
    crc = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crc = (crc >> np.uint32(1)) ^ (np.uint32(0x82F63B78) * (crc & np.uint32(1)))
    table[0] = crc
    for step in range(1, 8):
        previous = table[step - 1]
        table[step] = (previous >> np.uint32(8)) ^ table[0][previous & np.uint32(0xFF)]
    return table


CRC_TABLE = _table()


@njit(nogil=True, cache=True)
def masked_crc(data: np.ndarray, start: int, end: int, table: np.ndarray) -> int:
    """Returns the rotated CRC-32C of data[start:end]."""
    crc = np.uint32(0xFFFFFFFF)
    i = start
    while i + 8 <= end:
        crc = np.uint32(
            table[7, data[i] ^ (crc & 0xFF)]
            ^ table[6, data[i + 1] ^ ((crc >> 8) & 0xFF)]
            ^ table[5, data[i + 2] ^ ((crc >> 16) & 0xFF)]
            ^ table[4, data[i + 3] ^ ((crc >> 24) & 0xFF)]
            ^ table[3, data[i + 4]]
            ^ table[2, data[i + 5]]
            ^ table[1, data[i + 6]]
            ^ table[0, data[i + 7]]
        )
        i += 8
    while i < end:
        crc = np.uint32(table[0, (crc ^ data[i]) & 0xFF] ^ (crc >> 8))
        i += 1
    value = np.int64(crc ^ np.uint32(0xFFFFFFFF))
    return (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF


@njit(nogil=True, cache=True)
def little_endian(data: np.ndarray, start: int, count: int) -> int:
    """Reads an unsigned integer of `count` bytes, at most 7."""
    value = np.int64(0)
    for i in range(count):
        value |= np.int64(data[start + i]) << (8 * i)
    return value


@njit(nogil=True, cache=True)
def frame(
    data: np.ndarray, table: np.ndarray, starts: np.ndarray, ends: np.ndarray, check_data: bool
) -> tuple[int, int, int, int]:
    """Finds complete records, as many as `starts` has room for.

    Returns their number, the bytes that they take, the reason for stopping (COMPLETE, BAD_LENGTH or
    BAD_DATA), and the bytes that the record after them needs: 0 if not even its length is there.
    """
    count, at, size = 0, 0, len(data)
    while count < len(starts):
        if size - at < 12:
            return count, at, COMPLETE, 0
        length = little_endian(data, at, 7)
        if data[at + 7] or little_endian(data, at + 8, 4) != masked_crc(data, at, at + 8, table):
            return count, at, BAD_LENGTH, 0
        if length > size - at - 16:
            return count, at, COMPLETE, length + 16
        begin, end = at + 12, at + 12 + length
        if check_data and little_endian(data, end, 4) != masked_crc(data, begin, end, table):
            return count, at, BAD_DATA, 0
        starts[count], ends[count] = begin, end
        count += 1
        at = end + 4
    return count, at, COMPLETE, 0


@njit(nogil=True, cache=True)
def varint(data: np.ndarray, at: int, end: int) -> tuple[int, int]:
    """Reads a varint; returns it as int64 and the position after it, -1 if there is none."""
    value = np.uint64(0)
    shift = np.uint64(0)
    while at < end and shift < 70:
        byte = np.uint64(data[at])
        value |= (byte & np.uint64(0x7F)) << shift
        at += 1
        if byte < 128:
            return np.int64(value), at
        shift += np.uint64(7)
    return np.int64(0), -1


@njit(nogil=True, cache=True)
def field(data: np.ndarray, at: int, end: int) -> tuple[int, int, int, int]:
    """Reads the next field of a message.

    Returns its tag, the begin and the end of its payload, and 0, or -1 for a malformed field.
    """
    tag, at = varint(data, at, end)
    if at < 0:
        return 0, 0, 0, -1
    wire = tag & 7
    length = np.int64(-1)
    if wire == 2:
        length, at = varint(data, at, end)
        if at < 0:
            return 0, 0, 0, -1
    elif wire == 0:
        _, after = varint(data, at, end)
        length = after - at if after >= 0 else -1
    elif wire == 1:
        length = np.int64(8)
    elif wire == 5:
        length = np.int64(4)
    if length < 0 or length > end - at:
        return 0, 0, 0, -1
    return tag, at, at + length, 0


@njit(nogil=True, cache=True)
def map_entry(data: np.ndarray, at: int, end: int) -> tuple[int, int, int, int]:
    """Returns the bounds of the key and the value in a map's entry; -1 for a malformed entry."""
    key_begin, key_end, value_begin, value_end = at, at, at, at
    while at < end:
        tag, begin, at, bad = field(data, at, end)
        if bad:
            return -1, -1, -1, -1
        if tag == 10:
            key_begin, key_end = begin, at
        elif tag == 18:
            value_begin, value_end = begin, at
    return key_begin, key_end, value_begin, value_end


@njit(nogil=True, cache=True)
def match(
    data: np.ndarray,
    begin: int,
    end: int,
    names: np.ndarray,
    name_ends: np.ndarray,
    expected: int,
) -> int:
    """Returns which name data[begin:end] is, trying `expected` first; -1 for none of them."""
    features = len(name_ends) - 1
    for step in range(features):
        f = (expected + step) % features
        if name_ends[f + 1] - name_ends[f] != end - begin:
            continue
        same = True
        for k in range(end - begin):
            if names[name_ends[f] + k] != data[begin + k]:
                same = False
                break
        if same:
            return f
    return -1


@njit(nogil=True, cache=True)
def locate(
    data: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    names: np.ndarray,
    name_ends: np.ndarray,
    spans: np.ndarray,
) -> int:
    """Locates the features of records: spans[feature, record] = kind, begin and end of its list.

    Kind 0 stands for a missing feature. Returns the first malformed record, or -1.
    """
    for r in range(len(starts)):
        expected = 0  # records mostly hold their features in one order
        at, end = starts[r], ends[r]
        while at < end:
            tag, begin, at, bad = field(data, at, end)
            if bad:
                return r
            if tag != 10:
                continue
            inner, stop = begin, at
            while inner < stop:
                tag, entry, inner, bad = field(data, inner, stop)
                if bad:
                    return r
                if tag != 10:
                    continue
                key, key_end, value_begin, value_end = map_entry(data, entry, inner)
                if key < 0:
                    return r
                found = match(data, key, key_end, names, name_ends, expected)
                if found < 0:
                    continue
                expected = found + 1
                spans[found, r, 0] = 0
                while value_begin < value_end:
                    tag, part, value_begin, bad = field(data, value_begin, value_end)
                    if bad:
                        return r
                    if tag & 7 == 2 and 1 <= tag >> 3 <= 3:
                        spans[found, r, 0] = tag >> 3
                        spans[found, r, 1] = part
                        spans[found, r, 2] = value_begin
    return -1


@njit(nogil=True, cache=True)
def count_values(data: np.ndarray, spans: np.ndarray, kind: int, counts: np.ndarray) -> int:
    """Counts the values of one feature in each record, spans (n, 3); -1 if the feature is missing.

    Returns the first record that is malformed or has values of another kind, or -1.
    """
    for r in range(len(spans)):
        if spans[r, 0] == 0:
            counts[r] = -1
            continue
        if spans[r, 0] != kind:
            return r
        counts[r] = 0
        at, end = spans[r, 1], spans[r, 2]
        while at < end:
            tag, begin, at, bad = field(data, at, end)
            if bad:
                return r
            if tag >> 3 != 1:
                continue
            if kind == BYTES or tag & 7 != 2:
                counts[r] += 1
            elif kind == FLOATS:
                if (at - begin) % 4:
                    return r
                counts[r] += (at - begin) // 4
            else:
                if at > begin and data[at - 1] > 127:
                    return r
                for i in range(begin, at):
                    counts[r] += data[i] < 128
    return -1


@njit(nogil=True, cache=True)
def read_integers(data: np.ndarray, spans: np.ndarray, out: np.ndarray) -> None:
    """Reads the values of one feature in all records, in order, as int64."""
    filled = 0
    for r in range(len(spans)):
        at, end = spans[r, 1], spans[r, 2]
        while spans[r, 0] and at < end:
            tag, begin, at, _ = field(data, at, end)
            if tag >> 3 != 1:
                continue
            while begin < at:
                out[filled], after = varint(data, begin, at)
                begin = after if after > 0 else at
                filled += 1


@njit(nogil=True, cache=True)
def read_floats(data: np.ndarray, spans: np.ndarray, out: np.ndarray) -> None:
    """Reads the values of one feature in all records, in order: little-endian uint8 (values, 4)."""
    filled = 0
    for r in range(len(spans)):
        at, end = spans[r, 1], spans[r, 2]
        while spans[r, 0] and at < end:
            tag, begin, at, _ = field(data, at, end)
            if tag >> 3 != 1:
                continue
            while begin + 4 <= at:
                for i in range(4):
                    out[filled, i] = data[begin + i]
                begin += 4
                filled += 1


@njit(nogil=True, cache=True)
def locate_bytes(data: np.ndarray, spans: np.ndarray, out: np.ndarray) -> None:
    """Finds the begin and end of each byte string of one feature: int64 (values, 2)."""
    filled = 0
    for r in range(len(spans)):
        at, end = spans[r, 1], spans[r, 2]
        while spans[r, 0] and at < end:
            tag, begin, at, _ = field(data, at, end)
            if tag >> 3 == 1:
                out[filled, 0], out[filled, 1] = begin, at
                filled += 1


@njit(nogil=True, cache=True)
def gather(data: np.ndarray, begins: np.ndarray, ends: np.ndarray, out: np.ndarray) -> None:
    """Copies the bytes of all ranges, one after the other."""
    filled = 0
    for i in range(len(begins)):
        for position in range(begins[i], ends[i]):
            out[filled] = data[position]
            filled += 1
