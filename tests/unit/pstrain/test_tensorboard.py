"""What TensorBoard's files hold: which logs at which step, in the format that it reads."""

from __future__ import annotations

import math
import pathlib
import struct
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from dataservice import Dataset
from pstrain.callbacks import CallbackList, TensorBoard
from pstrain.callbacks.event_file import EventFile

Scalar = tuple[int, str, float]


def varint(message: bytes, at: int) -> tuple[int, int]:
    """Returns a number and where it ends."""
    value = shift = 0
    while message[at] & 0x80:
        value |= (message[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | message[at] << shift, at + 1


def fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yields the fields of a protocol buffer: integers, floats, and the bytes of all others."""
    at = 0
    while at < len(message):
        key, at = varint(message, at)
        value: Any
        if key & 7 == 0:
            value, at = varint(message, at)
        elif key & 7 == 2:
            size, at = varint(message, at)
            value, at = message[at : at + size], at + size
        else:
            form = {1: "<d", 5: "<f"}[key & 7]
            (value,) = struct.unpack_from(form, message, at)
            at += struct.calcsize(form)
        yield key >> 3, value


def events(folder: pathlib.Path) -> list[dict[int, Any]]:
    """The events of a folder; the TFRecord reader verifies the checksums of each record."""
    files = str(folder / "events.out.tfevents.*")
    records = Dataset.from_tfrecord(files, compression=None).to_table()["record"]
    return [dict(fields(record)) for record in records.to_pylist()]


def scalars(folder: pathlib.Path) -> list[Scalar]:
    """The scalars of a folder: step, name and value."""
    found = []
    for event in events(folder):
        for _, value in fields(event.get(5, b"")):
            scalar = dict(fields(value))
            found.append((event[2], scalar[1].decode(), scalar[2]))
    return found


def begun(board: TensorBoard, **options: Any) -> CallbackList:
    model = SimpleNamespace(optimizer=SimpleNamespace(iterations=12), stop_training=False)
    return CallbackList([board], model, **options)


def train(callbacks: CallbackList, batches: list[int], epochs: int = 1) -> None:
    with callbacks.training():
        for epoch in range(epochs):
            callbacks.epoch_begin(epoch)
            for batch in batches:
                callbacks.batch_end(batch, lambda: {"loss": 0.5})
            callbacks.test_end({"loss": 0.25})
            callbacks.epoch_end(epoch, {"loss": 0.5, "val_loss": 0.25})


def test_logs_of_epochs_go_to_the_data_that_they_are_of(tmp_path: pathlib.Path) -> None:
    train(begun(TensorBoard(tmp_path)), [1, 2], epochs=2)
    assert scalars(tmp_path / "train") == [(0, "epoch_loss", 0.5), (1, "epoch_loss", 0.5)]
    assert scalars(tmp_path / "validation") == [(0, "epoch_loss", 0.25), (1, "epoch_loss", 0.25)]


@pytest.mark.parametrize(
    ("update_freq", "steps"), [("batch", [1, 3, 4, 5, 7, 8]), (1, [1, 3, 4, 5, 7, 8]), (3, [3, 7])]
)
def test_logs_of_batches_are_written_at_their_frequency(
    update_freq: str | int, steps: list[int], tmp_path: pathlib.Path
) -> None:
    train(begun(TensorBoard(tmp_path, update_freq)), [1, 3, 4], epochs=2)
    found = [each for each in scalars(tmp_path / "train") if each[1] != "epoch_loss"]
    assert found == [(step, "batch_loss", 0.5) for step in steps]


def test_each_training_counts_its_own_steps(tmp_path: pathlib.Path) -> None:
    board = TensorBoard(tmp_path, 2)
    for _ in range(2):
        train(begun(board), [1, 2, 3])
    found = [step for step, name, _ in scalars(tmp_path / "train") if name == "batch_loss"]
    assert found == [2, 2]


@pytest.mark.parametrize(("options", "step"), [({}, 12), ({"step": 7}, 7)])
def test_evaluation_outside_of_training_is_written_at_the_step_of_the_values(
    options: dict[str, int], step: int, tmp_path: pathlib.Path
) -> None:
    callbacks = begun(TensorBoard(tmp_path), **options)
    for _ in range(2):
        callbacks.test_end({"loss": 0.5})
    assert scalars(tmp_path / "validation") == [(step, "evaluation_loss_vs_iterations", 0.5)] * 2
    assert not (tmp_path / "train").exists()
    train(callbacks, [])
    callbacks.test_end({"loss": 0.75})
    assert (step, "evaluation_loss_vs_iterations", 0.75) in scalars(tmp_path / "validation")


def test_model_without_optimizer_is_evaluated_at_step_0(tmp_path: pathlib.Path) -> None:
    CallbackList([TensorBoard(tmp_path)], SimpleNamespace()).test_end({"loss": 0.5})
    assert scalars(tmp_path / "validation") == [(0, "evaluation_loss_vs_iterations", 0.5)]


def test_finished_epochs_can_be_read_while_training_goes_on(tmp_path: pathlib.Path) -> None:
    callbacks = begun(TensorBoard(tmp_path))
    callbacks.train_begin()
    callbacks.epoch_begin(0)
    callbacks.epoch_end(0, {"loss": 0.5})
    assert scalars(tmp_path / "train") == [(0, "epoch_loss", 0.5)]
    callbacks.train_error(RuntimeError())


def test_event_file_has_its_version_and_each_event_its_time(tmp_path: pathlib.Path) -> None:
    began_s = time.time()
    file = EventFile(str(tmp_path))
    steps = [0, 127, 128, 300, 1 << 40]
    for step in steps:
        file.write(step, {"a": 0.5, "b" * 200: -1e60})
    file.close()
    file.close()
    version, *written = events(tmp_path)
    assert version[3] == b"brain.Event:2"
    assert all(began_s <= event[1] <= time.time() for event in (version, *written))
    pairs = [[(step, "a", 0.5), (step, "b" * 200, -math.inf)] for step in steps]
    assert scalars(tmp_path) == [scalar for pair in pairs for scalar in pair]
