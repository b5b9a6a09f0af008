"""Keeping the newest checkpoints of a directory, and following one that another program fills.

Knows nothing of what is in a checkpoint. Invariant: the newest checkpoint is never removed, and a
checkpoint disappears in one step, so that a reader sees it whole or not at all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from pstrain import manifest
from pstrain.checkpoint import Checkpoint
from pstrain.errors import InvalidArgumentError
from pstrain.manifest import Path, checkpoints, latest_checkpoint

_POLL_S = 1.0


class CheckpointManager:
    """Saves a Checkpoint into a directory, keeping the ``max_to_keep`` newest (None: all).

    With ``step_counter`` (a variable, such as ``optimizer.iterations``) and
    ``checkpoint_interval``, ``save`` does nothing until so many steps have passed since the last.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        directory: Path,
        max_to_keep: int | None,
        *,
        step_counter: Any = None,
        checkpoint_interval: int | None = None,
    ) -> None:
        if max_to_keep is not None and max_to_keep < 1:
            raise InvalidArgumentError(f"max_to_keep must be None or positive, got {max_to_keep}")
        if checkpoint_interval is not None and step_counter is None:
            raise InvalidArgumentError("checkpoint_interval needs a step_counter to count with")
        self.checkpoint = checkpoint
        self.directory = directory
        self._max_to_keep = max_to_keep
        self._step_counter = step_counter
        self._interval = checkpoint_interval
        self._saved_at: int | None = None

    @property
    def checkpoints(self) -> list[str]:
        """Paths, oldest first."""
        return checkpoints(self.directory)

    @property
    def latest_checkpoint(self) -> str | None:
        return latest_checkpoint(self.directory)

    def save(self, *, check_interval: bool = True) -> str | None:
        """Saves, and removes what is too old; the path, or None until the interval has passed."""
        step = None if self._step_counter is None else int(self._step_counter)
        if check_interval and self._too_early(step):
            return None
        path = self.checkpoint.save(self.directory)
        self._saved_at = step
        if self._max_to_keep is not None:
            for old in self.checkpoints[: -self._max_to_keep]:
                manifest.remove(old)
        return path

    def restore_or_initialize(self) -> str | None:
        """Restores the newest checkpoint if there is one; its path."""
        path = self.latest_checkpoint
        return None if path is None else self.checkpoint.restore(path)

    def _too_early(self, step: int | None) -> bool:
        if self._interval is None or step is None or self._saved_at is None:
            return False
        return step - self._saved_at < self._interval


def checkpoints_iterator(
    directory: Path,
    min_interval_secs: float = 0.0,
    timeout: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
    *,
    stop: threading.Event | None = None,
) -> Iterator[str]:
    """Paths of checkpoints as they appear; always the newest, so some may be passed over.

    Ends when none has appeared for ``timeout`` seconds and ``timeout_fn``, if given, does not
    answer False; or when ``stop`` is set. Without either it waits as long as it is iterated.
    """
    stop = stop or threading.Event()
    seen: str | None = None
    while True:
        found = _wait_for_new(directory, seen, timeout, stop)
        if stop.is_set():
            return
        if found is None:
            if timeout_fn is None or timeout_fn():
                return
            continue
        started_s = time.monotonic()
        seen = found
        yield found
        if stop.wait(max(0.0, started_s + min_interval_secs - time.monotonic())):
            return


def _wait_for_new(
    directory: Path, seen: str | None, timeout_s: float | None, stop: threading.Event
) -> str | None:
    deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
    while not stop.is_set():
        found = latest_checkpoint(directory)
        if found is not None and found != seen:
            return found
        left_s = _POLL_S if deadline_s is None else deadline_s - time.monotonic()
        if left_s <= 0:
            return None
        stop.wait(min(_POLL_S, left_s))
    return None
