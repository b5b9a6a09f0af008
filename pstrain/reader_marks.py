"""How far the rows of a trainer's readers count, as was last said, for when it is lost.

Knows nothing of who keeps them. Invariant: each epoch has readers of its own, and what is kept does
not grow with their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

READERS_KEPT: Final = 256
"""More than a trainer reads from at a time: how older ones ended the dispatcher knows by then."""

Marks = dict[str, dict[str, Any]]
"""Marks of readers, by reader: {"service": target, "reader": id, "marks": [[window, ...], ...]}."""


def note_marks(known: Marks, rows: Sequence[dict[str, Any]]) -> None:
    """Replaces what ``known`` has of these readers, and drops those not heard of for longest."""
    for mark in rows:
        reader = str(mark["reader"])
        known.pop(reader, None)
        known[reader] = mark
    while len(known) > max(READERS_KEPT, len(rows)):
        del known[next(iter(known))]
