"""Reader marks of trainers are kept for the loss of a trainer, until their readers are outdated."""

from __future__ import annotations

from typing import Any

from pstrain.coordinator.trainer_marks import TrainerMarks
from pstrain.reader_marks import READERS_KEPT


def test_readers_of_old_epochs_are_forgotten_unless_still_reported() -> None:
    marks = TrainerMarks()
    for epoch in range(READERS_KEPT + 10):
        names = ("always", f"epoch {epoch}")
        marks.note(1, [{"reader": name, "marks": [[epoch]]} for name in names])
    rows = marks.of(1)
    assert len(rows) == READERS_KEPT
    assert rows["always"]["marks"] == [[READERS_KEPT + 9]]
    assert "epoch 0" not in rows


def test_all_readers_of_one_message_are_kept_even_beyond_limit() -> None:
    marks = TrainerMarks()
    marks.note(1, [{"reader": str(n), "marks": []} for n in range(2 * READERS_KEPT)])
    assert len(marks.of(1)) == 2 * READERS_KEPT


def mark(service: str) -> dict[str, Any]:
    return {"reader": f"reader at {service}", "service": service, "marks": [[0, 0, 1, True]]}


def test_no_service_is_told_of_a_trainer_before_what_it_used_is_known() -> None:
    marks = TrainerMarks()
    assert marks.add_services(["a:1"]) == {}
    # A trainer is lost, and servers are asked what it has decided.
    assert marks.add_services(["b:1"]) == {}
    assert marks.record_settled("lost", {}) == {"a:1", "b:1"}
    assert marks.add_services(["c:1", "a:1"]) == {"lost": {"c:1"}}
    assert marks.add_services(["c:1"]) == {}


def test_a_service_of_which_servers_knew_marks_is_not_told_again_without_them() -> None:
    marks = TrainerMarks()
    assert marks.record_settled("one", {"r": mark("b:1")}) == {"b:1"}
    assert marks.record_settled("other", {}) == frozenset()
    assert marks.add_services(["a:1", "b:1"]) == {"one": {"a:1"}, "other": {"a:1", "b:1"}}
