"""A shadow of the dispatcher's state, built from durable frames alone, to check invariant I5.

I5: the state is what its journal says, and its parts agree with each other. Knows nothing of
delivery; the checkers of delivery build on it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from dataservice.dispatcher import events as ev
from dataservice.dispatcher.invariants import check_invariants
from dataservice.dispatcher.journal_frames import decode_frame
from dataservice.dispatcher.state import DispatcherState


class Violation(AssertionError):
    """Raised when an invariant does not hold."""


class Shadow(ABC):
    """Watches durable frames; with ``thorough``, compares the whole state after each of them."""

    def __init__(self, *, thorough: bool = True) -> None:
        self.shadow = DispatcherState()
        self.thorough = thorough

    def durable(self, frame: bytes) -> None:
        """Called when a decision has reached the disk."""
        for event in decode_frame(frame):
            self._before(event)
            self.shadow.apply(event)
        if self.thorough:
            _check_parts(self.shadow)

    def flushed(self, state: DispatcherState) -> None:
        """Called when no frame is on its way to the disk."""
        if self.thorough:
            self.replayed(state)

    def replayed(self, state: DispatcherState) -> None:
        """Compares the state of a dispatcher, all of whose facts are on disk, with the shadow."""
        if state != self.shadow:
            raise Violation("I5: the state is not what its journal says")
        _check_parts(state)

    def compacted(self, frames: Iterable[bytes]) -> None:
        """Called when the journal was replaced by these frames."""
        state = DispatcherState()
        for frame in frames:
            for event in decode_frame(frame):
                state.apply(event)
        self.replayed(state)

    @abstractmethod
    def _before(self, event: ev.Event) -> None:
        """Called before an event changes the shadow."""


def _check_parts(state: DispatcherState) -> None:
    try:
        check_invariants(state)
    except AssertionError as error:
        raise Violation(f"I5: parts of the state contradict each other: {error}") from error
