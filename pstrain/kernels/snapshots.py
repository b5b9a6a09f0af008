"""Keeping rows as they were: copies of what is about to change, and reading with them.

Rows are words here, of 4 bytes or 1, [rows, words per row]. They are kept in groups of ``group``
rows, at places of ``kept``: group ``owners[place]``, with the group's bit set in ``bits``. ``RUN``
places in a row are a run; those of ``block`` groups are a list of runs, which ends at the place
before ``heads[group // block]`` and goes on, from the start of that place's run, at the place
before ``nexts[run]``; 0 is the end. All runs of a list but the first are full. ``room`` says where
there are runs: a list of free ones, those from ``USED`` to ``LIMIT``, whose memory is there
already, and those below ``TOP``. Groups below ``read`` have been read: nobody needs them any more.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pstrain.kernels.prefetch import ROWS_AHEAD, ask_for

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
    """Copies one group unless that was done."""
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
        # Whoever changes the others asks for them then.
        if coming >= read:
            ask_for(rows, ahead, row_bytes)
            ask_for(bits, coming >> 3, 1)
            place = heads[coming // block]
            # Where it goes is waited for longest: writes end one after the other.
            if place % RUN:
                ask_for(kept, place * group, group * row_bytes)
                ask_for(owners, place, owners.itemsize)
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
    """Makes the memory of runs ``[start, stop)`` be there; nobody may use them meanwhile."""
    row_bytes = kept.shape[1] * kept.itemsize
    for row in range(start * RUN * group, stop * RUN * group, max(1, _PAGE_BYTES // row_bytes)):
        kept[row, 0] = 0
    for run in range(start, stop):
        nexts[run] = 0
        owners[run * RUN] = 0


@njit(nogil=True, cache=True)
def last_of(head: int, nexts: I32) -> int:
    """The last run of a list that is not empty."""
    run = (head - 1) // RUN
    while nexts[run]:
        run = (nexts[run] - 1) // RUN
    return run


@njit(nogil=True, cache=True)
def read_column(rows: Words, first: int, a: int, b: int, start: int, out: Words) -> None:
    """Words from ``start`` on of a column as it is: rows from ``first`` on, one after the other.

    The column is words ``[a, b)`` of each row; ``out`` is flat and says how many words.
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
        # As many at a time as the compiler knows of, so that it moves them without a loop.
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
    """Overwrites what :func:`read_column` gave of the groups of some lists."""
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
                # What comes next is anywhere, but all of it in one place.
                run = (stop - 1) // RUN
                ask_for(kept, run * RUN * group, RUN * group * kept.shape[1] * kept.itemsize)
                ask_for(owners, run * RUN, RUN * owners.itemsize)


@njit(nogil=True, cache=True)
def read_rows(rows: Words, which: I64, out: Words) -> None:
    """Whole rows ``which``, ascending, as they are, into ``out`` [n, words per row]."""
    row_bytes = rows.shape[1] * rows.itemsize
    for position in range(which.size):
        ask_for(rows, which[min(position + ROWS_AHEAD, which.size - 1)], row_bytes)
        source, target = rows[which[position]], out[position]
        for word in range(rows.shape[1]):
            target[word] = source[word]


@njit(nogil=True, cache=True)
def read_kept_rows(
    kept: Words, owners: I32, nexts: I32, heads: I32, group: int, which: I64, out: Words
) -> None:
    """Overwrites what :func:`read_rows` gave of the groups of some lists."""
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
    """Compiles for ids made here and for those received, which are read-only."""
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
