"""Where readers of a pass have stood, for others to begin at.

Pure: knows neither what a position says nor who reads. Invariant: of the bookmarks that were added,
the nearest before every element that may still be read is there.
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

    def forget_before(self, element: int) -> None:
        """No element before this one is read any more."""
        del self._known[: max(0, self._place_after(element) - 1)]

    def _place_after(self, element: int) -> int:
        return bisect.bisect_right(self._known, element, key=lambda known: known.at)
