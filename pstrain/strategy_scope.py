"""Which strategy's scope this thread is in, and the scopes that strategies give out.

Knows no kind of strategy. Invariant: a scope reaches the thread that entered it only, and no
thread is inside of two strategies' scopes.
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
    """Whether this thread is inside a strategy's scope, or runs a scheduled function."""
    return _entered.get() is not None


def get_strategy() -> Any:
    """The strategy whose scope this thread is in, or that of the scheduled function that it runs;
    FailedPreconditionError outside of any."""
    strategy = _entered.get()
    if strategy is None:
        raise FailedPreconditionError("no strategy: enter one with `with strategy.scope():`")
    return strategy


@contextmanager
def entered_scope(strategy: Any) -> Iterator[None]:
    """This thread is inside the strategy's scope; FailedPreconditionError inside of another's."""
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
    """What ``strategy.scope()`` gives: may be entered again, also inside itself, by any thread."""

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
