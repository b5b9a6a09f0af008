"""RemoteValue, the future that ``schedule`` returns, and structures that contain such values.

Knows nothing of trainers. Invariant: a value is set once, and never changes afterwards.
"""

from __future__ import annotations

import copy
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from dataservice.runtime.arguments import limit_s
from dataservice.runtime.refused_timeouts import refuse_timeout_s
from dataservice.runtime.threads import wait_until
from pstrain.errors import CancelledError, DeadlineExceededError, InvalidArgumentError

Reference = tuple[Any, ...]


class Owner(Protocol):
    """What a value needs of the scheduler that runs its closure."""

    def awaited(self, closure: int, *, blocks: bool) -> None:
        """Notes that a value is asked for before it is set; ``blocks``: the thread will wait."""

    def cancel(self, closure: int, timeout_s: float | None) -> None:
        """Cancels the closure unless it has begun to commit; blocks until that is known."""

    def describe(self, closure: int) -> str:
        """Returns the closure's function, its number, and where it is."""


class RemoteValue:
    """The result of a scheduled function, once there is one. Thread-safe."""

    __slots__ = ("_changed", "_error", "_is_ready", "_on_end", "_owner", "_value", "closure")

    def __init__(self, closure: int, changed: threading.Condition, owner: Owner) -> None:
        self.closure = closure
        self._owner = owner
        self._changed = changed
        self._is_ready = False
        self._value: Any = None
        self._error: Exception | None = None
        self._on_end: Callable[[RemoteValue], None] | None = None

    @refuse_timeout_s("fetch")
    def fetch(self, timeout: float | None = None) -> Any:
        """Blocks until the closure has ended; returns its value (NumPy, plain Python), or raises.

        ``timeout`` in seconds; after it raises DeadlineExceededError (a TimeoutError), which says
        where the closure is. None waits until the closure ends, as every closure does: with its own
        result or error, or when its coordinator finds no trainer or is closed.
        """
        return self._fetch_within(limit_s(timeout), timeout)

    def _fetch_within(self, left_s: float | None, timeout: float | None) -> Any:
        """As :meth:`fetch`, but waits ``left_s``; the error names ``timeout``."""
        self._announce_wait(blocks=True)
        with self._changed:
            if not wait_until(self._wait_ready, left_s):
                raise DeadlineExceededError(
                    f"gave up waiting for {self._owner.describe(self.closure)}, after {timeout} s"
                )
        if self._error is not None:
            # Each raise adds to the traceback of the same object: drop what was added before.
            raise self._error.with_traceback(None)
        return self._value

    def _wait_ready(self, timeout_s: float) -> bool:
        return self._changed.wait_for(lambda: self._is_ready, timeout_s)

    @refuse_timeout_s("get")
    def get(self, timeout: float | None = None) -> Any:
        """The same as :meth:`fetch`."""
        return self.fetch(timeout)

    @refuse_timeout_s("cancel")
    def cancel(self, timeout: float | None = None) -> bool:
        """Cancels the closure; True if nothing of it is or will ever be applied.

        Its value is then CancelledError. A closure that waits never runs. One that runs is refused
        when it comes to commit: the work until then is wasted, and elements that it takes are used
        up, as by a closure that fails. False if the closure has ended, has begun to commit, or has
        committed a part of its changes. Other closures and ``join`` are not affected.

        Blocks until the trainer that runs the closure has answered or is lost, however long the
        function itself takes. After ``timeout`` seconds raises DeadlineExceededError; the closure
        may still be cancelled later.
        """
        left_s = limit_s(timeout)
        if not self._is_ready:
            self._owner.cancel(self.closure, left_s)
        return self.cancelled()

    def cancelled(self) -> bool:
        """True if :meth:`fetch` raises CancelledError, whatever the cause."""
        return self._is_ready and isinstance(self._error, CancelledError)

    def is_ready(self) -> bool:
        """True once :meth:`fetch` would not block."""
        self._announce_wait(blocks=False)
        return self._is_ready

    @property
    def has_ended(self) -> bool:
        """True once there is a value or an error; unlike :meth:`is_ready`, seals no round."""
        return self._is_ready

    @property
    def has_value(self) -> bool:
        """True once there is a value and no error; seals no round."""
        return self._is_ready and self._error is None

    @property
    def error(self) -> Exception | None:
        """The error that :meth:`fetch` raises, if the closure has ended without a value."""
        return self._error

    def peek(self) -> Any:
        """Returns the value if :attr:`has_value`, else None."""
        return self._value

    def _announce_wait(self, *, blocks: bool) -> None:
        if not self._is_ready:
            self._owner.awaited(self.closure, blocks=blocks)

    def _set(self, value: Any, error: Exception | None) -> None:
        """Sets value or error; called by the scheduler with its lock held."""
        self._value, self._error, self._is_ready = value, error, True
        if self._on_end is not None:
            self._on_end(self)

    def __repr__(self) -> str:
        state = "waiting" if not self._is_ready else "failed" if self._error else "ready"
        return f"<RemoteValue closure={self.closure} {'cancelled' if self.cancelled() else state}>"


class _NoScheduler:
    """The owner of values that have an end from the beginning, which is never asked."""

    def awaited(self, closure: int, *, blocks: bool) -> None: ...

    def cancel(self, closure: int, timeout_s: float | None) -> None: ...

    def describe(self, closure: int) -> str:
        return f"closure {closure}"


def ended_value(closure: int, value: Any, error: Exception | None) -> RemoteValue:
    """Returns the value of a closure that has ended already, in this process."""
    ended = RemoteValue(closure, threading.Condition(), _NoScheduler())
    ended._set(value, error)
    return ended


class CompletionQueue:
    """A queue of the added values that have ended, without polling those that have not."""

    def __init__(self) -> None:
        self._ended: deque[RemoteValue] = deque()

    def __bool__(self) -> bool:
        """True if there is a value to take."""
        return bool(self._ended)

    def add(self, value: RemoteValue) -> None:
        """Adds a value, to be taken once it has ended."""
        with value._changed:
            if value._is_ready:
                self._ended.append(value)
            else:
                value._on_end = self._ended.append

    def take(self) -> Iterator[RemoteValue]:
        """Yields each value that has ended and was not taken yet, the first to end first."""
        while self._ended:
            yield self._ended.popleft()

    def wait(self, oldest: RemoteValue, is_enough: Callable[[], bool]) -> None:
        """Blocks until there is a value to take, or ``is_enough``, for example as a trainer joins.

        ``oldest``: the oldest of the values that were added and have not ended.
        """
        oldest._announce_wait(blocks=True)
        with oldest._changed:
            oldest._changed.wait_for(lambda: self._ended or is_enough())

    def wait_all(self, values: Sequence[RemoteValue], timeout_s: float) -> bool:
        """Blocks, at most ``timeout_s``, until all ``values`` have ended; True if they have."""
        for value in values:
            value._announce_wait(blocks=True)
        if not values:
            return True
        changed = values[0]._changed
        with changed:
            return bool(changed.wait_for(lambda: all(v._is_ready for v in values), timeout_s))


class InputValues:
    """The RemoteValues among the arguments of one closure, in the order in which they are met.

    Values that have not ended must be of ``owner``. ``other`` returns references to other objects.
    """

    __slots__ = ("_other", "_owner", "_places", "_values")

    def __init__(self, owner: Owner, other: Callable[[object], Reference | None]) -> None:
        self._owner, self._other = owner, other
        self._values: list[RemoteValue] = []
        self._places: dict[int, int] = {}

    @property
    def values(self) -> tuple[RemoteValue, ...]:
        return tuple(self._values)

    def reference(self, value: object) -> Reference | None:
        """Returns the reference that is pickled in place of ``value``; None to pickle it itself."""
        if not isinstance(value, RemoteValue):
            return self._other(value)
        if not value.has_ended and value._owner is not self._owner:
            raise InvalidArgumentError(
                f"closure {value.closure}, whose value is an argument, is of another coordinator "
                "and has not ended: fetch() its value first"
            )
        place = self._places.setdefault(id(value), len(self._values))
        if place == len(self._values):
            self._values.append(value)
        return ("input", place)


def fetched(structure: Any, timeout: float | None = None) -> Any:
    """Returns lists, tuples and dicts with each RemoteValue replaced by its value. Blocks.

    Each container keeps its class, for example OrderedDict. DeadlineExceededError after ``timeout``
    seconds in all.
    """
    left_s = limit_s(timeout)
    deadline_s = None if left_s is None else time.monotonic() + left_s

    def fetch(value: RemoteValue) -> Any:
        left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
        return value._fetch_within(left_s, timeout)

    return _replaced(structure, fetch)


def _replaced(structure: Any, fetch: Callable[[RemoteValue], Any]) -> Any:
    if isinstance(structure, RemoteValue):
        return fetch(structure)
    if isinstance(structure, dict):
        values = copy.copy(structure)
        for key, value in structure.items():
            values[key] = _replaced(value, fetch)
        return values
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return type(structure)(*(_replaced(item, fetch) for item in structure))
    if isinstance(structure, list | tuple):
        return type(structure)(_replaced(item, fetch) for item in structure)
    return structure
