"""How rows are divided: splits of sources, windows of splits, and the keys of their orders.

Pure functions and frozen values, standard library only: whoever holds the same arguments gets the
same division, in any process, in any version of Python. It knows nothing of files, of Arrow or of
workers, nor how many splits are kept (`split_table`) and cut into windows (`windowing`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

from dataservice.errors import InvalidArgumentError

T = TypeVar("T")

MASK64: Final = (1 << 64) - 1
GOLDEN_GAMMA: Final = 0x9E3779B97F4A7C15
WINDOW_ROWS: Final = 65_536
WINDOWS_PER_EPOCH: Final = 64
# A shuffle buffer as large as the data must still leave work for this many workers.
SHUFFLED_WINDOWS_PER_EPOCH: Final = 16
# Where the end of a window cuts groups of rows short, that there are few windows matters more.
GROUPING_WINDOWS_PER_EPOCH: Final = 4
# Of sources whose elements, such as names of files, stand for rows that nobody has counted.
MAX_ELEMENT_WINDOWS: Final = 4_096
MAX_ELEMENT_SPLITS: Final = 65_536
# Files whose rows nobody has counted are measured in bytes. Finding and opening one counts as so
# many more, so that a window of tiny files is still read within a second from a distant store.
WINDOW_BYTES: Final = 8 << 20
FILE_COST_BYTES: Final = 128 << 10
# The last tenth of an epoch is cut finer, so that all workers end at about the same time.
TAIL_SHARE: Final = 10
TAIL_PARTS: Final = 4


class Split(NamedTuple):
    """A part of a source that is read as one piece. A tuple: there are millions.

    With a path: rows [start, stop) of `row_groups`, counted over these groups, or the whole file
    when `row_groups` is None. Without: the index range [start, stop) of a source in memory.
    `rows` is None where it is not known without reading. `version` tells whether the file is
    still the one that was planned.
    """

    segment: int = 0
    path: str | None = None
    row_groups: tuple[int, ...] | None = None
    start: int = 0
    stop: int = 0
    rows: int | None = None
    size_bytes: int = 0
    version: str = ""

    def to_json(self) -> dict[str, Any]:
        """JSON-able form for journals."""
        return self._asdict()

    @classmethod
    def from_json(cls, encoded: Mapping[str, Any]) -> Split:
        """The split that `to_json` was given; InvalidArgumentError where it is malformed."""
        try:
            groups = encoded["row_groups"]
            return cls(**{**encoded, "row_groups": None if groups is None else tuple(groups)})
        except (KeyError, TypeError) as error:
            raise InvalidArgumentError(f"malformed split {encoded!r}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Splits that one worker reads in order: the unit of leasing and of shuffling."""

    index: int
    splits: tuple[Split, ...]
    rows: int | None

    def to_json(self) -> dict[str, Any]:
        """JSON-able form for journals."""
        splits = [split.to_json() for split in self.splits]
        return {"index": self.index, "splits": splits, "rows": self.rows}

    @classmethod
    def from_json(cls, encoded: Mapping[str, Any]) -> Window:
        """The window that `to_json` was given; InvalidArgumentError where it is malformed."""
        try:
            splits = tuple(Split.from_json(split) for split in encoded["splits"])
            return cls(index=encoded["index"], splits=splits, rows=encoded["rows"])
        except (KeyError, TypeError) as error:
            raise InvalidArgumentError(f"malformed window {encoded!r}: {error}") from error


def splitmix64(value: int) -> int:
    """First output of the generator SplitMix64 (Steele, Lea and Flood 2014) seeded with `value`."""
    z = (value + GOLDEN_GAMMA) & MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK64
    return z ^ (z >> 31)


def order_key(*parts: int) -> int:
    """One 64-bit key of several integers, of any sign; their order matters."""
    key = 0
    for part in parts:
        key = splitmix64(key ^ (part & MASK64))
    return key


def permuted(items: Sequence[T], key: int) -> list[T]:
    """A permutation of `items` that depends on `key` alone (Fisher and Yates)."""
    result = list(items)
    state = key & MASK64
    for last in range(len(result) - 1, 0, -1):
        # Taking the high half of a product avoids a modulo's bias towards small indices.
        other = (splitmix64(state) * (last + 1)) >> 64
        state = (state + GOLDEN_GAMMA) & MASK64
        result[last], result[other] = result[other], result[last]
    return result


def epoch_of(repetition: int, repeat: int, repeats: int | None) -> int:
    """Epoch number that keys the shuffles of pass `repeat` in a run of a repeated plan.

    `repetition` counts the runs; `repeats` is the number of passes in each, None for endless.
    """
    return (repetition << 32 if repeats is None else repetition * repeats) + repeat


def window_target_rows(total_rows: int | None, buffer_size: int = 0, group_rows: int = 0) -> int:
    """Rows that a window should have, from the epoch's rows and the largest shuffle buffer.

    Small enough that several workers share an epoch: a buffer larger than a sixteenth of the
    data is cut to that, since the order of the splits is shuffled as well. `group_rows`: what
    groups should be made of, down to a quarter of the data.
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
    """Elements that a window should have whose rows are interleaved, `cycle` of them at a time.

    As many as are read at a time, unless fewer than sixteen windows came of it; more where files
    are known to be small, down to `windows` of them. None where nobody has counted the elements.
    `size_bytes` as in `window_target_bytes`, None where no file has a known size.
    """
    if not elements:
        return None if elements is None else 1
    least = min(cycle, -(-elements // SHUFFLED_WINDOWS_PER_EPOCH))
    if size_bytes is None:
        return max(least, -(-elements // MAX_ELEMENT_WINDOWS))
    return max(least, min(WINDOW_BYTES * elements // size_bytes, -(-elements // windows)))


def divided(splits: Sequence[Split], target_elements: int) -> list[Split]:
    """The same in splits of one element each where that does not make too many.

    So that windows of few elements can be made of them, in any order; parts of files are cut to
    whole windows, since a row group is decoded for each.
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
    """Rows of a window near the end of an epoch; no shuffle is cut shorter for it."""
    return max(-(-target_rows // TAIL_PARTS), min(buffer_size, target_rows))


def window_target_bytes(total_bytes: int, windows: int = WINDOWS_PER_EPOCH) -> int:
    """Bytes that a window of files should have whose rows are not counted.

    From those of the epoch; each file counts as `FILE_COST_BYTES` more than it has. At least
    `windows` of them come of large files.
    """
    return max(1, min(WINDOW_BYTES, -(-total_bytes // windows)))


def total_rows(splits: Sequence[Split]) -> int | None:
    """Sum of the rows, None when one split does not know its own."""
    total = 0
    for split in splits:
        if split.rows is None:
            return None
        total += split.rows
    return total
