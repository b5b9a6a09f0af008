"""Holds Ctrl-C back while rows are being handed over, so that an interrupt loses none.

Knows the signal and its default handler, but no rows. Invariant: an interrupt is raised as
KeyboardInterrupt at the next place that lets it through, or when its block ends. A second interrupt
before that is raised at once, wherever the program is, so that Ctrl-C can end any wait.
"""

from __future__ import annotations

# Not `signal`, whose functions look names up in enums, which takes eight times as long and is paid
# for every element.
import _signal
import threading
from types import FrameType
from typing import Final

# The interval at which a wait that an interrupt may end checks for one.
_POLL_S: Final = 0.1


class HeldInterrupts:
    """A context of the main thread in which SIGINT is held back. Reusable, but not reentrant.

    Has no effect in other threads, nor in programs that handle SIGINT by themselves.
    """

    def __init__(self) -> None:
        self._holds = False
        self._came = False
        self._was_let_through = False

    def __enter__(self) -> HeldInterrupts:
        self._came = self._was_let_through = False
        self._holds = can_hold()
        if self._holds:
            _signal.signal(_signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *_exc: object) -> None:
        if not self._holds:
            return
        if _signal.getsignal(_signal.SIGINT) == self._on_signal:
            _signal.signal(_signal.SIGINT, _signal.default_int_handler)
        self._holds = False
        if self._came:
            raise KeyboardInterrupt

    def let_through(self) -> None:
        """Raises an interrupt that was held back; for places where no rows can be lost."""
        if self.is_due():
            self._came = False
            self._was_let_through = True
            raise KeyboardInterrupt

    def is_due(self) -> bool:
        """True if `let_through` would raise."""
        return self._came and threading.current_thread() is threading.main_thread()

    def poll_s(self, otherwise_s: float) -> float:
        """Returns how long a wait may last before `let_through` must be called again."""
        return min(_POLL_S, otherwise_s) if self._holds else otherwise_s

    def raised(self, error: BaseException) -> bool:
        """True if `error` is an interrupt raised by `let_through`, where no rows could be lost."""
        return self._was_let_through and isinstance(error, KeyboardInterrupt)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        # `_holds` is False if other code saved this handler and restored it after the block ended.
        if self._holds and not self._came:
            self._came = True
            return
        self._was_let_through = False
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)
        raise KeyboardInterrupt


NO_INTERRUPTS: Final = HeldInterrupts()


def can_hold() -> bool:
    """True in the main thread while Python's own handler would raise KeyboardInterrupt."""
    return (
        threading.current_thread() is threading.main_thread()
        and _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler
    )
