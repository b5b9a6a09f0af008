"""What ``schedule`` returns: a value that a trainer will have computed.

Knows nothing of trainers. Invariant: it is set once; what it holds never changes afterwards.
"""

from __future__ import annotations

import copy
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from dataservice.runtime.arguments import limit_s
from pstrain.errors import CancelledError, DeadlineExceededError, InvalidArgumentError

Reference = tuple[Any, ...]


class Owner(Protocol):
    """Who has the closure run that computes a value."""

    def awaited(self, closure: int, *, blocks: bool) -> None:
        """Its value is asked for before it is there; ``blocks``: the thread waits for it."""

    def cancel(self, closure: int, timeout_s: float | None) -> None:
        """Ends it unless it has begun to commit; blocks until that is known."""

    def describe(self, closure: int) -> str:
        """Its function, its number, and where it is."""


class RemoteValue:
    """The result of a scheduled function, once there is one. Thread-safe."""

    __slots__ = ("_changed", "_error", "_is_ready", "_owner", "_told", "_value", "closure")

    def __init__(self, closure: int, changed: threading.Condition, owner: Owner) -> None:
        self.closure = closure
        self._owner = owner
        self._changed = changed
        self._is_ready = False
        self._value: Any = None
        self._error: Exception | None = None
        self._told: Callable[[RemoteValue], None] | None = None

    def fetch(self, timeout: float | None = None) -> Any:
        """Blocks until the function has run; its value (NumPy, plain Python), or its error.

        ``timeout`` in seconds; None waits until the closure ends, as each closure does: by its
        own result or error, or when its coordinator finds no trainer or is closed. After it:
        DeadlineExceededError (a TimeoutError), which says where the closure is.
        """
        return self._fetch_within(limit_s(timeout), timeout)

    def _fetch_within(self, left_s: float | None, timeout: float | None) -> Any:
        """Of ``timeout``, which the error names, so much is left."""
        self._tell(blocks=True)
        with self._changed:
            if not self._changed.wait_for(lambda: self._is_ready, left_s):
                raise DeadlineExceededError(
                    f"gave up waiting for {self._owner.describe(self.closure)}, after {timeout} s"
                )
        if self._error is not None:
            # Without what was added each time that it was raised before.
            raise self._error.with_traceback(None)
        return self._value

    def get(self, timeout: float | None = None) -> Any:
        """The same as :meth:`fetch`."""
        return self.fetch(timeout)

    def cancel(self, timeout: float | None = None) -> bool:
        """True if nothing of the closure is or will ever be applied: its value is CancelledError.

        One that waits never runs. One that runs is refused when it comes to commit: what it does
        until then is in vain, and elements that it takes are used up, as by one that fails. False
        where it has ended, has begun to commit, or has committed a part of what it does. Other
        closures, and ``join``, do not mind.

        Blocks until the trainer that runs it has answered or is lost, which takes no longer for a
        function that does; after ``timeout`` seconds DeadlineExceededError, and it may yet be
        cancelled.
        """
        left_s = limit_s(timeout)
        if not self._is_ready:
            self._owner.cancel(self.closure, left_s)
        return self.cancelled()

    def cancelled(self) -> bool:
        """True if :meth:`fetch` raises CancelledError, whoever was the cause."""
        return self._is_ready and isinstance(self._error, CancelledError)

    def is_ready(self) -> bool:
        """True once :meth:`fetch` would not block."""
        self._tell(blocks=False)
        return self._is_ready

    @property
    def has_ended(self) -> bool:
        """True once there is a value or an error; asking hurries nothing."""
        return self._is_ready

    @property
    def has_value(self) -> bool:
        """True once there is a value and no error; asking hurries nothing."""
        return self._is_ready and self._error is None

    @property
    def error(self) -> Exception | None:
        """What :meth:`fetch` raises, if it has ended without a value."""
        return self._error

    def peek(self) -> Any:
        """The value where :attr:`has_value`, else None."""
        return self._value

    def _tell(self, *, blocks: bool) -> None:
        if not self._is_ready:
            self._owner.awaited(self.closure, blocks=blocks)

    def _set(self, value: Any, error: Exception | None) -> None:
        """Called by the scheduler with its lock held."""
        self._value, self._error, self._is_ready = value, error, True
        if self._told is not None:
            self._told(self)

    def __repr__(self) -> str:
        state = "waiting" if not self._is_ready else "failed" if self._error else "ready"
        return f"<RemoteValue closure={self.closure} {'cancelled' if self.cancelled() else state}>"


class Ends:
    """Of the values that are added, those that have ended; nobody looks at the others."""

    def __init__(self) -> None:
        self._ended: deque[RemoteValue] = deque()

    def __bool__(self) -> bool:
        """Whether there is one to take."""
        return bool(self._ended)

    def add(self, value: RemoteValue) -> None:
        """It is taken once, when it has ended."""
        with value._changed:
            if value._is_ready:
                self._ended.append(value)
            else:
                value._told = self._ended.append

    def take(self) -> Iterator[RemoteValue]:
        """Each that has ended since it was asked last, the first to end first."""
        while self._ended:
            yield self._ended.popleft()

    def wait(self, oldest: RemoteValue, is_enough: Callable[[], bool]) -> None:
        """Blocks until there is one to take, or ``is_enough``, which may be when a trainer joins.

        ``oldest``: of those that were added and have not ended.
        """
        oldest._tell(blocks=True)
        with oldest._changed:
            oldest._changed.wait_for(lambda: self._ended or is_enough())

    def wait_all(self, values: Sequence[RemoteValue], timeout_s: float) -> bool:
        """Blocks until all of these have ended, at most for so long; whether they have."""
        for value in values:
            value._tell(blocks=True)
        if not values:
            return True
        changed = values[0]._changed
        with changed:
            return bool(changed.wait_for(lambda: all(v._is_ready for v in values), timeout_s))


class RemoteValueFound(InvalidArgumentError):
    """A RemoteValue stands where only values can be sent."""

    def __init__(
        self,
        message: str = "a RemoteValue travels among the arguments of schedule, not in what a "
        "function captures or a dataset is made of: pass it as an argument, or fetch() it first",
    ) -> None:
        super().__init__(message)


class InputValues:
    """RemoteValues among the arguments of one closure, as they are met in them.

    Those that have not ended must be of ``owner``. ``other`` says what else is referred to.
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
        """What stands for an object where it is not pickled itself."""
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
    """As `values_in`, after ``timeout`` seconds in all DeadlineExceededError."""
    left_s = limit_s(timeout)
    deadline_s = None if left_s is None else time.monotonic() + left_s

    def fetch(value: RemoteValue) -> Any:
        left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
        return value._fetch_within(left_s, timeout)

    return values_in(structure, fetch)


def values_in(structure: Any, fetch: Callable[[RemoteValue], Any]) -> Any:
    """Lists, tuples and dicts with each RemoteValue in them replaced by its value. Blocks.

    Each stays of its class, as an OrderedDict does.
    """
    if isinstance(structure, RemoteValue):
        return fetch(structure)
    if isinstance(structure, dict):
        values = copy.copy(structure)
        for key, value in structure.items():
            values[key] = values_in(value, fetch)
        return values
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return type(structure)(*(values_in(item, fetch) for item in structure))
    if isinstance(structure, list | tuple):
        return type(structure)(values_in(item, fetch) for item in structure)
    return structure
