"""Row marks of trainers at the data services, for settling what a lost one has read.

Values only: no service is asked. Invariant: of a lost trainer, no service that it may have read is
left out: it may be lost before it says where it reads, which others know.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pstrain.reader_marks import Marks, note_marks


class Readings:
    """Of all trainers. Not thread-safe."""

    def __init__(self) -> None:
        self._rows: dict[int, Marks] = {}
        self._services: set[str] = set()
        self._lost_names: list[str] = []

    def note(self, trainer: int, rows: Sequence[dict[str, Any]]) -> None:
        """Marks of its readers that count from now on; in the order of its elements."""
        note_marks(self._rows.setdefault(trainer, {}), rows)

    def forget(self, trainer: int) -> None:
        """What it left is settled."""
        self._rows.pop(trainer, None)

    def left_by(self, trainer: int, name: str) -> tuple[frozenset[str], Marks]:
        """Data services that it may have read, and marks that count by what it said here.

        From now on ``name``, the trainer's, is among the lost ones of :meth:`begin`.
        """
        self._lost_names.append(name)
        return frozenset(self._services), dict(self._rows.get(trainer, {}))

    def begin(self, services: Iterable[str]) -> tuple[frozenset[str], tuple[str, ...]]:
        """A trainer says which data services it reads from now on.

        Returns those that were not known, and the trainers lost so far, which may have read them.
        """
        new = frozenset(services) - self._services
        self._services |= new
        return new, tuple(self._lost_names)
