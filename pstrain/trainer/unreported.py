"""The closures whose end a server may know, and the coordinator does not yet.

Pure: no threads, no network. A server keeps the newest ends of a trainer's closures, for the case
that the trainer is lost before it reports them. So a trainer lets few others end while one waits to
be reported, as it does for a server that is slow to commit its part. Invariant: once ENDS_MAX
closures have ended while another waits, none begins to end until that one is reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from pstrain.paramserver.commits import ENDED_KEPT

ENDS_MAX: Final = ENDED_KEPT // 2
"""The other half is for ends that are reported, and on their way to the coordinator."""


class Unreported:
    """The closures of one session that have ended and are not reported. Not thread-safe."""

    def __init__(self) -> None:
        self._ended = 0
        self._ended_by_then: dict[int, int] = {}
        self._is_awaited = False

    @property
    def is_full(self) -> bool:
        """True while no other closure may end."""
        oldest = next(iter(self._ended_by_then.values()), self._ended)
        return self._ended - oldest >= ENDS_MAX

    def add(self, closures: Sequence[int]) -> bool:
        """Notes that closures are about to end; False, and notes nothing, if they have to wait."""
        if closures and self.is_full:
            self._is_awaited = True
            return False
        self._ended += len(closures)
        for closure in closures:
            self._ended_by_then[closure] = self._ended
        return True

    def remove(self, closures: Iterable[int]) -> bool:
        """Notes that closures are reported, or have not ended; True if those that wait may end."""
        for closure in closures:
            self._ended_by_then.pop(closure, None)
        if not self._is_awaited or self.is_full:
            return False
        self._is_awaited = False
        return True
