"""Fail points: places in the code at which a test can have the process killed.

PSTRAIN_KILL_AT="place:n" kills the process when it reaches the place for the nth time. Without
the variable a fail point costs one comparison. Invariant: without the variable nothing happens.
"""

from __future__ import annotations

import itertools
import os
import signal

KILL_AT_ENV = "PSTRAIN_KILL_AT"

_place, _, _number = os.environ.get(KILL_AT_ENV, "").partition(":")
_count = itertools.count(1)


def reached(place: str) -> None:
    """Marks fail point ``place``; kills the process if the environment says so."""
    if _place == place and next(_count) == int(_number):
        os.kill(os.getpid(), signal.SIGKILL)
