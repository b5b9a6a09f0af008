"""The outcome of a worker's thread: the error that its readers are told, if it failed.

Knows nothing of the work. Invariant: an error that is kept for readers keeps nothing else alive.
The local variables of the calls that it left are cleared, so that the rows of a closed stream are
freed at once, and not only when the garbage collector runs.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dataservice.errors import UserFunctionError


def outcome_of(work: Callable[[], None]) -> Exception | None:
    """Runs `work` and returns the error that it failed with; None if it succeeded.

    The error's traceback does not contain the caller's frame.
    """
    try:
        work()
    except BaseException as error:
        return reportable(error)
    return None


@contextmanager
def clearing_locals() -> Iterator[None]:
    """Clears the local variables of the calls that an error leaves on its way out of the block.

    For blocks that raise an error which somebody keeps, as its traceback would keep them alive.
    """
    try:
        yield
    except BaseException as error:
        _forget_locals(error)
        raise


def reportable(error: BaseException) -> Exception:
    """Returns the error as one that can be sent to a reader, and clears the frames that it left.

    A BaseException, such as that of `sys.exit()` in a user function, becomes a UserFunctionError:
    otherwise it would end a thread here without the reader learning of it.
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
