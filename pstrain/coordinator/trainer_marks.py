"""Row marks of trainers at the data services, for settling what a lost trainer has read.

Values only: no service is asked. Invariant: every service that a lost trainer may have read is
told, once what the trainer has used there is known, and not before. A trainer may be lost before it
says what it reads, so services named by others count.
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
        # By the name of a settled trainer: the services that are told of it.
        self._told: dict[str, frozenset[str]] = {}

    def note(self, trainer: int, marks: Sequence[dict[str, Any]]) -> None:
        """Notes marks of a trainer's readers, which count from now on; in order of its elements."""
        note_marks(self._marks.setdefault(trainer, {}), marks)

    def forget(self, trainer: int) -> None:
        """Forgets a trainer whose loss is settled."""
        self._marks.pop(trainer, None)

    def of(self, trainer: int) -> Marks:
        """Returns a trainer's marks that count."""
        return dict(self._marks.get(trainer, {}))

    def record_settled(self, name: str, marks: Marks) -> frozenset[str]:
        """Notes that what a lost trainer has used is known; returns the services to be told of it.

        These are all that it may have read, with those of ``marks``. :meth:`add_services` tells of
        later ones.
        """
        told = self._services | {mark["service"] for mark in marks.values()}
        self._told[name] = frozenset(told)
        return self._told[name]

    def add_services(self, services: Iterable[str]) -> dict[str, frozenset[str]]:
        """Notes which data services a trainer reads from now on.

        Returns, by the names of trainers that were lost before and may have read them, the services
        that are to be told of it: none if no service is new, as after most messages.
        """
        new = frozenset(services) - self._services
        self._services |= new
        untold = {name: new - told for name, told in self._told.items() if new - told}
        for name, services_left in untold.items():
            self._told[name] |= services_left
        return untold
