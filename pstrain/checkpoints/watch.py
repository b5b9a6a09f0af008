"""Follows a directory of checkpoints that another program fills.

Knows nothing of the contents of a checkpoint. Invariant: a checkpoint was whole when it was found.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from dataservice.runtime.arguments import check_callable, limit_s, non_negative, path_of
from dataservice.runtime.refused_timeouts import refuse_timeout_s
from pstrain.checkpoints.manifest import Path, checkpoints, number_of

_POLL_S = 1.0


@refuse_timeout_s("checkpoints_iterator")
def checkpoints_iterator(
    checkpoint_dir: Path,
    min_interval_secs: float = 0.0,
    timeout: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
    *,
    every: bool = False,
    stop: threading.Event | None = None,
) -> Iterator[str]:
    """Yields paths of checkpoints as they appear: always the newest, so some may be skipped.

    With ``every=True`` it yields each one that has not been removed meanwhile, oldest first. It
    ends if none has appeared for ``timeout`` seconds and ``timeout_fn``, if given, returns true; or
    when ``stop`` is set. Without ``timeout`` and ``stop`` it never ends.
    """
    pause_s = non_negative(min_interval_secs, "min_interval_secs")
    check_callable("timeout_fn", timeout_fn, optional=True)
    options = (limit_s(timeout), timeout_fn, stop or threading.Event())
    return _follow(path_of(checkpoint_dir, "checkpoint_dir"), pause_s, *options, every=every)


def _follow(
    directory: str,
    pause_s: float,
    timeout_s: float | None,
    timeout_fn: Callable[[], bool] | None,
    stop: threading.Event,
    *,
    every: bool,
) -> Iterator[str]:
    seen = -1
    while True:
        found = _wait_for_new(directory, seen, timeout_s, stop, every=every)
        if stop.is_set():
            return
        if found is None:
            if timeout_fn is None or timeout_fn():
                return
            continue
        started_s = time.monotonic()
        seen = number_of(found)
        yield found
        if stop.wait(max(0.0, started_s + pause_s - time.monotonic())):
            return


def _wait_for_new(
    directory: Path, seen: int, timeout_s: float | None, stop: threading.Event, *, every: bool
) -> str | None:
    deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
    while not stop.is_set():
        found = [path for path in checkpoints(directory) if number_of(path) > seen]
        if found:
            return found[0 if every else -1]
        left_s = _POLL_S if deadline_s is None else deadline_s - time.monotonic()
        if left_s <= 0:
            return None
        stop.wait(min(_POLL_S, left_s))
    return None
