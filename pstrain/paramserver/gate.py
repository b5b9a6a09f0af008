"""The lock between changes of a server's values, many at a time, and checkpoints, one at a time.

Knows neither values nor checkpoints. Thread-safe. Invariant: no thread waits for ever, and no
change overtakes a checkpoint that was waiting before it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pstrain.errors import DeadlineExceededError

_TIMEOUT_S = 600.0


class Gate:
    """A lock for many changes at a time or one checkpoint; a waiting checkpoint goes first.

    ``with gate`` admits a change; :meth:`exclusive` admits a checkpoint. Both raise
    DeadlineExceededError after ten minutes.
    """

    def __init__(self) -> None:
        # Changes take the lock directly: a condition takes it through slower Python calls.
        self._lock = threading.Lock()
        self._condition = threading.Condition(self._lock)
        self._inside = 0
        self._closed = False

    def __enter__(self) -> None:
        with self._lock:
            if self._closed:
                self._wait(lambda: not self._closed)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._closed and not self._inside:
                self._condition.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        with self._condition:
            self._wait(lambda: not self._closed)
            self._closed = True
        try:
            with self._condition:
                self._wait(lambda: not self._inside)
            yield
        finally:
            with self._condition:
                self._closed = False
                self._condition.notify_all()

    def _wait(self, condition: Callable[[], bool]) -> None:
        if not self._condition.wait_for(condition, _TIMEOUT_S):
            raise DeadlineExceededError(
                f"a change or a checkpoint on this parameter server has not ended within "
                f"{_TIMEOUT_S:.0f} s; is its disk stuck?"
            )
