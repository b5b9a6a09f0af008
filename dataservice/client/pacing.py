"""The schedule of a reader's calls to the dispatcher.

Pure arithmetic on given times. Often enough that the end is seen within milliseconds and that
little is read twice after a crash; seldom enough that no batch costs a call. Invariant: two calls
are no further apart than the reader's interval, or the longer one that the dispatcher asked for.
"""

from __future__ import annotations

# Rows consumed since the last call are told in groups.
GROUP_S = 0.2
# While nothing is left to read and the end has not come, asks again ever more slowly; and where
# the dispatcher has many to answer, in parts of the interval it asks for: all are idle at once.
IDLE_FIRST_S = 0.003
IDLE_MAX_S = 0.25
# Who was told of an end and asks again waits for the answer, and in rounds all others do.
AGAIN_S = 0.02
_IDLE_FIRST_PART = 1 / 64
_IDLE_MAX_PART = 1 / 2


class Pacing:
    """Decides when the next call is due."""

    def __init__(self, heartbeat_s: float, now_s: float) -> None:
        self._own_s = self._heartbeat_s = heartbeat_s
        self._last_s = now_s
        self._idle_s = self._idle_first_s = IDLE_FIRST_S
        self._idle_max_s, self._again_s = IDLE_MAX_S, AGAIN_S
        self._was_idle = False

    def due_s(self, *, urgent: bool, idle: bool, has_news: bool) -> float:
        """The time of the next call. `urgent`: the dispatcher must know or be asked at once."""
        if urgent or (idle and not self._was_idle):
            return self._last_s
        waits = [self._heartbeat_s]
        if idle:
            waits.append(self._idle_s)
        if has_news:
            waits.append(GROUP_S)
        return self._last_s + min(waits)

    def note_interval(self, least_s: float) -> None:
        """The dispatcher wants to hear no more often than this of readers without news."""
        self._heartbeat_s = max(self._own_s, least_s)
        self._idle_first_s = max(IDLE_FIRST_S, _IDLE_FIRST_PART * least_s)
        self._idle_max_s = max(IDLE_MAX_S, _IDLE_MAX_PART * least_s)
        self._again_s = max(AGAIN_S, _IDLE_MAX_PART * least_s)

    def note_call(self, now_s: float, *, idle: bool) -> None:
        """A call was made."""
        longer_s = max(2 * self._idle_s, self._idle_first_s)
        self._idle_s = min(longer_s, self._idle_max_s) if idle else self._idle_first_s
        self._was_idle = idle
        self._last_s = now_s

    def note_end(self) -> None:
        """A taker was told that nothing is left, and may ask again at once."""
        self._idle_s = min(self._idle_s, self._again_s)

    def note_arrival(self) -> None:
        """Something came in: the next idle moment is a new one."""
        self._idle_s = self._idle_first_s
        self._was_idle = False
