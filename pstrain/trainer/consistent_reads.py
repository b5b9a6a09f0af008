"""Consistent reads across a restore: from before it or from after it, never from during it.

While a lost parameter server is replaced, servers hold initial values for a while, or nothing.
Knows nothing of who restores, or why: the parameters' ``wait_restored`` waits for the end.
Invariant: what is returned was read in one session, with no restore under way when the read began.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from pstrain.errors import DataServiceError
from pstrain.variables.parameters import current_staging

Given = ParamSpec("Given")
Result = TypeVar("Result")

WaitRestored = Callable[[Exception | None], bool]
"""Waits until no restore is under way; given an error, returns whether the loss is restored.

Raises DeadlineExceededError if that takes too long.
"""


def never_restored(_error: Exception | None) -> bool:
    """A `WaitRestored` for parameters that are never restored."""
    return False


def always_goes_on() -> None:
    """Does nothing, for programs that never have to go back to a checkpoint themselves."""


class Restorable(Protocol):
    """Parameters whose session changes with a restore."""

    session: str
    wait_restored: WaitRestored


Self = TypeVar("Self", bound=Restorable)


def consistent_read(
    read: Callable[Concatenate[Self, Given], Result],
) -> Callable[Concatenate[Self, Given], Result]:
    """Has a read repeat if a restore came between; not in closures, which run again whole."""

    @functools.wraps(read)
    def read_steadily(parameters: Self, /, *args: Given.args, **kwargs: Given.kwargs) -> Result:
        if parameters.wait_restored is never_restored or current_staging() is not None:
            return read(parameters, *args, **kwargs)
        while True:
            parameters.wait_restored(None)
            session = parameters.session
            try:
                found = read(parameters, *args, **kwargs)
            except DataServiceError as error:
                # If a restore is under way already, this error must not cause another one.
                parameters.wait_restored(None)
                if parameters.session == session and not parameters.wait_restored(error):
                    raise
                continue
            if parameters.session == session:
                return found

    return read_steadily
