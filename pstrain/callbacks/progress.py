"""Shows the progress of training: one line per epoch, with speed, loss, metrics and time left.

Knows only the logs. Invariant: only whole lines are written, unless the output is a terminal or a
notebook, where a carriage return begins the line anew.
"""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO

from pstrain.callbacks.base import Callback, only_records, reads_logs_where

_REDRAW_S = 0.1
_BAR_WIDTH = 20
_BAR_WIDTH_MIN = 5
# The greatest width of the text beside the bar.
_OTHER_COLUMNS = 74


class ProgressBar(Callback):
    """A progress bar. ``verbose`` 1: redrawn on a terminal or in a notebook; else a line per epoch.

    ``examples_per_epoch``, if known, gives the bar a length before the first epoch has ended.
    """

    def __init__(
        self,
        verbose: int = 1,
        *,
        examples_per_epoch: int | None = None,
        stream: TextIO | None = None,
    ) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._is_live = verbose == 1 and _can_redraw(self._stream)
        self._expected = examples_per_epoch
        self._epoch = 0
        self._started_s = 0.0
        self._drawn_s = 0.0

    def on_epoch_begin(self, epoch: int) -> None:
        self._epoch, self._started_s, self._drawn_s = epoch, time.perf_counter(), 0.0

    def _is_due(self, steps: int) -> bool:  # noqa: ARG002
        return self._is_live and time.perf_counter() - self._drawn_s >= _REDRAW_S

    @only_records
    @reads_logs_where(_is_due)
    def on_train_batch_end(self, steps: int, logs: dict[str, float]) -> None:
        # Time has passed since the list asked whether logs are due, so they may be empty.
        if logs and self._is_due(steps):
            self._drawn_s = time.perf_counter()
            self._draw(self._line(self._share(steps, logs), logs), end="")

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:  # noqa: ARG002
        self._expected = self._expected or int(logs["examples"])
        self._draw(self._line(1.0, logs), end="\n")

    def _share(self, steps: int, logs: dict[str, float]) -> float | None:
        if self.params.get("steps"):
            return min(1.0, steps / self.params["steps"])
        return min(1.0, logs["examples"] / self._expected) if self._expected else None

    def _line(self, share: float | None, logs: dict[str, float]) -> str:
        """Returns the line, the most important parts first: a narrow terminal cuts off the end."""
        elapsed_s = time.perf_counter() - self._started_s
        parts = [f"epoch {self._epoch + 1}/{self.params.get('epochs', '?')}"]
        if share is not None:
            width = _bar_width(self._width()) if self._is_live else _BAR_WIDTH
            done = round(share * width)
            parts.append(f"[{'=' * done}{'.' * (width - done)}] {share:4.0%}")
        parts.append(f"{logs['examples_per_s']:,.0f} examples/s")
        parts.append(f"loss {logs['loss']:.4f}")
        parts.append(f"data stall {logs['data_stall']:.0%}")
        if share is not None and 0 < share < 1:
            parts.append(f"{elapsed_s * (1 - share) / share:.0f} s left")
        else:
            parts.append(f"{elapsed_s:.1f} s")
        known = ("loss", "examples", "examples_per_s", "data_stall")
        parts += [f"{name} {value:.4f}" for name, value in logs.items() if name not in known]
        return " ".join(parts) if self._is_live else "  ".join(parts)

    def _draw(self, line: str, *, end: str) -> None:
        if self._is_live:
            # The line of a finished epoch stays, so it may be longer than the terminal is wide.
            shown = line if end == "\n" else line[: self._width()]
            self._stream.write("\r" + shown.ljust(self._width()) + end)
        else:
            self._stream.write(line + end)
        self._stream.flush()

    @staticmethod
    def _width() -> int:
        """Returns the usable columns: all but the last, after which some terminals wrap."""
        return shutil.get_terminal_size().columns - 1


def _can_redraw(stream: TextIO) -> bool:
    """True if a carriage return lets the next text replace the line."""
    # The streams of notebooks say that they are no terminal.
    return stream.isatty() or type(stream).__module__.partition(".")[0] == "ipykernel"


def _bar_width(columns: int) -> int:
    return max(_BAR_WIDTH_MIN, min(_BAR_WIDTH, columns - _OTHER_COLUMNS))
