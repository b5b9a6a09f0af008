"""The last reported high-water marks of a trainer's readers, needed if the trainer is lost.

A mark says up to which row a reader's rows count as trained. Knows nothing of where marks are
stored. Invariant: although each epoch has readers of its own, the number of marks kept is bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

READERS_KEPT: Final = 256
"""More readers than a trainer has at a time; the dispatcher knows by then how older ones ended."""

Marks = dict[str, dict[str, Any]]
"""Marks of readers, by reader: {"service": target, "reader": id, "marks": [[window, ...], ...]}."""


def note_marks(known: Marks, rows: Sequence[dict[str, Any]]) -> None:
    """Replaces the marks of these readers in ``known``, and drops the longest unreported ones."""
    for mark in rows:
        reader = str(mark["reader"])
        known.pop(reader, None)
        known[reader] = mark
    while len(known) > max(READERS_KEPT, len(rows)):
        del known[next(iter(known))]
