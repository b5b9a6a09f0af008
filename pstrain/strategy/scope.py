"""Strategy scopes, and which strategy's scope the current thread is in.

Knows no kind of strategy. Invariant: a scope affects only the thread that entered it, and no
thread is inside the scopes of two strategies at once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ContextDecorator, ExitStack, contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Generic, TypeVar

from pstrain.errors import FailedPreconditionError
from pstrain.variables.scope import Placement, placement_scope

Strategy = TypeVar("Strategy")

_entered: ContextVar[Any] = ContextVar("strategy", default=None)


def has_strategy() -> bool:
    """True if this thread is inside a strategy's scope or runs a scheduled function."""
    return _entered.get() is not None


def entered_strategy() -> Any:
    """Returns the strategy whose scope, or whose scheduled function, this thread is in, or None."""
    return _entered.get()


@contextmanager
def entered_scope(strategy: Any) -> Iterator[None]:
    """Puts this thread inside the strategy's scope.

    FailedPreconditionError if the thread is inside another strategy's scope.
    """
    if _entered.get() not in (None, strategy):
        raise FailedPreconditionError(
            "another strategy's scope is entered; leave it before entering this one"
        )
    reset = _entered.set(strategy)
    try:
        yield
    finally:
        _entered.reset(reset)


class Scope(ContextDecorator, Generic[Strategy]):
    """The context manager of ``strategy.scope()``; reentrant, and usable by any thread."""

    def __init__(self, strategy: Strategy, placement: Placement) -> None:
        self._strategy, self._placement = strategy, placement
        self._open = threading.local()

    def __enter__(self) -> Strategy:
        with ExitStack() as stack:
            stack.enter_context(entered_scope(self._strategy))
            stack.enter_context(placement_scope(self._placement))
            self._open.__dict__.setdefault("stacks", []).append(stack.pop_all())
        return self._strategy

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._open.stacks.pop().__exit__(kind, error, traceback)
