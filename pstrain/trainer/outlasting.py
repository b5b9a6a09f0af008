"""Consistent reads across a restore: from before it or from after it, never from between.

While a lost parameter server is replaced, servers hold initial values for a while, or nothing.
Knows nothing of who restores, or why: the parameters say when that is over. Invariant: what is
returned was read in one session, with no restore under way when it began.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from pstrain.errors import DataServiceError
from pstrain.variables.parameters import current_staging

Given = ParamSpec("Given")
Result = TypeVar("Result")

Outlast = Callable[[Exception | None], bool]
"""Waits until no restore is under way, or until what an error tells of is restored: whether it is.

Raises DeadlineExceededError where that takes too long.
"""


def never(_error: Exception | None) -> bool:
    """An `Outlast` where nobody restores."""
    return False


class Restored(Protocol):
    """Parameters whose session changes with a restore."""

    session: str
    outlast: Outlast


Self = TypeVar("Self", bound=Restored)


def outlasting(
    read: Callable[Concatenate[Self, Given], Result],
) -> Callable[Concatenate[Self, Given], Result]:
    """A read that is made again where a restore came between; closures run again as a whole."""

    @functools.wraps(read)
    def read_steadily(parameters: Self, /, *args: Given.args, **kwargs: Given.kwargs) -> Result:
        if parameters.outlast is never or current_staging() is not None:
            return read(parameters, *args, **kwargs)
        while True:
            parameters.outlast(None)
            session = parameters.session
            try:
                found = read(parameters, *args, **kwargs)
            except DataServiceError as error:
                # What is being restored already must not take everything back once more.
                parameters.outlast(None)
                if parameters.session == session and not parameters.outlast(error):
                    raise
                continue
            if parameters.session == session:
                return found

    return read_steadily
