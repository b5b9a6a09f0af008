"""What ``schedule`` returns: a value that a trainer will have computed.

Knows nothing of trainers. Invariant: it is set once; what it holds never changes afterwards.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from pstrain.errors import DeadlineExceededError, InvalidArgumentError


class RemoteValue:
    """The result of a scheduled function, once there is one. Thread-safe."""

    __slots__ = ("_changed", "_error", "_is_ready", "_on_wait", "_value", "closure")

    def __init__(
        self,
        closure: int,
        changed: threading.Condition,
        on_wait: Callable[[int], None] | None = None,
    ) -> None:
        """``on_wait`` is told of the closure when its value is asked for before it is there."""
        self.closure = closure
        self._on_wait = on_wait
        self._changed = changed
        self._is_ready = False
        self._value: Any = None
        self._error: Exception | None = None

    def fetch(self, timeout: float | None = None) -> Any:
        """Blocks until the function has run; its value (NumPy, plain Python), or its error.

        ``timeout`` in seconds; None waits until the closure ends, as each closure does: by its
        own result or error, or when its coordinator finds no trainer or is closed.
        """
        self._tell()
        with self._changed:
            if not self._changed.wait_for(lambda: self._is_ready, timeout):
                raise DeadlineExceededError(
                    f"closure {self.closure} has not ended within {timeout} s"
                )
        if self._error is not None:
            raise self._error
        return self._value

    def get(self, timeout: float | None = None) -> Any:
        """The same as :meth:`fetch`."""
        return self.fetch(timeout)

    def is_ready(self) -> bool:
        """True once :meth:`fetch` would not block."""
        self._tell()
        return self._is_ready

    @property
    def has_value(self) -> bool:
        """True once there is a value and no error; asking hurries nothing."""
        return self._is_ready and self._error is None

    def peek(self) -> Any:
        """The value where :attr:`has_value`, else None."""
        return self._value

    def _tell(self) -> None:
        if self._on_wait is not None and not self._is_ready:
            self._on_wait(self.closure)

    def _set(self, value: Any, error: Exception | None) -> None:
        """Called by the scheduler with its lock held."""
        self._value, self._error, self._is_ready = value, error, True

    def __repr__(self) -> str:
        state = "waiting" if not self._is_ready else "failed" if self._error else "ready"
        return f"<RemoteValue closure={self.closure} {state}>"


class RemoteValueFound(InvalidArgumentError):
    """A RemoteValue stands where only values can be sent."""

    def __init__(
        self,
        message: str = "a RemoteValue travels as an argument of schedule, by itself or in lists, "
        "tuples and dicts, not in other objects or in what a function captures: fetch() it first",
    ) -> None:
        super().__init__(message)


def values_in(structure: Any) -> Any:
    """Lists, tuples and dicts with each RemoteValue in them replaced by its value. Blocks."""
    if isinstance(structure, RemoteValue):
        return structure.fetch()
    if isinstance(structure, dict):
        return {key: values_in(value) for key, value in structure.items()}
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return type(structure)(*(values_in(item) for item in structure))
    if isinstance(structure, list | tuple):
        return type(structure)(values_in(item) for item in structure)
    return structure
