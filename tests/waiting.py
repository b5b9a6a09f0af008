"""Waits on conditions, with deadlines, for tests of processes and threads."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 120.0) -> None:
    """Waits for a condition; fails the test, naming ``what``, if it is not met in time."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"waited {timeout_s} s for {what}"
        time.sleep(0.005)


def is_running(pid: int) -> bool:
    """True if the process exists and is not a zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
