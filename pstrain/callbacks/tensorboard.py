"""Writes logs to TensorBoard's event files, one for training and one for held-out data.

Knows which logs go where, not the file format. Invariant: files are closed when training or
evaluation ends.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from dataservice.runtime.arguments import check_choice, integer_at_least, path_of
from pstrain.callbacks.base import Callback, Logs, only_records, reads_logs_where
from pstrain.callbacks.event_file import EventFile
from pstrain.porting import foreign_arguments
from pstrain.porting.foreign_arguments import refuse_arguments


class TensorBoard(Callback):
    """Writes ``epoch_<name>`` by epoch into ``log_dir/train`` and ``log_dir/validation``.

    ``update_freq``: "epoch", "batch" or a number of steps; the last two also write
    ``batch_<name>`` by step. An evaluation outside training, such as a SidecarEvaluator's, writes
    ``evaluation_<name>_vs_iterations`` into ``log_dir/validation``. Steps and epochs that are
    trained again, from a checkpoint on, are written again: TensorBoard shows the later values
    (both with its ``--load_fast=false``). Writing needs no package; viewing needs tensorboard.
    """

    @refuse_arguments("TensorBoard", foreign_arguments.TENSORBOARD)
    def __init__(
        self, log_dir: str | os.PathLike[str] = "logs", update_freq: str | int = "epoch"
    ) -> None:
        if isinstance(update_freq, str):
            check_choice("update_freq", update_freq, ("epoch", "batch"))
        else:
            integer_at_least(update_freq, 1, "update_freq")
        self._log_dir = path_of(log_dir, "log_dir")
        self._every: int | None = {"epoch": None, "batch": 1}.get(update_freq, update_freq)  # type: ignore[arg-type, assignment]
        self._writers: dict[str, EventFile] = {}
        self._is_training = False
        self._epoch, self._steps, self._steps_before, self._written_at = -1, 0, 0, 0

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "steps": self._steps, "steps_before": self._steps_before}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._epoch = state.get("epoch", -1)
        self._steps = self._written_at = state.get("steps", 0)
        self._steps_before = state.get("steps_before", 0)

    def on_train_begin(self) -> None:
        self._is_training = True
        self._epoch, self._steps, self._steps_before, self._written_at = -1, 0, 0, 0

    def on_epoch_begin(self, epoch: int) -> None:
        # An epoch that continues from a checkpoint counts its steps from its own beginning.
        if epoch != self._epoch:
            self._epoch, self._steps_before = epoch, self._steps

    def _is_due(self, batch: int) -> bool:
        steps = self._steps_before + batch
        return self._every is not None and steps - self._written_at >= self._every

    @only_records
    @reads_logs_where(_is_due)
    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        self._steps = self._steps_before + batch
        if self._is_due(batch):
            self._written_at = self._steps
            values = {f"batch_{name}": value for name, value in logs.items()}
            self._write("train", values, self._steps)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        held_out = {n.removeprefix("val_"): v for n, v in logs.items() if n.startswith("val_")}
        trained = {name: v for name, v in logs.items() if not name.startswith("val_")}
        for run, values in (("train", trained), ("validation", held_out)):
            if values:
                self._write(run, {f"epoch_{name}": v for name, v in values.items()}, epoch)
        for writer in self._writers.values():
            writer.flush()

    def on_train_end(self) -> None:
        self._is_training = False
        self._close()

    def on_train_error(self, error: BaseException) -> None:  # noqa: ARG002
        self.on_train_end()

    def on_test_end(self, logs: Logs) -> None:
        if self._is_training:
            return
        optimizer = getattr(self.model, "optimizer", None)
        own = 0 if optimizer is None else int(optimizer.iterations)
        step = self.params.get("step", own)
        values = {f"evaluation_{name}_vs_iterations": value for name, value in logs.items()}
        self._write("validation", values, step)
        self._close()

    def _write(self, run: str, values: Logs, step: int) -> None:
        if run not in self._writers:
            self._writers[run] = EventFile(os.path.join(self._log_dir, run))
        self._writers[run].write(step, values)

    def _close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()
