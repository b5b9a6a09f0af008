"""How rows are divided: splits of sources, windows of splits, and the keys of shuffled orders.

Pure functions and frozen values, standard library only. Knows nothing of files, of Arrow or of
workers, nor how splits are stored (`split_table`) and cut into windows (`windowing`). Invariant:
the same arguments give the same division in any process and any version of Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

MASK64: Final = (1 << 64) - 1
GOLDEN_GAMMA: Final = 0x9E3779B97F4A7C15
WINDOW_ROWS: Final = 65_536
WINDOWS_PER_EPOCH: Final = 64
# A shuffle buffer as large as the data must still leave work for this many workers.
SHUFFLED_WINDOWS_PER_EPOCH: Final = 16
# A window's end cuts groups of rows short, so plans that group rows get fewer, larger windows.
GROUPING_WINDOWS_PER_EPOCH: Final = 4
# Limits for sources whose elements, such as file names, stand for an unknown number of rows.
MAX_ELEMENT_WINDOWS: Final = 4_096
MAX_ELEMENT_SPLITS: Final = 65_536
# Files with an unknown number of rows are measured in bytes. Finding and opening a file counts as
# FILE_COST_BYTES, so that a window of tiny files is still read within a second from remote storage.
WINDOW_BYTES: Final = 8 << 20
FILE_COST_BYTES: Final = 128 << 10
# The last tenth of an epoch is cut into smaller windows, so that all workers end at about the same
# time.
TAIL_SHARE: Final = 10
TAIL_PARTS: Final = 4


class Split(NamedTuple):
    """A part of a source that is read as one piece. A tuple, since there may be millions of them.

    With a path, a split is rows [start, stop) of `row_groups`, counted over these groups. If
    `row_groups` is None and the rows are not known, it is the lines that begin in bytes [start,
    stop), or the whole file if `stop` is 0. Without a path it is the index range [start, stop) of a
    source in memory. `rows` is None if it is not known without reading. `version` shows whether the
    file is still the one that was planned.
    """

    segment: int = 0
    path: str | None = None
    row_groups: tuple[int, ...] | None = None
    start: int = 0
    stop: int = 0
    rows: int | None = None
    size_bytes: int = 0
    version: str = ""


def bytes_of_lines(split: Split) -> str:
    """Returns what a message adds to the path of a split of unknown rows; "" for a whole file."""
    return f" lines that begin in bytes {split.start}..{split.stop - 1}" if split.stop else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A run of splits that one worker reads in order: the unit of leasing and of shuffling."""

    index: int
    splits: tuple[Split, ...]
    rows: int | None


def splitmix64(value: int) -> int:
    """Returns the first output of SplitMix64 (Steele, Lea and Flood 2014) seeded with `value`."""
    z = (value + GOLDEN_GAMMA) & MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK64
    return z ^ (z >> 31)


def order_key(*parts: int) -> int:
    """Hashes several integers, of any sign, to one 64-bit key; their order matters."""
    key = 0
    for part in parts:
        key = splitmix64(key ^ (part & MASK64))
    return key


def epoch_of(repetition: int, repeat: int, repeats: int | None) -> int:
    """Returns the epoch number that keys the shuffles of pass `repeat` in a run of a repeated plan.

    `repetition` is the number of the run; `repeats` is the number of passes in each run, None if
    they are endless.
    """
    return (repetition << 32 if repeats is None else repetition * repeats) + repeat


def window_target_rows(total_rows: int | None, buffer_size: int = 0, group_rows: int = 0) -> int:
    """Returns how many rows a window should have.

    `total_rows` are the rows of the epoch, None if not known. A window has `WINDOW_ROWS`, or less
    so that an epoch has `WINDOWS_PER_EPOCH` windows. It has at least `buffer_size`, the largest
    shuffle buffer, or a sixteenth of the epoch if that is less: several workers should share an
    epoch, and the order of the splits is shuffled as well. It has at least `group_rows`, the rows
    from which groups are formed, or a quarter of the epoch if that is less.
    """
    if total_rows is None:
        return max(WINDOW_ROWS, buffer_size, group_rows)
    plain = min(WINDOW_ROWS, -(-total_rows // WINDOWS_PER_EPOCH))
    shuffled = min(buffer_size, -(-total_rows // SHUFFLED_WINDOWS_PER_EPOCH))
    grouped = min(group_rows, -(-total_rows // GROUPING_WINDOWS_PER_EPOCH))
    return max(1, plain, shuffled, grouped)


def window_target_elements(
    elements: int | None, size_bytes: int | None, cycle: int, windows: int
) -> int | None:
    """Returns how many elements a window should have if `cycle` elements at a time are interleaved.

    A window has `cycle` elements, or fewer so that an epoch still has sixteen windows. It has more
    if the files are known to be small, as long as the epoch still has `windows` windows, and so
    that an epoch of unknown size has at most `MAX_ELEMENT_WINDOWS`. None if the number of elements
    is not known. `size_bytes` is counted as `total_bytes` in `window_target_bytes`; it is None if
    no file has a known size.
    """
    if not elements:
        return None if elements is None else 1
    least = min(cycle, -(-elements // SHUFFLED_WINDOWS_PER_EPOCH))
    if size_bytes is None:
        return max(least, -(-elements // MAX_ELEMENT_WINDOWS))
    return max(least, min(WINDOW_BYTES * elements // size_bytes, -(-elements // windows)))


def divided(splits: Sequence[Split], target_elements: int) -> list[Split]:
    """Cuts splits into splits of one element each, or of a few if that would make too many.

    Windows of few elements, in any order, can then be made of them. Parts of files are cut into
    pieces of `target_elements` (a whole window) only, since each piece decodes its row group again.
    """
    finest = -(-(total_rows(splits) or 0) // MAX_ELEMENT_SPLITS)
    pieces: list[Split] = []
    for split in splits:
        if not split.rows or split.rows == 1:
            pieces.append(split)
            continue
        step = finest if split.path is None else max(finest, target_elements)
        for first in range(split.start, split.start + split.rows, step):
            stop = min(first + step, split.start + split.rows)
            pieces.append(split._replace(start=first, stop=stop, rows=stop - first))
    return pieces


def tail_target_rows(target_rows: int, buffer_size: int) -> int:
    """Returns the rows of a window near the end of an epoch: a quarter of `target_rows`.

    If `buffer_size` rows are more, returns these, but at most `target_rows`: no shuffle buffer gets
    fewer rows than in earlier windows.
    """
    return max(-(-target_rows // TAIL_PARTS), min(buffer_size, target_rows))


def window_target_bytes(total_bytes: int, windows: int = WINDOWS_PER_EPOCH) -> int:
    """Returns how many bytes a window should have if the number of rows of its files is not known.

    `total_bytes` are the bytes of the epoch, in which each file counts as `FILE_COST_BYTES` more
    than its size. The result is at most `WINDOW_BYTES`, and so small that an epoch of many files
    has about `windows` windows or more.
    """
    return max(1, min(WINDOW_BYTES, -(-total_bytes // windows)))


def total_rows(splits: Sequence[Split]) -> int | None:
    """Returns the sum of the rows, or None if the rows of some split are not known."""
    total = 0
    for split in splits:
        if split.rows is None:
            return None
        total += split.rows
    return total
