"""The progress bar: what it shows, on terminals of any width and in files."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dataservice as ds
import pstrain as ps
from pstrain.callbacks import ProgressBar

LOGS = {"loss": 0.4545, "examples": 250.0, "examples_per_s": 124_648.4, "data_stall": 0.3}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class NotebookStream(io.StringIO):
    """Stands for the stream that ipykernel puts in the place of standard output and error."""

    __module__ = "ipykernel.iostream"


def begun_bar(stream: io.StringIO) -> ProgressBar:
    bar = ProgressBar(examples_per_epoch=1_000, stream=stream)
    bar.params = {"epochs": 5, "steps": None}
    bar.on_epoch_begin(1)
    return bar


@pytest.mark.parametrize("columns", ["80", "200"])
def test_progress_line_fits_terminal_width(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    stream = Terminal()
    begun_bar(stream).on_train_batch_end(3, LOGS | {"auc": 0.7681})
    drawn = stream.getvalue()
    assert drawn.startswith("\r")
    assert "\n" not in drawn
    assert len(drawn) == int(columns)
    for part in ("epoch 2/5", "25%", "124,648 examples/s", "loss 0.4545", "data stall 30%", "left"):
        assert part in drawn
    assert ("auc 0.7681" in drawn) is (columns == "200")


def test_line_is_drawn_every_tenth_of_a_second_with_the_time_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setenv("COLUMNS", "200")
    clock = SimpleNamespace(perf_counter=lambda: now[0])
    monkeypatch.setattr("pstrain.callbacks.progress.time", clock)
    bar, drawn = begun_bar(stream := Terminal()), []
    for now[0], examples in ((103.0, 250.0), (103.05, 255.0), (104.0, 500.0)):
        bar.on_train_batch_end(3, LOGS | {"examples": examples})
        drawn.append(stream.getvalue().count("\r"))
    now[0] = 110.0
    bar.on_epoch_end(1, LOGS)
    lines = [line.rstrip() for line in stream.getvalue().split("\r")[1:]]
    assert drawn == [1, 1, 2]
    assert [line.partition("stall 30% ")[2] for line in lines] == ["9 s left", "4 s left", "10.0 s"]


def test_length_of_an_epoch_is_that_of_the_one_before() -> None:
    bar = ProgressBar(stream=(stream := NotebookStream()))
    bar.on_epoch_begin(0)
    bar.on_train_batch_end(3, LOGS)
    assert "%]" not in stream.getvalue()
    assert "data stall 30% 0.0 s" in stream.getvalue()
    bar.on_epoch_end(0, LOGS | {"examples": 500.0})
    bar.on_epoch_begin(1)
    bar.on_train_batch_end(3, LOGS)
    assert "]  50%" in stream.getvalue()
    given = begun_bar(stream := NotebookStream())
    given.on_epoch_end(1, LOGS | {"examples": 500.0})
    for examples, share in ((250.0, "25%"), (2_500.0, "100%")):
        given.on_epoch_begin(2)
        given.on_train_batch_end(3, LOGS | {"examples": examples})
        assert f"] {share:>4}" in stream.getvalue().rpartition("\r")[2]


def test_share_of_an_epoch_is_that_of_its_steps_if_these_are_limited() -> None:
    bar = begun_bar(stream := NotebookStream())
    bar.params = {"epochs": 5, "steps": 4}
    bar.on_train_batch_end(3, LOGS)
    assert "]  75%" in stream.getvalue()


def test_each_line_is_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name, begins in (("ipykernel", b"\repoch 2/5 [===="), ("files", b"epoch 2/5  [====")):
        buffered = type("Buffered", (io.TextIOWrapper,), {"__module__": name})(io.BytesIO())
        begun_bar(buffered).on_epoch_end(1, LOGS)
        assert buffered.buffer.getvalue().startswith(begins)
    monkeypatch.setenv("COLUMNS", "60")
    begun_bar(stream := io.StringIO()).on_epoch_end(1, LOGS)
    assert f"[{20 * '='}] 100%" in stream.getvalue(), "a file has no width"


@pytest.mark.parametrize(("columns", "width"), [(60, 5), (90, 15), (200, 20)])
def test_bar_takes_the_columns_that_the_text_beside_it_leaves(
    columns: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    begun_bar(stream := Terminal()).on_train_batch_end(3, LOGS)
    assert stream.getvalue().index("]") - stream.getvalue().index("[") - 1 == width


def test_line_of_finished_epoch_is_not_truncated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    stream = Terminal()
    begun_bar(stream).on_epoch_end(1, LOGS | {"auc": 0.7681, "val_auc": 0.7345, "val_loss": 0.4857})
    assert stream.getvalue().endswith("val_auc 0.7345 val_loss 0.4857\n")


def test_progress_bar_writes_one_line_per_epoch_to_file() -> None:
    stream = io.StringIO()
    bar = begun_bar(stream)
    bar.on_train_batch_end(3, LOGS)
    assert not stream.getvalue()
    bar.on_epoch_end(1, LOGS)
    assert stream.getvalue().count("\n") == 1
    assert "\r" not in stream.getvalue()


def test_notebook_line_is_updated_during_epoch() -> None:
    stream = NotebookStream()
    bar = begun_bar(stream)
    bar.on_train_batch_end(3, LOGS)
    assert stream.getvalue().startswith("\repoch 2/5")
    assert "\n" not in stream.getvalue()
    bar.on_epoch_end(1, LOGS)
    assert stream.getvalue().count("\n") == 1
    quiet = ProgressBar(2, stream=(whole := NotebookStream()))
    quiet.on_epoch_begin(0)
    quiet.on_train_batch_end(3, LOGS)
    assert not whole.getvalue()


@pytest.mark.parametrize("form", [dict, pa.table, lambda data: ds.Dataset.from_numpy(data)])
def test_progress_of_first_epoch_is_known_for_in_memory_rows(
    form: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pstrain.callbacks.progress._REDRAW_S", 0.0)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    model = ps.models.LogisticRegression(ps.FeatureSchema(dense=["x"], label="label"))
    model.compile("sgd")
    rows = form({"x": np.zeros(64, np.float32), "label": np.zeros(64, np.int64)})
    model.fit(rows, batch_size=16, steps_per_execution=1)
    shares = [line for line in terminal.getvalue().split("\r") if "]  25%" in line]
    assert len(shares) == (not isinstance(rows, ds.Dataset))
