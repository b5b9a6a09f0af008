"""Writes one line of a CSV file per epoch.

Knows nothing of how a training goes back to a checkpoint. Invariant: of an epoch that is trained
again, the file has one line, the later one.
"""

from __future__ import annotations

import csv
import io
import itertools
import os
from collections.abc import Mapping
from typing import Any

from dataservice.runtime.arguments import check_text, check_true_or_false, path_of
from pstrain.callbacks.base import Callback, Logs
from pstrain.callbacks.monitor import measured_names
from pstrain.errors import InvalidArgumentError
from pstrain.output.result_files import append


class CSVLogger(Callback):
    """Writes the logs of each epoch into ``filename``: ``epoch``, then the others sorted by name.

    Columns are those of the first epoch; with ``validation_freq`` also the ``val_`` ones, which are
    NA in other epochs.
    ``append=True`` adds to an existing file, under its header; a training that continues from a
    checkpoint always does, in place of the lines of the epochs after the checkpoint, which are
    trained again. Each line is written at once.
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
        self._rows = 0
        self._is_new = self._went_back = False

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self._rows}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        rows = state.get("rows", 0)
        self._continue_file(is_known=self._append or rows > 0)
        self._rows, self._went_back = min(rows, self._rows), True

    def on_train_begin(self) -> None:
        with open(self._filename, "a"):  # fails before the first epoch if it cannot be written
            pass
        self._continue_file(is_known=self._append)
        self._went_back = False

    def on_epoch_begin(self, epoch: int) -> None:
        # Truncated here: only now it is known whether training continues from a checkpoint.
        if self._is_new:
            self._is_new = False
            with open(self._filename, "w"):
                pass
        elif self._went_back:
            self._remove_rows_from(epoch)
        self._went_back = False

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
        self._rows += 1

    def _measured_later(self) -> list[str]:
        """Returns the names of a validation, which the logs of the first epoch may lack."""
        if "validation_freq" not in self.params:
            return []
        return [f"val_{name}" for name in measured_names(self.model)]

    def _continue_file(self, *, is_known: bool) -> None:
        """Continues the existing file under its header if ``is_known``, else begins anew."""
        records = self._records() if is_known else []
        self._columns = records[0][1] if records else []
        self._rows = max(0, len(records) - 1)
        self._is_new = not self._columns

    def _remove_rows_from(self, epoch: int) -> None:
        """Ends the file after the rows that were saved, if the others are of ``epoch`` and later.

        Other rows are those of another program: then all stay.
        """
        records = self._records()
        at = self._columns.index("epoch") if "epoch" in self._columns else len(self._columns)
        later = [record[at : at + 1] for _, record in records[self._rows + 1 :]]
        if later == [[str(epoch + number)] for number in range(len(later))]:
            os.truncate(self._filename, records[self._rows][0])
        else:
            self._rows = len(records) - 1

    def _records(self) -> list[tuple[int, list[str]]]:
        """Returns the header and the rows, each with the number of bytes up to its end."""
        if not os.path.isfile(self._filename):  # a pipe or a terminal has nothing to read
            return []
        with open(self._filename, "rb") as file:
            lines = file.readlines()
        ends = list(itertools.accumulate(map(len, lines)))
        reader = csv.reader(
            (line.decode(errors="replace") for line in lines), delimiter=self._separator
        )
        return [(ends[reader.line_num - 1], record) for record in reader]
