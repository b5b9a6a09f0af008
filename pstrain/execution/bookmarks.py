"""Where readers of a pass have stood, for others to begin at.

Pure: knows neither what a position says nor who reads. Invariant: of the bookmarks that were added,
the nearest before every element at which reading may still begin is there.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable

from pstrain.element_ranges import Bookmark


class Bookmarks:
    """Of one pass, in the order of its elements."""

    def __init__(self, known: Iterable[Bookmark] = ()) -> None:
        self._known = sorted(known)

    def add(self, bookmark: Bookmark) -> None:
        """One more; of two at one element the first stays."""
        place = self._place_after(bookmark.at)
        if not place or self._known[place - 1].at < bookmark.at:
            self._known.insert(place, bookmark)

    def before(self, element: int) -> Bookmark | None:
        """The nearest at an element or before it; None: it is nearest to the start."""
        place = self._place_after(element)
        return self._known[place - 1] if place else None

    def __len__(self) -> int:
        return len(self._known)

    def keep_for(self, starts: Iterable[int]) -> None:
        """Reading begins at one of these elements, or behind the last bookmark: others go."""
        nearest = {self.before(start) for start in starts}
        self._known = sorted(each for each in nearest if each is not None)

    def _place_after(self, element: int) -> int:
        return bisect.bisect_right(self._known, element, key=lambda known: known.at)
