"""Sets of window indices, stored as ranges, and how far windows and iterations have been read.

Pure, standard library only. Windows finish nearly in order, so a set of finished windows is a few
ranges, however long the iteration is. Invariant: the ranges of a set are ascending and not empty,
and neither overlap nor touch, so equal sets have equal ranges.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dataservice.errors import InvalidArgumentError

Pairs = tuple[tuple[int, int], ...]


class RowMark(NamedTuple):
    """Output rows [0, row) of a window; `final` says that the window has no more rows."""

    window: int
    generation: int
    row: int
    final: bool


class Ranges:
    """A set of integers >= 0, stored as ranges [first, end)."""

    def __init__(self, pairs: Iterable[Iterable[int]] = ()) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []
        for first, end in pairs:
            self.add(first, end)

    def add(self, first: int, end: int) -> None:
        """Adds the integers of [first, end)."""
        if first >= end:
            return
        low = bisect_left(self._ends, first)
        high = bisect_right(self._firsts, end)
        if low < high:
            first = min(first, self._firsts[low])
            end = max(end, self._ends[high - 1])
        self._firsts[low:high] = [first]
        self._ends[low:high] = [end]

    def discard(self, first: int, end: int) -> None:
        """Removes the integers of [first, end)."""
        if first >= end:
            return
        low = bisect_right(self._ends, first)
        high = bisect_left(self._firsts, end)
        if low >= high:
            return
        left, right = (self._firsts[low], first), (end, self._ends[high - 1])
        kept = [(a, b) for a, b in (left, right) if a < b]
        self._firsts[low:high] = [a for a, _ in kept]
        self._ends[low:high] = [b for _, b in kept]

    def __contains__(self, index: int) -> bool:
        at = bisect_right(self._firsts, index) - 1
        return at >= 0 and index < self._ends[at]

    def __iter__(self) -> Iterator[int]:
        """Yields the integers of the set, ascending."""
        for first, end in self.pairs():
            yield from range(first, end)

    def __len__(self) -> int:
        """Returns the number of integers in the set."""
        return sum(end - first for first, end in self.pairs())

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ranges) and self.pairs() == other.pairs()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Ranges({list(self.pairs())})"

    def pairs(self) -> Pairs:
        """Returns the ranges (first, end) of the set."""
        return tuple(zip(self._firsts, self._ends, strict=True))

    def end(self) -> int:
        """Returns the largest integer plus one, or 0 if the set is empty."""
        return self._ends[-1] if self._ends else 0

    def gaps(self, end: int) -> Iterator[int]:
        """Yields the integers of [0, end) that are not in the set, ascending."""
        at = 0
        for first, last in self.pairs():
            yield from range(at, min(first, end))
            at = last
        yield from range(at, end)

    def missing(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Yields the maximal ranges within [first, end) that are not in the set."""
        low = bisect_right(self._ends, first)
        for known, known_end in zip(self._firsts[low:], self._ends[low:], strict=True):
            if known >= end:
                break
            if first < known:
                yield first, known
            first = known_end
        if first < end:
            yield first, end

    def copy(self) -> Ranges:
        return Ranges(self.pairs())


@dataclass(slots=True)
class Consumed:
    """The windows that are consumed whole (`done`), and rows [0, row) of others (`rows`).

    Invariant: no window is in both `done` and `rows`, and no value in `rows` is 0.
    """

    done: Ranges = field(default_factory=Ranges)
    rows: dict[int, int] = field(default_factory=dict)

    def record(self, window: int, row: int) -> None:
        """Records that rows [0, row) of a window are consumed; never lowers what is recorded."""
        if row > self.rows.get(window, 0) and window not in self.done:
            self.rows[window] = row

    def finish(self, first: int, end: int) -> None:
        """Records that windows [first, end) are consumed whole."""
        self.done.add(first, end)
        for window in [known for known in self.rows if first <= known < end]:
            del self.rows[window]

    def rewind(self, window: int, row: int) -> None:
        """Takes back that the rows of a window from `row` on are consumed."""
        known = None if window in self.done else self.rows.get(window, 0)
        if known is not None and known <= row:
            return
        self.done.discard(window, window + 1)
        self.rows.pop(window, None)
        self.record(window, row)

    def merge(self, other: Consumed) -> None:
        """Adds everything that is consumed in `other`."""
        for first, end in other.done.pairs():
            self.finish(first, end)
        for window, row in other.rows.items():
            self.record(window, row)

    def end(self) -> int:
        """Returns the index of the last window in `done` or `rows` plus one, or 0 without any."""
        return max(self.done.end(), max(self.rows, default=-1) + 1)

    def copy(self) -> Consumed:
        return Consumed(self.done.copy(), dict(self.rows))

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON-able form; equal values have equal forms."""
        return {
            "done": [list(pair) for pair in self.done.pairs()],
            "rows": [list(item) for item in sorted(self.rows.items())],
        }

    @classmethod
    def from_json(cls, encoded: Mapping[str, Any]) -> Consumed:
        """Decodes the result of `to_json`; raises InvalidArgumentError if it is malformed."""
        consumed = cls()
        try:
            for first, end in encoded["done"]:
                if not 0 <= _integer(first) < _integer(end):
                    raise ValueError(f"[{first}, {end}) is not a range of windows")
                consumed.finish(first, end)
            for window, row in encoded["rows"]:
                if _integer(window) < 0 or _integer(row) < 1:
                    raise ValueError(f"row {row} of window {window}")
                consumed.record(window, row)
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"malformed position in windows: {error!r}") from error
        return consumed


def _integer(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is not an integer")
    return value
