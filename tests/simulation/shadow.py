"""What a dispatcher has recorded, built from durable frames alone: invariant I5.

I5: the state is what its journal says, and its parts agree with each other. Knows nothing of what
is delivered; checkers of that build on it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from dataservice.dispatcher import events as ev
from dataservice.dispatcher.invariants import check_invariants
from dataservice.dispatcher.journal_frames import decode_frame
from dataservice.dispatcher.state import DispatcherState


class Violation(AssertionError):
    """An invariant does not hold."""


class Shadow(ABC):
    """Watches durable frames. ``thorough``: looks at the whole state at each of them."""

    def __init__(self, *, thorough: bool = True) -> None:
        self.shadow = DispatcherState()
        self.thorough = thorough

    def durable(self, frame: bytes) -> None:
        """A decision is on disk."""
        for event in decode_frame(frame):
            self._before(event)
            self.shadow.apply(event)
        if self.thorough:
            _check_parts(self.shadow)

    def flushed(self, state: DispatcherState) -> None:
        """Nothing is under way to the disk."""
        if self.thorough:
            self.replayed(state)

    def replayed(self, state: DispatcherState) -> None:
        """A dispatcher's state, all of which is on disk."""
        if state != self.shadow:
            raise Violation("I5: the state is not what its journal says")
        _check_parts(state)

    def compacted(self, frames: Iterable[bytes]) -> None:
        """The journal was replaced."""
        state = DispatcherState()
        for frame in frames:
            for event in decode_frame(frame):
                state.apply(event)
        self.replayed(state)

    @abstractmethod
    def _before(self, event: ev.Event) -> None:
        """An event is about to change the shadow."""


def _check_parts(state: DispatcherState) -> None:
    try:
        check_invariants(state)
    except AssertionError as error:
        raise Violation(f"I5: parts of the state contradict each other: {error}") from error
