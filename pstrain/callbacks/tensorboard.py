"""Logs as TensorBoard's event files; needs the package ``tensorboard`` (extra ``tensorboard``).

The one place that imports it, when training begins. Invariant: files are closed when training or
evaluation ends, so their writer threads end too.
"""

from __future__ import annotations

import os
import time
from typing import Any

from pstrain.callbacks.base import Callback, Logs
from pstrain.errors import FailedPreconditionError, InvalidArgumentError


class TensorBoard(Callback):
    """Writes ``epoch_<name>`` by epoch into ``log_dir/train`` and ``log_dir/validation``.

    ``update_freq``: "epoch", "batch" or a number of steps: the latter also write ``batch_<name>``
    by step. A lone evaluation, such as a side-car's, writes ``evaluation_<name>_vs_iterations``
    into ``log_dir/validation``. Without the package: FailedPreconditionError (a RuntimeError) that
    says how to install it.
    """

    def __init__(
        self, log_dir: str | os.PathLike[str] = "logs", update_freq: str | int = "epoch"
    ) -> None:
        if update_freq not in ("epoch", "batch") and not (
            isinstance(update_freq, int) and update_freq > 0
        ):
            raise InvalidArgumentError(
                f'update_freq is "epoch", "batch" or a number of steps, got {update_freq!r}'
            )
        self._log_dir = os.fspath(log_dir)
        self._every: int | None = {"epoch": None, "batch": 1}.get(update_freq, update_freq)  # type: ignore[arg-type, assignment]
        self._writers: dict[str, Any] = {}
        self._is_training = False
        self._steps = self._steps_before = self._written_at = 0

    def on_train_begin(self) -> None:
        _event_files()
        self._is_training = True
        self._steps = self._steps_before = self._written_at = 0

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        self._steps = self._steps_before + batch
        if self._every is not None and self._steps - self._written_at >= self._every:
            self._written_at = self._steps
            values = {f"batch_{name}": value for name, value in logs.items()}
            self._write("train", values, self._steps)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        self._steps_before = self._steps
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

    def on_test_end(self, logs: Logs) -> None:
        if self._is_training:
            return
        optimizer = getattr(self.model, "optimizer", None)
        step = 0 if optimizer is None else int(optimizer.iterations)
        values = {f"evaluation_{name}_vs_iterations": value for name, value in logs.items()}
        self._write("validation", values, step)
        self._close()

    def _write(self, run: str, values: Logs, step: int) -> None:
        event_files, event_pb2, summary_pb2 = _event_files()
        if run not in self._writers:
            self._writers[run] = event_files.EventFileWriter(os.path.join(self._log_dir, run))
        summary = summary_pb2.Summary(
            value=[
                summary_pb2.Summary.Value(tag=name, simple_value=float(value))
                for name, value in values.items()
            ]
        )
        event = event_pb2.Event(wall_time=time.time(), step=step, summary=summary)
        self._writers[run].add_event(event)

    def _close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()


def _event_files() -> tuple[Any, Any, Any]:
    try:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer import event_file_writer
    except ImportError as error:
        raise FailedPreconditionError(
            f"the TensorBoard callback needs the package tensorboard ({error}): "
            "pip install 'pstrain[tensorboard]', or use CSVLogger"
        ) from error
    return event_file_writer, event_pb2, summary_pb2
