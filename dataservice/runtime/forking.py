"""What a forked child has of its parent's connections, servers and readers: nothing to use or end.

Threads do not come along to a child, so calls of gRPC and Flight wait there for ever, and objects
of theirs that are collected there, at its end at the latest, wait too or crash. So in a child they
are never collected, and what was to be done when something is forgotten is not done. Knows nothing
of calls. Invariants: whoever passes `check_not_forked` is in the process that used gRPC first, or
in one that was started anew; the parent notices nothing of a fork.
"""

from __future__ import annotations

import os
import weakref
from typing import Any, TypeVar

from dataservice.errors import FailedPreconditionError

_REMEDY = (
    "start processes by 'spawn', for example DataLoader(..., multiprocessing_context='spawn'), and "
    "make it there"
)
_PACKAGES = ("dataservice", "pstrain", "pyarrow")

Thing = TypeVar("Thing")

_used_in_process: int | None = None
_kept: weakref.WeakSet[Any] = weakref.WeakSet()
_counted: list[list[Any]] = []


class Origin:
    """Notes the process that it is made in, for an object that a child shall leave alone."""

    __slots__ = ("_pid",)

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def is_here(self) -> bool:
        return self._pid == os.getpid()

    def check(self, what: str) -> None:
        """FailedPreconditionError, naming ``what``, in a child of that process."""
        if not self.is_here:
            raise FailedPreconditionError(
                f"{what} was made in process {self._pid}, from which this one ({os.getpid()}) "
                f"was forked, and works only there; {_REMEDY}"
            )


def check_not_forked(user: str) -> None:
    """To be called before gRPC is used; FailedPreconditionError in such a child."""
    global _used_in_process
    if _used_in_process is None:
        _used_in_process = os.getpid()
    if _used_in_process != os.getpid():
        raise FailedPreconditionError(
            f"{user} cannot be made in this process, which was forked from one (pid "
            f"{_used_in_process}) that used the data service already; {_REMEDY}"
        )


def left_to_parent(thing: Thing) -> Thing:
    """``thing``, which lives in threads: in a child that is forked it is never collected."""
    _kept.add(thing)
    return thing


def _hold() -> None:
    """Counts a reference to each that nothing at the end of a child takes back."""
    import ctypes

    held = list(_kept)
    for thing in held:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
    _counted.append(held)


def _release() -> None:
    import ctypes

    for thing in _counted.pop() if _counted else ():
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(thing))


def _leave() -> None:
    """In the child: nothing is done any more when something of the parent's is forgotten."""
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        alive = finalizer.peek()
        if alive is not None and type(alive[0]).__module__.partition(".")[0] in _PACKAGES:
            finalizer.detach()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_leave)
