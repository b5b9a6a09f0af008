"""Helper threads: idle cores help with the rows of one large request.

Rows are scattered in memory, and a core can have only so many reads outstanding, so two cores fetch
rows in half the time. Knows nothing of what is done with rows. Invariants: each row is handled
once, by one thread; no request waits for a helper that has not begun, and helpers take no core from
a request.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

from dataservice.runtime.machine.cores import available_cores

__all__ = ["Helpers", "in_parts"]

# With fewer rows, waking a helper costs more than it gains.
_SHARED_ROWS: Final = 16_384
_PART_ROWS: Final = 4_096
_HELPERS_MAX: Final = 3

Work = Callable[[int, int], None]

_of_thread = threading.local()


class Helpers:
    """Threads that help the threads inside :meth:`working`, as long as cores are idle."""

    def __init__(self, cores: int | None = None) -> None:
        count = available_cores() if cores is None else cores
        # One entry per idle core; single list operations take and return cores without a lock.
        self._count = count
        self._idle_cores: list[None] = [None] * count
        self._threads = ThreadPoolExecutor(
            max(1, min(_HELPERS_MAX, count - 1)), thread_name_prefix="helper"
        )

    @contextmanager
    def working(self) -> Iterator[None]:
        """Enters a scope in which this thread serves a request, and may be helped."""
        has_core = self._take_core()
        _of_thread.helpers = self
        try:
            yield
        finally:
            _of_thread.helpers = None
            if has_core:
                self._idle_cores.append(None)

    def share(self, rows: int, work: Work) -> None:
        """Calls ``work(start, stop)`` for parts that together make up all ``rows``."""
        # A helper that has begun and then waits for a core would delay the request; and trainers on
        # this host need the cores themselves.
        if _running() >= self._count or not self._take_core():
            work(0, rows)
            return
        starts = iter(range(0, rows, _PART_ROWS))
        lock = threading.Lock()

        def take_parts() -> None:
            while True:
                with lock:
                    start = next(starts, None)
                if start is None:
                    return
                work(start, min(start + _PART_ROWS, rows))

        try:
            helped = self._ask(take_parts)
            try:
                take_parts()
            finally:
                if helped is not None and not helped.cancel():
                    helped.result()
        finally:
            self._idle_cores.append(None)

    def stop(self) -> None:
        """Ends the threads; requests in flight finish without them. Idempotent."""
        self._threads.shutdown(cancel_futures=True)

    def _ask(self, take_parts: Callable[[], None]) -> Future[None] | None:
        try:
            return self._threads.submit(take_parts)
        except RuntimeError:  # stopped
            return None

    def _take_core(self) -> bool:
        try:
            self._idle_cores.pop()
        except IndexError:
            return False
        return True


def _running() -> int:
    """Returns how many threads of the machine have a core or wait for one; 0 if unknown."""
    try:
        with open("/proc/loadavg", "rb", buffering=0) as file:
            return int(file.read(128).split()[3].partition(b"/")[0])
    except (OSError, ValueError, IndexError):
        return 0


def in_parts(rows: int, work: Work) -> None:
    """Calls ``work(start, stop)`` for all ``rows``, with helpers if this thread may have them."""
    helpers: Any = getattr(_of_thread, "helpers", None)
    if helpers is None or rows < _SHARED_ROWS:
        work(0, rows)
    else:
        helpers.share(rows, work)
