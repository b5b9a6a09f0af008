"""Refusing the other of the two names of time-outs, which a program easily mixes up.

`timeout` is that of callables that have it in tf.distribute or in Python's own libraries, and
`timeout_s` that of all others. Both are seconds. Invariant: a callable takes one of them, and its
error for the other says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dataservice.runtime.refused_arguments import Called, refuse_arguments

TIMEOUT: Final = {"timeout": "write timeout_s="}
_TIMEOUT_S: Final = {"timeout_s": "write timeout=, in seconds"}


def refuse_timeout(what: str) -> Callable[[Called], Called]:
    """Returns a decorator for the callable `what`, which takes `timeout_s`."""
    return refuse_arguments(what, TIMEOUT)


def refuse_timeout_s(what: str) -> Callable[[Called], Called]:
    """Returns a decorator for the callable `what`, which takes `timeout`."""
    return refuse_arguments(what, _TIMEOUT_S)
