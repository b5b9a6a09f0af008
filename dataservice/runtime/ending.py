"""The end of a program: servers and readers that it left running end while threads still can.

Python shuts thread pools down, gRPC's among them, before it runs what `atexit` was given, and from
then on a server in this process answers nobody, so that a reader or a worker beside it would wait
for it. Knows nothing of what ends. Invariant: being listed here keeps nothing alive, and what a
forked child inherits is left to its parent.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

Owner = TypeVar("Owner")

_lock = threading.Lock()
_running: weakref.WeakKeyDictionary[Any, Callable[[Any], object]] = weakref.WeakKeyDictionary()
_is_registered = False


def end_with_program(owner: Owner, end: Callable[[Owner], object]) -> None:
    """`end(owner)` is called when the program ends, the newest owner first, if it still lives.

    `end` is bounded, and idempotent: it may have been called before.
    """
    global _is_registered
    with _lock:
        _running[owner] = end
        if not _is_registered:
            # The hook that thread pools use themselves; the last one given comes first.
            getattr(threading, "_register_atexit", atexit.register)(end_all)
            _is_registered = True


def end_all() -> None:
    """Ends everything that is listed, and forgets it."""
    for owner, end in reversed(list(_running.items())):
        _running.pop(owner, None)
        try:
            end(owner)
        except Exception:
            logger.exception("%r could not be ended with the program", owner)


def _forget() -> None:
    global _lock
    _lock = threading.Lock()
    _running.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
