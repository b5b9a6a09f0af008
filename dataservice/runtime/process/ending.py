"""The end of a program: ends servers and readers that still run, while threads still work.

Python shuts thread pools down, including gRPC's, before it runs `atexit` callbacks. From then on a
server in this process answers no calls, and a reader or a worker in the same process would wait for
it. Knows nothing of what it ends. Invariant: an object that is listed here is not kept alive by
that, and a forked child ends none of its parent's objects.
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
    """Has `end(owner)` called when the program ends, if the owner still exists; newest owner first.

    `end` must be idempotent, since it may have been called before, and bounded in time, unless
    something would be lost, as a save that is under way.
    """
    global _is_registered
    with _lock:
        _running[owner] = end
        if not _is_registered:
            # The hook that thread pools use themselves; the callback registered last runs first.
            getattr(threading, "_register_atexit", atexit.register)(end_all)
            _is_registered = True


def end_all() -> None:
    """Ends every listed object and removes it from the list; an interrupt gives up only one."""
    interrupt: KeyboardInterrupt | None = None
    while newest := _take_newest():
        owner, end = newest
        try:
            end(owner)
        except Exception:
            logger.exception("%r could not be ended with the program", owner)
        except KeyboardInterrupt as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt


def _take_newest() -> tuple[Any, Callable[[Any], object]] | None:
    """Removes and returns the newest object, which another thread may have listed just now."""
    with _lock:
        try:
            return _running.popitem()
        except KeyError:
            return None


def _forget() -> None:
    global _lock
    _lock = threading.Lock()
    _running.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
