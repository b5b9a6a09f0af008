"""Readings that trainers report are kept in case a trainer is lost, as long as they are of use."""

from __future__ import annotations

from pstrain.coordinator.trainer_marks import TrainerMarks
from pstrain.reader_marks import READERS_KEPT


def test_readers_of_epochs_long_past_are_forgotten_and_one_still_heard_of_is_not() -> None:
    marks = TrainerMarks()
    for epoch in range(READERS_KEPT + 10):
        names = ("always", f"epoch {epoch}")
        marks.note(1, [{"reader": name, "marks": [[epoch]]} for name in names])
    _, rows = marks.record_loss(1, "t")
    assert len(rows) == READERS_KEPT
    assert rows["always"]["marks"] == [[READERS_KEPT + 9]]
    assert "epoch 0" not in rows


def test_readers_of_one_message_are_kept_however_many() -> None:
    marks = TrainerMarks()
    marks.note(1, [{"reader": str(n), "marks": []} for n in range(2 * READERS_KEPT)])
    assert len(marks.record_loss(1, "t")[1]) == 2 * READERS_KEPT
