"""Protects a forked child from its parent's connections, servers and readers.

A fork does not copy threads. So in the child, calls of gRPC and Flight wait for ever, and the
destructors of their objects, which run at the end of the child at the latest, wait or crash too.
Therefore such objects are never destroyed in a child, and finalizers of the parent's objects do not
run there. Knows nothing of calls. Invariants: code that passes `check_not_forked` runs in the
process that used gRPC first, or in a process that was not forked from it; a fork does not affect
the parent.
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
    """The process in which an object was made, for objects that a forked child must not use."""

    __slots__ = ("_pid",)

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def is_here(self) -> bool:
        return self._pid == os.getpid()

    def check(self, what: str) -> None:
        """Raises FailedPreconditionError, which names ``what``, in a child of that process."""
        if not self.is_here:
            raise FailedPreconditionError(
                f"{what} was made in process {self._pid}, from which this one ({os.getpid()}) "
                f"was forked, and works only there; {_REMEDY}"
            )


def check_not_forked(user: str) -> None:
    """Raises FailedPreconditionError in a child forked after gRPC was used; call it before gRPC."""
    global _used_in_process
    if _used_in_process is None:
        _used_in_process = os.getpid()
    if _used_in_process != os.getpid():
        raise FailedPreconditionError(
            f"{user} cannot be made in this process, which was forked from one (pid "
            f"{_used_in_process}) that used the data service already; {_REMEDY}"
        )


def left_to_parent(thing: Thing) -> Thing:
    """Returns ``thing``, which depends on threads, and exempts it from destruction in children."""
    _kept.add(thing)
    return thing


def _add_references() -> None:
    """Adds a reference to each kept object, before a fork; in the child it is never taken back."""
    import ctypes

    held = list(_kept)
    for thing in held:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
    _counted.append(held)


def _drop_references() -> None:
    import ctypes

    for thing in _counted.pop() if _counted else ():
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(thing))


def _detach_finalizers() -> None:
    """Detaches, in the child, the finalizers of this project's and Arrow's objects."""
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        alive = finalizer.peek()
        if alive is not None and type(alive[0]).__module__.partition(".")[0] in _PACKAGES:
            finalizer.detach()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_add_references, after_in_parent=_drop_references, after_in_child=_detach_finalizers
    )
