"""Writes one line of a CSV file per epoch."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping
from typing import Any

from dataservice.runtime.arguments import check_text, check_true_or_false, path_of
from pstrain.callbacks.base import Callback, Logs
from pstrain.callbacks.monitor import measured_names
from pstrain.errors import InvalidArgumentError
from pstrain.result_files import append


class CSVLogger(Callback):
    """Writes the logs of each epoch into ``filename``: ``epoch``, then the others sorted by name.

    Columns are those of the first epoch; with ``validation_freq`` also the ``val_`` ones, which are
    NA in other epochs.
    ``append=True`` adds to an existing file, under its header; a training that continues from a
    checkpoint always does. Each line is written at once.
    """

    def __init__(
        self, filename: str | os.PathLike[str], separator: str = ",", append: bool = False
    ) -> None:
        check_true_or_false(append=append)
        check_text("separator", separator)
        if len(separator) != 1:
            raise InvalidArgumentError(f"separator must be one character, got {separator!r}")
        self._filename = path_of(filename, "filename")
        self._separator, self._append = separator, append
        self._columns: list[str] = []
        self._is_new = False

    def state_dict(self) -> dict[str, Any]:
        return {"has_lines": bool(self._columns)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._continue_file(is_known=self._append or state.get("has_lines", False))

    def on_train_begin(self) -> None:
        with open(self._filename, "a"):  # fails before the first epoch if it cannot be written
            pass
        self._continue_file(is_known=self._append)

    def on_epoch_begin(self, epoch: int) -> None:  # noqa: ARG002
        # Truncated here: only now it is known whether training continues from a checkpoint.
        if self._is_new:
            self._is_new = False
            with open(self._filename, "w"):
                pass

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        is_first = not self._columns
        self._columns = self._columns or ["epoch", *sorted({*logs, *self._measured_later()})]
        lines = io.StringIO()
        writer = csv.DictWriter(
            lines, self._columns, restval="NA", extrasaction="ignore", delimiter=self._separator
        )
        if is_first:
            writer.writeheader()
        writer.writerow({"epoch": epoch, **logs})
        append(self._filename, lines.getvalue())

    def _measured_later(self) -> list[str]:
        """Returns the names of a validation, which the logs of the first epoch may lack."""
        if "validation_freq" not in self.params:
            return []
        return [f"val_{name}" for name in measured_names(self.model)]

    def _continue_file(self, *, is_known: bool) -> None:
        """Continues the existing file under its header if ``is_known``, else begins anew."""
        self._columns = self._header() if is_known else []
        self._is_new = not self._columns

    def _header(self) -> list[str]:
        try:
            with open(self._filename, newline="") as stream:
                return next(csv.reader(stream, delimiter=self._separator), [])
        except FileNotFoundError:
            return []
