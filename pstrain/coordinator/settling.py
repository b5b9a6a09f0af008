"""Turns of lost trainers' links in asking the parameter servers what the trainers left there.

Knows nothing of what is asked. Invariant: at most ``AT_ONCE`` ask at a time, so that the loss of
all trainers at once opens few streams to each server; once a request has failed, no other is sent
in that session, which is restored or over: a server that does not answer is waited for once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from dataservice.errors import DataServiceError
from pstrain.coordinator.lost_trainers import Settlement, settle_servers
from pstrain.trainer.client import RemoteParameters

_RECHECK_S: Final = 1.0
"""How often a link that waits for its turn asks whether it still needs one."""

AT_ONCE: Final = 16
"""How many ask at a time: with 4 servers, 1,000 lost trainers take a second as with all at once,
but 85 open files instead of 2,200, and less than half the processor time."""


class SettlingTurns:
    """The turns of one coordinator's links. Thread-safe.

    ``settle`` blocks until it has had its turn, or does not need one any more. Turns end, since
    requests have time-outs, and end soon after each other once a request has failed.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._free = AT_ONCE
        self._failure: tuple[str, DataServiceError] | None = None  # with its session

    def settle(
        self, servers: RemoteParameters, trainer: str, is_needed: Callable[[], bool]
    ) -> Settlement:
        """Does what :func:`settle_servers` does, in its turn; nothing if not needed by then."""
        with self._turn(is_needed) as has_turn:
            session = servers.session
            if not has_turn or not is_needed():
                return Settlement({}, {}, {})
            if self._failure is not None and self._failure[0] == session:
                raise self._failure[1].with_traceback(None)
            try:
                return settle_servers(servers, trainer)
            except DataServiceError as error:
                self._failure = session, error
                raise

    @contextmanager
    def _turn(self, is_needed: Callable[[], bool]) -> Iterator[bool]:
        """Waits for a turn and yields True, or False once none is needed."""
        with self._changed:
            while not self._free and is_needed():
                self._changed.wait(_RECHECK_S)
            has_turn = self._free > 0
            self._free -= has_turn
        try:
            yield has_turn
        finally:
            with self._changed:
                self._free += has_turn
                self._changed.notify()
