"""Ctrl-C while rows are in hand: held back until nothing can be lost by it.

Knows the signal and its default handler, nothing of rows. Invariant: an interrupt that came is
raised as KeyboardInterrupt, at a place that asked for it or when its block ends, unless a second
one came before: that one is raised where the program is, so that Ctrl-C ends whatever it meets.
"""

from __future__ import annotations

# Not `signal`, whose functions look names up in enums: eight times as long, for every element.
import _signal
import threading
from types import FrameType
from typing import Final

__all__ = ["NO_INTERRUPTS", "HeldInterrupts", "can_hold"]

# Waits that an interrupt shall end look for one as often.
_POLL_S: Final = 0.1


class HeldInterrupts:
    """A block of the main thread in which SIGINT waits. Enter it again and again, one at a time.

    Other threads, and programs that handle SIGINT by themselves, are left as they are.
    """

    def __init__(self) -> None:
        self._holds = False
        self._came = False
        self._was_let_through = False

    def __enter__(self) -> HeldInterrupts:
        self._came = self._was_let_through = False
        self._holds = can_hold()
        if self._holds:
            _signal.signal(_signal.SIGINT, self._note)
        return self

    def __exit__(self, *_exc: object) -> None:
        if not self._holds:
            return
        if _signal.getsignal(_signal.SIGINT) == self._note:
            _signal.signal(_signal.SIGINT, _signal.default_int_handler)
        self._holds = False
        if self._came:
            raise KeyboardInterrupt

    def let_through(self) -> None:
        """Raises an interrupt that came: for places where nothing is in hand."""
        if self.is_due():
            self._came = False
            self._was_let_through = True
            raise KeyboardInterrupt

    def is_due(self) -> bool:
        """Whether `let_through` would raise, here and now."""
        return self._came and threading.current_thread() is threading.main_thread()

    def poll_s(self, otherwise_s: float) -> float:
        """How long a wait may last until `let_through` is called again."""
        return min(_POLL_S, otherwise_s) if self._holds else otherwise_s

    def let(self, error: BaseException) -> bool:
        """Whether that error is an interrupt which came through where nothing was in hand."""
        return self._was_let_through and isinstance(error, KeyboardInterrupt)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        # Not in the block: somebody kept this handler, and put it back after the block had ended.
        if self._holds and not self._came:
            self._came = True
            return
        self._was_let_through = False
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)
        raise KeyboardInterrupt


NO_INTERRUPTS: Final = HeldInterrupts()


def can_hold() -> bool:
    """Whether an interrupt would be raised here, in the way of Python."""
    return (
        threading.current_thread() is threading.main_thread()
        and _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler
    )
