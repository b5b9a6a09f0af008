"""Rows of a CSVLogger: under which header, and when epochs are trained again after a resume."""

from __future__ import annotations

import csv
import os
import pathlib

import pytest

import pstrain as ps
from pstrain.callbacks import CSVLogger
from pstrain.errors import InvalidArgumentError


def rows(path: pathlib.Path) -> list[tuple[str, ...]]:
    with open(path, newline="") as stream:
        return [tuple(row) for row in csv.reader(stream)]


def train(log: CSVLogger, losses: dict[int, float]) -> None:
    for epoch, loss in losses.items():
        log.on_epoch_begin(epoch)
        log.on_epoch_end(epoch, {"loss": loss})


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("append", [False, True])
@pytest.mark.parametrize("before", ["", "epoch,loss\r\n0,7.0\r\n1,7.5\r\n"])
def test_epoch_that_is_trained_again_has_one_row(
    tmp_path: pathlib.Path, before: str, append: bool, is_killed: bool
) -> None:
    path = tmp_path / "log.csv"
    path.write_text(before, newline="")
    kept = rows(path)[1:] if append else []
    log = CSVLogger(path, append=append)
    log.on_train_begin()
    train(log, {0: 0.5})
    saved = log.state_dict()
    train(log, {1: 0.25, 2: 0.125})
    if is_killed:
        log = CSVLogger(path, append=append)
        log.on_train_begin()
    for again in (0.3, 0.2):
        log.load_state_dict(saved)
        train(log, {1: again, 2: again / 2})
    expected = [("0", "0.5"), ("1", "0.2"), ("2", "0.1")]
    assert rows(path) == [("epoch", "loss"), *kept, *expected]


def test_training_that_starts_over_without_a_checkpoint_has_no_row_twice(
    tmp_path: pathlib.Path,
) -> None:
    path = tmp_path / "log.csv"
    path.write_text("epoch,loss\r\n0,7.0\r\n", newline="")
    log = CSVLogger(path, append=True)
    log.on_train_begin()
    start = log.state_dict()
    train(log, {0: 0.5})
    log.load_state_dict(start)
    train(log, {0: 0.25})
    assert rows(path) == [("epoch", "loss"), ("0", "7.0"), ("0", "0.25")]


def test_training_that_appends_without_a_resume_removes_nothing(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "log.csv"
    for loss in (0.5, 0.25):
        log = CSVLogger(path, append=True)
        log.on_train_begin()
        train(log, {0: loss})
    assert rows(path) == [("epoch", "loss"), ("0", "0.5"), ("0", "0.25")]


def test_rows_of_another_program_stay(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "log.csv"
    log = CSVLogger(path)
    log.on_train_begin()
    train(log, {0: 0.5})
    saved = log.state_dict()
    train(log, {1: 0.25})
    with open(path, "a", newline="") as other:
        other.write("0,7.0\r\n")
    log.load_state_dict(saved)
    train(log, {1: 0.3})
    saved = log.state_dict()
    train(log, {2: 0.2})
    log.load_state_dict(saved)
    train(log, {2: 0.1})
    written = ["0", "1", "0", "1", "2"]
    assert [row[0] for row in rows(path)[1:]] == written
    assert rows(path)[-1] == ("2", "0.1")


def test_file_that_was_removed_begins_anew_after_a_resume(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "log.csv"
    log = CSVLogger(path)
    log.on_train_begin()
    train(log, {0: 0.5})
    saved = log.state_dict()
    path.unlink()
    log.load_state_dict(saved)
    train(log, {1: 0.25})
    assert rows(path) == [("epoch", "loss"), ("1", "0.25")]


def test_rows_that_another_program_adds_between_epochs_stay(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "log.csv"

    def add_row(row: str) -> None:
        with open(path, "a", newline="") as other:
            other.write(f"{row}\r\n")

    log = CSVLogger(path, append=True)
    log.on_train_begin()
    train(log, {0: 0.5})
    add_row("1,7.0")
    train(log, {1: 0.25})
    log.load_state_dict(log.state_dict())
    train(log, {2: 0.125})
    add_row("3,7.0")
    train(log, {3: 0.0625})
    log.load_state_dict(log.state_dict())
    log.on_train_begin()  # after a resume that failed before its first epoch
    add_row("4,7.0")
    train(log, {4: 0.03125})
    told = [("0", "0.5"), ("1", "7.0"), ("1", "0.25"), ("2", "0.125"), ("3", "7.0")]
    told += [("3", "0.0625"), ("4", "7.0"), ("4", "0.03125")]
    assert rows(path) == [("epoch", "loss"), *told]


def test_file_that_has_lost_rows_goes_on_after_a_resume(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "log.csv"
    log = CSVLogger(path)
    log.on_train_begin()
    train(log, {0: 0.5, 1: 0.25, 2: 0.125})
    path.write_text("epoch,loss\r\n0,0.5\r\n", newline="")
    log.load_state_dict(log.state_dict())
    train(log, {3: 0.0625})
    assert rows(path) == [("epoch", "loss"), ("0", "0.5"), ("3", "0.0625")]


def test_resume_without_saved_rows_begins_the_file_anew(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("epoch,auc\r\n0,0.75\r\n", newline="")
    log = CSVLogger(path)
    log.on_train_begin()
    log.load_state_dict({})
    train(log, {0: 0.5})
    assert rows(path) == [("epoch", "loss"), ("0", "0.5")]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"loss;epoch\r\n7.0;0\r\n", b"0.5;0\r\n0.375;1\r\n"),
        (b"loss;city\r\n7.0;K\xf6ln\r\n", b"0.5;NA\r\n0.25;NA\r\n0.375;NA\r\n"),
    ],
)
def test_rows_are_added_under_the_header_of_an_existing_file(
    tmp_path: pathlib.Path, before: bytes, after: bytes
) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(before)
    log = CSVLogger(path, separator=";", append=True)
    log.on_train_begin()
    train(log, {0: 0.5})
    saved = log.state_dict()
    train(log, {1: 0.25})
    log.load_state_dict(saved)
    # Without a column of epochs it is not known which rows are trained again.
    train(log, {1: 0.375})
    assert path.read_bytes() == before + after


def test_columns_of_a_new_file_are_sorted_and_those_of_later_epochs_left_out(
    tmp_path: pathlib.Path,
) -> None:
    path = tmp_path / "log.csv"
    log = CSVLogger(path)
    log.on_train_begin()
    log.on_epoch_begin(0)
    log.on_epoch_end(0, dict.fromkeys("dacb", 0.5))
    log.on_epoch_begin(1)
    log.on_epoch_end(1, {"a": 0.25, "later": 1.0})
    told = [("0", "0.5", "0.5", "0.5", "0.5"), ("1", "0.25", "NA", "NA", "NA")]
    assert rows(path) == [("epoch", "a", "b", "c", "d"), *told]


def test_file_that_cannot_be_written_is_an_error_before_the_first_epoch(
    tmp_path: pathlib.Path,
) -> None:
    with pytest.raises(FileNotFoundError):
        CSVLogger(tmp_path / "missing" / "log.csv").on_train_begin()
    with pytest.raises(InvalidArgumentError, match="separator must be one character, got ', '"):
        CSVLogger(tmp_path / "log.csv", separator=", ")


def test_rows_go_to_a_pipe_after_a_resume_too() -> None:
    receiver, sender = os.pipe()
    log = CSVLogger(f"/dev/fd/{sender}", append=True)
    log.on_train_begin()
    log.load_state_dict({"rows": 3})
    train(log, {3: 0.5})
    assert os.read(receiver, 100) == b"epoch,loss\r\n3,0.5\r\n"
    os.close(receiver)
    os.close(sender)


def test_resumed_fit_has_each_epoch_once(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupt(ps.callbacks.Callback):
        def on_epoch_begin(self, epoch: int) -> None:
            if epoch == 3:
                raise KeyboardInterrupt

    def fit(*more: ps.callbacks.Callback) -> list[int]:
        monkeypatch.setattr("pstrain.execution.progress._PROGRAM", str(len(more)))
        schema = ps.FeatureSchema(categorical={"page": ps.Category(8, hashed=False)})
        model = ps.models.LogisticRegression(schema)
        model.compile("adagrad")
        saving = ps.callbacks.Checkpoint(tmp_path / "saved", every=2, asynchronous=False)
        log = CSVLogger(tmp_path / "log.csv", append=True)
        data = {"page": [0, 1, 2, 3], "label": [0, 1, 0, 1]}
        return model.fit(data, 4, callbacks=[log, saving, *more], verbose=0).epoch

    with pytest.raises(KeyboardInterrupt):
        fit(Interrupt())
    assert [row[0] for row in rows(tmp_path / "log.csv")] == ["epoch", "0", "1", "2"]
    assert fit() == [0, 1, 2, 3]
    assert [row[0] for row in rows(tmp_path / "log.csv")] == ["epoch", "0", "1", "2", "3"]
