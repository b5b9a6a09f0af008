"""Keeps the newest checkpoints of a directory, and some for good.

Knows nothing of what is in a checkpoint. Invariant: the newest checkpoint is never removed, and a
checkpoint disappears in one step, so that a reader sees it whole or not at all.
"""

from __future__ import annotations

import json
import numbers
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from dataservice.runtime.arguments import (
    check_callable,
    check_optional,
    check_true_or_false,
    non_negative,
    path_of,
)
from dataservice.runtime.refused_timeouts import refuse_timeout_s
from pstrain.checkpoints import manifest
from pstrain.checkpoints.checkpoint import Checkpoint
from pstrain.checkpoints.manifest import Path, checkpoints, latest_checkpoint
from pstrain.checkpoints.saving import SavedCheckpoint
from pstrain.checkpoints.watch import checkpoints_iterator
from pstrain.errors import InvalidArgumentError, InvalidTypeError

__all__ = ["CheckpointManager", "checkpoints_iterator"]

_INDEX = "checkpoint"
# Taken while old checkpoints are removed: another save that ends then must not read them.
_sweeping = threading.Lock()


class CheckpointManager:
    """Saves a Checkpoint into a directory, and keeps the ``max_to_keep`` newest (None: all).

    Of the checkpoints too old to keep, one every ``keep_checkpoint_every_n_hours`` stays for good;
    ``checkpoints`` then leaves it out. With ``step_counter`` (a variable, such as
    ``optimizer.iterations``) and ``checkpoint_interval``, ``save`` does nothing until so many steps
    have passed since the last save. :meth:`restore_or_initialize` calls ``init_fn`` if there is no
    checkpoint. A manager made later, as after a restart, goes on with the checkpoints that it finds
    in the directory. Checkpoints of other names than ``checkpoint_name`` are not removed, and are
    restored only if none has that name. With ``asynchronous``, ``save`` returns once the snapshot
    is taken; with ``incremental``, it writes only changed rows of large tables; see
    :meth:`Checkpoint.save`.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        directory: Path,
        max_to_keep: int | None = None,
        keep_checkpoint_every_n_hours: float | None = None,
        checkpoint_name: str = "ckpt",
        step_counter: Any = None,
        checkpoint_interval: int | None = None,
        init_fn: Callable[[], Any] | None = None,
        last_checkpoint_step: int | None = None,
        *,
        asynchronous: bool = False,
        incremental: bool = False,
    ) -> None:
        check_optional(1, max_to_keep=max_to_keep, checkpoint_interval=checkpoint_interval)
        if keep_checkpoint_every_n_hours is not None:
            non_negative(keep_checkpoint_every_n_hours, "keep_checkpoint_every_n_hours")
        if checkpoint_interval is not None and step_counter is None:
            raise InvalidArgumentError("checkpoint_interval needs a step_counter to count with")
        if not isinstance(checkpoint, Checkpoint):
            raise InvalidTypeError(
                "CheckpointManager takes a Checkpoint, then the directory, got "
                f"{checkpoint!r} first; as in CheckpointManager(Checkpoint(model=m), 'ckpt')"
            )
        is_fixed = isinstance(step_counter, numbers.Number)
        if step_counter is not None and (is_fixed or not hasattr(step_counter, "__int__")):
            raise InvalidTypeError(
                "step_counter must be a variable that counts, such as optimizer.iterations, got "
                f"{step_counter!r}"
            )
        check_optional(0, last_checkpoint_step=last_checkpoint_step)
        check_callable("init_fn", init_fn, optional=True)
        check_true_or_false(asynchronous=asynchronous, incremental=incremental)
        manifest.check_name(checkpoint_name)
        self.checkpoint = checkpoint
        self.directory = path_of(directory, "directory")
        self.checkpoint_interval = checkpoint_interval
        self.asynchronous = asynchronous
        self.incremental = incremental
        self._max_to_keep = max_to_keep
        self._keep_every_s = (keep_checkpoint_every_n_hours or 0.0) * 3600.0
        self._name = checkpoint_name
        self._step_counter = step_counter
        self._init_fn = init_fn
        self._saved_at = last_checkpoint_step
        self._saved: tuple[SavedCheckpoint, int | None] | None = None
        self._preserved, self._preserved_at_s = _read_index(self.directory)

    def __repr__(self) -> str:
        return f"<CheckpointManager {self.directory!r} of {self.checkpoint!r}>"

    @property
    def checkpoints(self) -> list[str]:
        """The paths of the checkpoints that are kept for the time being, oldest first."""
        return [path for path in self._own() if os.path.basename(path) not in self._preserved]

    @property
    def latest_checkpoint(self) -> str | None:
        """The path of the newest checkpoint of this name, else of any name, or None."""
        own = self._own()
        return own[-1] if own else latest_checkpoint(self.directory)

    def save(
        self, checkpoint_number: Any = None, check_interval: bool = True
    ) -> SavedCheckpoint | None:
        """Saves and removes old checkpoints; returns the path, or None if the interval is not over.

        ``checkpoint_number`` (an integer or a variable) numbers the checkpoint; None means one more
        than the newest. With a ``checkpoint_interval``, a second call at the same step saves only
        if the first save has failed.
        """
        self._forget_failed()
        step = None if self._step_counter is None else int(self._step_counter)
        if self._is_too_early(step, check_interval):
            return None
        is_counter = not isinstance(checkpoint_number, numbers.Number)
        if is_counter and hasattr(checkpoint_number, "__int__"):
            checkpoint_number = int(checkpoint_number)
        saved = self.checkpoint.save(
            self.directory,
            name=self._name,
            number=checkpoint_number,
            asynchronous=self.asynchronous,
            incremental=self.incremental,
            written=self._sweep,
        )
        self._saved, self._saved_at = (saved, self._saved_at), step
        return saved

    @refuse_timeout_s("wait")
    def wait(self, timeout: float | None = None) -> None:
        """Blocks until the last save is on disk; raises the error of a failed save."""
        self.checkpoint.wait(timeout)

    def restore_or_initialize(self, *, keeps_rates: bool = False) -> str | None:
        """Restores the newest checkpoint and returns its path; calls ``init_fn`` if there is none.

        ``keeps_rates`` is that of :meth:`Checkpoint.restore`.
        """
        path = self.latest_checkpoint
        if path is not None:
            return self.checkpoint.restore(path, keeps_rates=keeps_rates)
        if self._init_fn is not None:
            self._init_fn()
        return None

    def _forget_failed(self) -> None:
        """If the last save has failed, counts the interval from the save before it."""
        if self._saved is not None and self._saved[0].has_failed:
            _, self._saved_at = self._saved

    def _own(self) -> list[str]:
        found = checkpoints(self.directory)
        return [path for path in found if manifest.name_of(path) == self._name]

    def _is_too_early(self, step: int | None, check_interval: bool) -> bool:
        if self.checkpoint_interval is None or step is None or self._saved_at is None:
            return False
        if step == self._saved_at:
            return True
        return check_interval and step < self._saved_at + self.checkpoint_interval

    def _sweep(self, newest: str) -> None:
        with _sweeping:
            self._remove_old(newest)

    def _remove_old(self, newest: str) -> None:
        if self._max_to_keep is not None:
            # Compared by name, because one path may be relative and the other absolute.
            kept, present = os.path.basename(newest), self.checkpoints
            old = [path for path in present if os.path.basename(path) != kept]
            # Not counted from ``old``: another manager's save may have removed ``newest`` already.
            for path in old[: max(0, len(present) - self._max_to_keep)]:
                saved_at_s = manifest.saved_at_s(path)
                if self._keep_every_s and saved_at_s - self._keep_every_s >= self._preserved_at_s:
                    self._preserved.add(os.path.basename(path))
                    self._preserved_at_s = saved_at_s
                else:
                    manifest.remove(path)
        if self._preserved:
            self._write_index(newest)

    def _write_index(self, newest: str) -> None:
        """Writes the index; only what stays for good is read again, the rest is for people.

        The folders themselves decide which checkpoints there are.
        """
        index = {
            "latest": os.path.basename(newest),
            "all": [os.path.basename(path) for path in self.checkpoints],
            "preserved": sorted(self._preserved),
            "preserved_at_s": self._preserved_at_s,
        }
        manifest.write_file(self.directory, _INDEX, json.dumps(index, indent=1))


def _read_index(directory: str) -> tuple[set[str], float]:
    """Returns the names that stay for good, and when the last of them was saved."""
    # A little earlier than now, so that managers made in quick succession agree.
    nothing: tuple[set[str], float] = (set(), time.time() - 1.0)
    try:
        with open(os.path.join(directory, _INDEX), encoding="utf-8") as stream:
            index = json.load(stream)
        return set(index["preserved"]), min(float(index["preserved_at_s"]), time.time())
    except FileNotFoundError:
        return nothing
    except NotADirectoryError as error:
        raise manifest.no_folder(directory) from error
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidArgumentError(
            f"{os.path.join(directory, _INDEX)} is not the index of a CheckpointManager ({error}): "
            "move it away"
        ) from error


def check_manager(what: str, manager: Any) -> None:
    """Raises InvalidTypeError for anything but a CheckpointManager, as a path or a Checkpoint."""
    if not callable(getattr(manager, "restore_or_initialize", None)):
        raise InvalidTypeError(
            f"{what} must be a CheckpointManager, got {manager!r}; make one: "
            "CheckpointManager(Checkpoint(model=model, ...), directory, max_to_keep=3)"
        )
