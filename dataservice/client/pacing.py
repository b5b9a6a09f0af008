"""The schedule of a reader's calls to the dispatcher.

Responsible for calls often enough that the end is seen within milliseconds and that little is read
twice after a crash, but seldom enough that no batch costs a call. Pure arithmetic: knows no clock.
Invariant: two calls are no further apart than the reader's heartbeat interval, or the longer one
that the dispatcher asked for.
"""

from __future__ import annotations

# Consumed rows are reported in groups, at this interval.
GROUP_S = 0.2
# While nothing is left to read and the end has not come, the reader polls with growing pauses. In
# jobs with so many readers that the dispatcher asks for a longer interval, the pauses are parts of
# that, since all readers become idle at once.
IDLE_FIRST_S = 0.003
IDLE_MAX_S = 0.25
# A caller that was told of an end and asks again waits for the answer; in rounds, all others do.
AGAIN_S = 0.02
_IDLE_FIRST_PART = 1 / 64
_IDLE_MAX_PART = 1 / 2


class Pacing:
    """The schedule of one reader's calls."""

    def __init__(self, heartbeat_s: float, now_s: float) -> None:
        self._own_s = self._heartbeat_s = heartbeat_s
        self._last_s = now_s
        self._idle_s = self._idle_first_s = IDLE_FIRST_S
        self._idle_max_s, self._again_s = IDLE_MAX_S, AGAIN_S
        self._was_idle = False

    def due_s(
        self, *, urgent: bool, idle: bool, has_unreported: bool, patient: bool = False
    ) -> float:
        """Returns the time of the next call; `urgent`: the dispatcher must hear at once.

        `patient`: a stream, and not the dispatcher, will end the idleness. What else the dispatcher
        has to tell, such as another worker, or that it misses one, comes with the next heartbeat,
        as for a reader in the middle of a window.
        """
        if urgent or (idle and not self._was_idle):
            return self._last_s
        waits = [self._heartbeat_s]
        if idle and not patient:
            waits.append(self._idle_s)
        if has_unreported:
            waits.append(GROUP_S)
        return self._last_s + min(waits)

    def record_interval(self, least_s: float) -> None:
        """Records the least interval that the dispatcher wants between calls without news."""
        self._heartbeat_s = max(self._own_s, least_s)
        self._idle_first_s = max(IDLE_FIRST_S, _IDLE_FIRST_PART * least_s)
        self._idle_max_s = max(IDLE_MAX_S, _IDLE_MAX_PART * least_s)
        self._again_s = max(AGAIN_S, _IDLE_MAX_PART * least_s)

    @property
    def report_s(self) -> float:
        """The time at which a report of consumed rows is due."""
        return self._last_s + GROUP_S

    def record_call(self, now_s: float, *, idle: bool) -> None:
        """Records that a call was made, and whether the reader was idle then."""
        longer_s = max(2 * self._idle_s, self._idle_first_s)
        self._idle_s = min(longer_s, self._idle_max_s) if idle else self._idle_first_s
        self._was_idle = idle
        self._last_s = now_s

    def record_end(self) -> None:
        """Shortens the next pause: a caller was told that nothing is left, and may ask again."""
        self._idle_s = min(self._idle_s, self._again_s)

    def record_arrival(self) -> None:
        """Records that something arrived, so that the next idle period begins with short pauses."""
        self._idle_s = self._idle_first_s
        self._was_idle = False
