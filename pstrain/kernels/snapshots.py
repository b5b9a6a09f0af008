"""Copies rows before they change, and reads rows as they were with the help of the copies.

Rows are words here, of 4 bytes or 1, [rows, words per row]. They are kept in groups of ``group``
rows: place ``p`` of ``kept`` has the copy of group ``owners[p]``, whose bit is set in ``bits``. A
run is ``RUN`` consecutive places. The copies of ``block`` consecutive groups form a linked list of
runs: ``heads[group // block]`` is one past the last used place of the list's first run,
``nexts[run]`` is one past the last place of the run after ``run``, and 0 ends the list. All runs of
a list but the first are full. ``room`` tells which runs are unused: a list of freed runs
(``FREE``), the runs from ``USED`` to ``LIMIT``, whose memory is prepared, and the runs below
``TOP``. Groups below ``read`` have been read, and need not be kept.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pstrain.kernels.prefetch import ROWS_AHEAD, prefetch_row

Words = NDArray[np.uint32] | NDArray[np.uint8]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]

FREE, USED, LIMIT, TOP, COPIED = range(5)
ROOM_ENTRIES = 5
RUN = 16

_STRIDE = 8
_PAGE_BYTES = 4096


@njit(nogil=True, cache=True)
def _take_run(room: I64, nexts: I32) -> int:
    if room[FREE]:
        run = (room[FREE] - 1) // RUN
        room[FREE] = nexts[run]
        return run
    if room[USED] < room[LIMIT]:
        room[USED] += 1
        return room[USED] - 1
    room[TOP] -= 1
    return room[TOP]


@njit(nogil=True, cache=True)
def _keep_group(
    rows: Words, index: int, group: int, block: int, bits: U8, heads: I32, nexts: I32,
    owners: I32, kept: Words, room: I64,
) -> None:  # fmt: skip
    """Copies one group, unless it has been copied before."""
    bit = np.uint8(1 << (index & 7))
    if bits[index >> 3] & bit:
        return
    bits[index >> 3] |= bit
    place = heads[index // block]
    if place % RUN == 0:
        run = _take_run(room, nexts)
        nexts[run] = place
        place = np.int32(run * RUN)
    room[COPIED] += 1
    first = index * group
    for row in range(min(group, rows.shape[0] - first)):
        source = rows[first + row]
        target = kept[place * group + row]
        for column in range(rows.shape[1]):
            target[column] = source[column]
    owners[place] = index
    heads[index // block] = place + 1


@njit(nogil=True, cache=True)
def keep_rows(
    rows: Words, row_start: int, ids: I64, group: int, block: int, bits: U8, heads: I32,
    nexts: I32, owners: I32, kept: Words, room: I64, read: int,
) -> None:  # fmt: skip
    """Keeps rows ``ids``, which must be in range."""
    row_bytes = rows.shape[1] * rows.itemsize
    for position in range(ids.size):
        ahead = ids[min(position + ROWS_AHEAD, ids.size - 1)] - row_start
        coming = ahead // group
        # Rows of other groups are prefetched by the update that changes them.
        if coming >= read:
            prefetch_row(rows, ahead, row_bytes)
            prefetch_row(bits, coming >> 3, 1)
            place = heads[coming // block]
            # The target of the copy is waited for longest, because writes complete in order.
            if place % RUN:
                prefetch_row(kept, place * group, group * row_bytes)
                prefetch_row(owners, place, owners.itemsize)
        index = (ids[position] - row_start) // group
        if index >= read:
            _keep_group(rows, index, group, block, bits, heads, nexts, owners, kept, room)


@njit(nogil=True, cache=True)
def keep_range(
    rows: Words, first: int, last: int, group: int, block: int, bits: U8, heads: I32,
    nexts: I32, owners: I32, kept: Words, room: I64, read: int,
) -> None:  # fmt: skip
    """Keeps rows ``[first, last)`` of the array."""
    for index in range(max(read, first // group), (last + group - 1) // group):
        _keep_group(rows, index, group, block, bits, heads, nexts, owners, kept, room)


@njit(nogil=True, cache=True)
def touch(kept: Words, nexts: I32, owners: I32, group: int, start: int, stop: int) -> None:
    """Touches the memory of runs ``[start, stop)``, so that it is mapped; they must be unused."""
    row_bytes = kept.shape[1] * kept.itemsize
    for row in range(start * RUN * group, stop * RUN * group, max(1, _PAGE_BYTES // row_bytes)):
        kept[row, 0] = 0
    for run in range(start, stop):
        nexts[run] = 0
        owners[run * RUN] = 0


@njit(nogil=True, cache=True)
def last_of(head: int, nexts: I32) -> int:
    """Returns the last run of a non-empty list."""
    run = (head - 1) // RUN
    while nexts[run]:
        run = (nexts[run] - 1) // RUN
    return run


@njit(nogil=True, cache=True)
def read_column(rows: Words, first: int, a: int, b: int, start: int, out: Words) -> None:
    """Reads present words of a column of the rows from ``first`` on, beginning at word ``start``.

    The column is words ``[a, b)`` of each row, and its rows follow one another. ``out`` is flat,
    and its size is the number of words to read.
    """
    width = b - a
    row, word = first + start // width, a + start % width
    at = 0
    while at < out.size and word != a:
        out[at] = rows[row, word]
        at, word = at + 1, word + 1
        if word == b:
            row, word = row + 1, a
    whole = a + width // _STRIDE * _STRIDE
    last = row + (out.size - at) // width
    while row < last:
        # A constant number at a time, so that the compiler copies them without a loop.
        for word in range(a, whole, _STRIDE):
            for step in range(_STRIDE):
                out[at + step] = rows[row, word + step]
            at += _STRIDE
        for word in range(whole, b):
            out[at] = rows[row, word]
            at += 1
        row += 1
    for word in range(out.size - at):
        out[at + word] = rows[row, a + word]


@njit(nogil=True, cache=True)
def read_kept(
    kept: Words, owners: I32, nexts: I32, heads: I32, group: int, first: int, a: int, b: int,
    start: int, out: Words,
) -> None:  # fmt: skip
    """Overwrites what :func:`read_column` read by the copies in the lists with these ``heads``."""
    width = b - a
    for head in heads:
        stop = head
        while stop:
            run = (stop - 1) // RUN
            for place in range(run * RUN, stop):
                for row in range(group):
                    at = (owners[place] * group + row - first) * width - start
                    source = kept[place * group + row]
                    for word in range(max(0, -at), min(width, out.size - at)):
                        out[at + word] = source[a + word]
            stop = nexts[run]
            if stop:
                # The next run may be anywhere, but it is contiguous.
                run = (stop - 1) // RUN
                prefetch_row(kept, run * RUN * group, RUN * group * kept.shape[1] * kept.itemsize)
                prefetch_row(owners, run * RUN, RUN * owners.itemsize)


@njit(nogil=True, cache=True)
def read_rows(rows: Words, which: I64, out: Words) -> None:
    """Copies the present words of rows ``which`` (ascending) to ``out`` [n, words per row]."""
    row_bytes = rows.shape[1] * rows.itemsize
    for position in range(which.size):
        prefetch_row(rows, which[min(position + ROWS_AHEAD, which.size - 1)], row_bytes)
        source, target = rows[which[position]], out[position]
        for word in range(rows.shape[1]):
            target[word] = source[word]


@njit(nogil=True, cache=True)
def read_kept_rows(
    kept: Words, owners: I32, nexts: I32, heads: I32, group: int, which: I64, out: Words
) -> None:
    """Overwrites what :func:`read_rows` read by the copies in the lists with these ``heads``."""
    for head in heads:
        stop = head
        while stop:
            run = (stop - 1) // RUN
            for place in range(run * RUN, stop):
                first = owners[place] * group
                at = np.searchsorted(which, first)
                while at < which.size and which[at] < first + group:
                    source, target = kept[place * group + which[at] - first], out[at]
                    for word in range(out.shape[1]):
                        target[word] = source[word]
                    at += 1
            stop = nexts[run]


def warm_up() -> None:
    """Compiles for writable ids, made here, and for read-only ids, received."""
    ids = np.zeros(1, np.int64)
    received = ids.copy()
    received.flags.writeable = False
    lists, bits = np.zeros(2 + RUN, np.int32), np.zeros(1, np.uint8)
    heads, nexts, owners, room = lists[:1], lists[1:2], lists[2:], np.zeros(ROOM_ENTRIES, np.int64)
    for word in (np.uint32, np.uint8):
        rows, kept, out = np.zeros((1, 8), word), np.zeros((RUN, 8), word), np.zeros(8, word)
        touch(kept, nexts, owners, 1, 0, 1)
        keeping = bits, heads, nexts, owners, kept, room
        for each in (ids, received):
            room[LIMIT] = room[USED] + 1
            bits[:], heads[:], room[USED] = 0, 0, 0
            keep_rows(rows, 0, each, 1, 1, *keeping, 0)
        keep_range(rows, 0, 1, 1, 1, *keeping, 0)
        last_of(1, np.zeros(1, np.int32))
        read_column(rows, 0, 0, 8, 0, out)
        read_kept(kept, owners, nexts, heads[:0], 1, 0, 0, 8, 0, out)
        read_rows(rows, ids, kept)
        read_kept_rows(kept, owners, nexts, heads[:0], 1, ids, kept)
