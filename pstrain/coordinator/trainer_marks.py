"""Row marks of trainers at the data services, for settling what a lost trainer has read.

Values only: no service is asked. Invariant: every service that a lost trainer may have read is
included. A trainer may be lost before it says what it reads, so services named by others count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pstrain.reader_marks import Marks, note_marks


class TrainerMarks:
    """The row marks of all trainers. Not thread-safe."""

    def __init__(self) -> None:
        self._marks: dict[int, Marks] = {}
        self._services: set[str] = set()
        self._lost_names: list[str] = []

    def note(self, trainer: int, marks: Sequence[dict[str, Any]]) -> None:
        """Notes marks of a trainer's readers, which count from now on; in order of its elements."""
        note_marks(self._marks.setdefault(trainer, {}), marks)

    def forget(self, trainer: int) -> None:
        """Forgets a trainer whose loss is settled."""
        self._marks.pop(trainer, None)

    def record_loss(self, trainer: int, name: str) -> tuple[frozenset[str], Marks]:
        """Returns the data services that a lost trainer may have read, and its marks that count.

        From now on :meth:`add_services` returns ``name``, the trainer's, among the lost ones.
        """
        self._lost_names.append(name)
        return frozenset(self._services), dict(self._marks.get(trainer, {}))

    def add_services(self, services: Iterable[str]) -> tuple[frozenset[str], tuple[str, ...]]:
        """Notes which data services a trainer reads from now on.

        Returns the services that were not known, and the names of all trainers lost so far, which
        may have read them: of none if no service is new, as after most messages.
        """
        new = frozenset(services) - self._services
        self._services |= new
        return new, tuple(self._lost_names) if new else ()
