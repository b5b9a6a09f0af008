"""Bookmarks: positions of a pass's readers, at which other readers may begin.

Pure: knows neither what a position contains nor who reads. Invariant: for every element at which
reading may still begin, the nearest bookmark before it, of those that were added, is kept.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable

from pstrain.execution.element_ranges import Bookmark


class Bookmarks:
    """The bookmarks of one pass, in the order of its elements."""

    def __init__(self, known: Iterable[Bookmark] = ()) -> None:
        self._known = sorted(known)

    def add(self, bookmark: Bookmark) -> None:
        """Adds a bookmark; of two at one element the first stays."""
        place = self._place_after(bookmark.at)
        if not place or self._known[place - 1].at < bookmark.at:
            self._known.insert(place, bookmark)

    def before(self, element: int) -> Bookmark | None:
        """Returns the nearest bookmark at or before an element; None if there is none."""
        place = self._place_after(element)
        return self._known[place - 1] if place else None

    def __len__(self) -> int:
        return len(self._known)

    def nearest(self, starts: Iterable[int]) -> list[Bookmark]:
        """Returns the nearest bookmark at or before each of ``starts``, each once, in order."""
        found = {self.before(start) for start in starts}
        return sorted(each for each in found if each is not None)

    def keep_for(self, starts: Iterable[int]) -> None:
        """Keeps only those that are :meth:`nearest` to ``starts``, where reading begins."""
        self._known = self.nearest(starts)

    def _place_after(self, element: int) -> int:
        return bisect.bisect_right(self._known, element, key=lambda known: known.at)
