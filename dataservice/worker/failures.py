"""The outcome of a worker's thread: the error that its readers are told, if it failed.

Knows nothing of the work. Invariant: an error that is kept for readers keeps nothing else: the
calls that it left give up what they held, so that the rows which a closed stream had under way are
freed with it, and not whenever the garbage collector comes by.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dataservice.errors import UserFunctionError


def outcome_of(work: Callable[[], None]) -> Exception | None:
    """Does the work; what it failed with, None where it did not.

    The caller's own frame is no part of the error's traceback.
    """
    try:
        work()
    except BaseException as error:
        return reportable(error)
    return None


@contextmanager
def clearing_locals() -> Iterator[None]:
    """Around what raises an error that is kept: the calls that it leaves are no part of that."""
    try:
        yield
    except BaseException as error:
        _forget_locals(error)
        raise


def reportable(error: BaseException) -> Exception:
    """What a reader can be told; `sys.exit()` in its pipeline must not just end a thread here.

    Local variables of the calls that the error has left are cleared.
    """
    _forget_locals(error)
    if isinstance(error, Exception):
        return error
    failure = UserFunctionError(
        f"the pipeline was left by {type(error).__name__}: {error}; a function of a dataset must "
        "return or raise an Exception"
    )
    failure.__cause__ = error
    return failure


def _forget_locals(error: BaseException) -> None:
    chain: set[BaseException] = set()
    following: BaseException | None = error
    while following is not None and following not in chain:
        chain.add(following)
        traceback.clear_frames(following.__traceback__)
        following = following.__cause__ or following.__context__
