"""Reader marks of trainers are kept for the loss of a trainer, until their readers are outdated."""

from __future__ import annotations

from pstrain.coordinator.trainer_marks import TrainerMarks
from pstrain.reader_marks import READERS_KEPT


def test_readers_of_old_epochs_are_forgotten_unless_still_reported() -> None:
    marks = TrainerMarks()
    for epoch in range(READERS_KEPT + 10):
        names = ("always", f"epoch {epoch}")
        marks.note(1, [{"reader": name, "marks": [[epoch]]} for name in names])
    _, rows = marks.record_loss(1, "t")
    assert len(rows) == READERS_KEPT
    assert rows["always"]["marks"] == [[READERS_KEPT + 9]]
    assert "epoch 0" not in rows


def test_all_readers_of_one_message_are_kept_even_beyond_limit() -> None:
    marks = TrainerMarks()
    marks.note(1, [{"reader": str(n), "marks": []} for n in range(2 * READERS_KEPT)])
    assert len(marks.record_loss(1, "t")[1]) == 2 * READERS_KEPT
