"""Saves model and optimizer during training."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dataservice.runtime.arguments import check_optional, check_true_or_false, non_negative, path_of
from pstrain.callbacks.base import Callback, Logs, only_records, reads_logs_where
from pstrain.callbacks.monitor import Monitor
from pstrain.errors import InvalidArgumentError
from pstrain.porting import foreign_arguments
from pstrain.porting.foreign_arguments import refuse_arguments

if TYPE_CHECKING:
    from pstrain.checkpoints.manager import CheckpointManager
    from pstrain.checkpoints.saving import SavedCheckpoint


class Checkpoint(Callback):
    """Saves a checkpoint in ``directory`` every ``every`` epochs; ``last_path`` is the newest.

    ``every_steps``: also saves when so many steps were reported since the last save, while the
    trainers continue. If these steps end an epoch that is saved too, there is one save for both,
    unless a validation comes between. With ``save_best_only`` an epoch is saved only if ``monitor``
    has improved (``mode`` as in EarlyStopping). ``max_to_keep``: how many of the newest checkpoints
    are kept (None: all), those of ``every_steps`` too: where the best is to stay, save it by a
    callback of its own in another directory. Of the older ones, one every
    ``keep_checkpoint_every_n_hours`` stays for good.
    ``asynchronous`` (the default): training continues while files are written;
    ``fit`` returns once they are complete. ``incremental``: for large tables, only rows that
    changed since the last save are written. ``objects`` are saved beside ``model`` and
    ``optimizer``. ``last_path.pause_s``: for how long the save stopped training.

    The progress of ``fit`` is saved too: epoch, steps, metrics, history, position in the data,
    states of callbacks. At the end of an epoch the other callbacks come first, wherever this one
    stands among them, so that a saved epoch is one that they have seen.
    Once there is a checkpoint, the loss of a parameter server that is started again (by its
    supervisor) rolls everything back to the newest checkpoint, from which training continues. If a
    fit has several Checkpoint callbacks, the first one's checkpoints are used, and it saves an
    epoch after the others. With ``resume``, a
    program that was killed and is started again continues the unfinished fit of the newest
    checkpoint in ``directory``. In the V1 form only the chief saves.
    """

    _saves_states = True

    @refuse_arguments("callbacks.Checkpoint", foreign_arguments.CHECKPOINT)
    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        every: int = 1,
        every_steps: int | None = None,
        monitor: str = "val_loss",
        mode: str = "auto",
        save_best_only: bool = False,
        max_to_keep: int | None = None,
        keep_checkpoint_every_n_hours: float | None = None,
        asynchronous: bool = True,
        incremental: bool = False,
        resume: bool = True,
        **objects: Any,
    ) -> None:
        check_optional(1, every=every, every_steps=every_steps, max_to_keep=max_to_keep)
        check_true_or_false(save_best_only=save_best_only, asynchronous=asynchronous, resume=resume)
        check_true_or_false(incremental=incremental)
        if keep_checkpoint_every_n_hours is not None:
            non_negative(keep_checkpoint_every_n_hours, "keep_checkpoint_every_n_hours")
        _check_objects(objects)
        self.resume = resume
        self._directory, self._every = path_of(directory, "directory"), every
        self._every_steps = every_steps
        self._epoch = self._reported = self._unsaved = 0
        self._steps_of_epoch: int | None = None
        watched = Monitor(monitor, mode=mode)
        self._monitor = watched if save_best_only else None
        self._max_to_keep, self._every_n_hours = max_to_keep, keep_checkpoint_every_n_hours
        self._asynchronous, self._incremental = asynchronous, incremental
        self._objects = objects
        self._manager: CheckpointManager | None = None
        self.last_path: SavedCheckpoint | None = None

    def on_train_begin(self) -> None:
        self._unsaved, self._steps_of_epoch = 0, self.params.get("steps")
        if self._monitor is not None:
            self._monitor.follow(self.model)

    def on_epoch_begin(self, epoch: int) -> None:
        self._epoch = epoch

    @only_records
    def on_train_batch_begin(self, batch: int) -> None:
        self._reported = batch

    @reads_logs_where(lambda _self, _batch: False)
    @only_records
    def on_train_batch_end(self, batch: int, logs: Logs) -> None:  # noqa: ARG002
        self._unsaved += batch - self._reported
        self._reported = batch
        saves_soon = self._monitor is None and self._is_due(self._epoch)
        # A report of the epoch's last step is saved by on_epoch_end. If the epoch does not end
        # with it, the next report is saved.
        if not (saves_soon and batch == self._steps_of_epoch):
            self._save_steps()

    def on_test_begin(self) -> None:
        self._save_steps()

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        self._steps_of_epoch = self._reported
        monitor = self._monitor
        if self._is_due(epoch) and (monitor is None or self._improves(monitor, epoch, logs)):
            self._save()

    def _save_steps(self) -> None:
        if self._every_steps is not None and self._unsaved >= self._every_steps:
            self._save()

    def _is_due(self, epoch: int) -> bool:
        return (epoch + 1) % self._every == 0

    def _improves(self, monitor: Monitor, epoch: int, logs: Logs) -> bool:
        is_due = monitor.is_due(epoch, self.params)
        return is_due and monitor.improves(monitor.value(logs, "Checkpoint"))

    def on_train_end(self) -> None:
        self._unsaved = 0
        if self._manager is not None:
            self._manager.wait()
            self._manager = None

    def on_train_error(self, error: BaseException) -> None:  # noqa: ARG002
        # The next training may be another model's, or with another optimizer.
        self._unsaved, self._manager = 0, None

    def state_dict(self) -> dict[str, Any]:
        return {} if self._monitor is None else {"best": self._monitor.best}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._unsaved = 0
        if self._monitor is not None:
            self._monitor.best = state.get("best")

    @property
    def manager(self) -> CheckpointManager:
        """The checkpoint manager of the training in progress."""
        if self._manager is None:
            self._manager = self._make_manager()
        return self._manager

    def _save(self) -> None:
        self._unsaved = 0
        strategy = self.model.strategy
        if strategy is None or strategy.extended.should_checkpoint:
            self.last_path = self.manager.save()

    def _make_manager(self) -> CheckpointManager:
        from pstrain.checkpoints.checkpoint import Checkpoint as Saved
        from pstrain.checkpoints.manager import CheckpointManager

        saved = Saved(model=self.model, optimizer=self.model.optimizer, **self._objects)
        return CheckpointManager(
            saved,
            self._directory,
            self._max_to_keep,
            self._every_n_hours,
            asynchronous=self._asynchronous,
            incremental=self._incremental,
        )


def _check_objects(objects: Mapping[str, Any]) -> None:
    from pstrain.checkpoints.objects import check_objects

    taken = sorted(objects.keys() & {"model", "optimizer"})
    if taken:
        raise InvalidArgumentError(
            f"the callback saves the model and its optimizer by itself: leave out {taken[0]}="
        )
    check_objects({name: value for name, value in objects.items() if value is not None})
