"""Threads that stay for a while after their work, so that many short pieces of work need few.

Knows nothing of the work. Invariants: work never waits for a thread, because one is started if none
is idle; the thread that became idle last works first, so that those beyond the need end, and the
memory that they kept with them.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Final

_KEPT_S: Final = 10.0

Work = Callable[[], object]


class KeptThreads:
    """Threads called ``name``. Idle ones end after ``kept_s``. Thread-safe."""

    def __init__(self, name: str, *, kept_s: float = _KEPT_S) -> None:
        self._name = name
        self._kept_s = kept_s
        self._lock = threading.Lock()
        self._idle: list[queue.SimpleQueue[Work | None]] = []
        self._threads: set[threading.Thread] = set()
        self._stopped = False

    def run(self, work: Work) -> None:
        """Calls ``work``, which must not raise, on a thread.

        Raises RuntimeError at the system's limit of threads.
        """
        given: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        with self._lock:
            if self._idle:
                self._idle.pop().put(work)
                return
            thread = threading.Thread(target=self._run, args=(given,), name=self._name, daemon=True)
            self._threads.add(thread)
        given.put(work)
        try:
            thread.start()
        except RuntimeError:
            with self._lock:
                self._threads.discard(thread)
            raise

    def __len__(self) -> int:
        """Returns the number of threads, busy or idle."""
        return len(self._threads)

    def stop(self, deadline_s: float) -> None:
        """Ends idle threads at once and busy ones after their work.

        Waits for them until ``deadline_s`` (monotonic clock).
        """
        with self._lock:
            self._stopped = True
            while self._idle:
                self._idle.pop().put(None)
            threads = list(self._threads)
        for thread in threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def _run(self, given: queue.SimpleQueue[Work | None]) -> None:
        work = given.get()
        try:
            while work is not None:
                work()
                work = None  # what it refers to is not kept while this thread is idle
                work = self._next(given)
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _next(self, given: queue.SimpleQueue[Work | None]) -> Work | None:
        """Waits for more work; returns None once this thread must end."""
        with self._lock:
            if self._stopped:
                return None
            self._idle.append(given)
        try:
            return given.get(timeout=self._kept_s)
        except queue.Empty:
            with self._lock:
                if given in self._idle:
                    self._idle.remove(given)
                    return None
        return given.get()
