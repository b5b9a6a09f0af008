"""What a run of a closure takes and changes: which parts a later run makes again."""

from __future__ import annotations

from typing import Any

from pstrain.trainer.staging import ClosureRun
from pstrain.trainer.turns import Turns
from pstrain.vocabulary import StepToken


class Rows:
    def acknowledge(self) -> None: ...

    def marks(self) -> list[dict[str, Any]]:
        return []


def run_after(parts_decided: int) -> ClosureRun:
    return ClosureRun(StepToken("s", 0, 1), lambda run: run.next_part(), parts_decided)


def test_parts_without_elements_are_not_made_again() -> None:
    run = run_after(1)
    run.add(0, {}, None)
    assert run.was_decided
    run.next_part()
    assert not run.was_decided


def test_parts_with_elements_are_made_of_the_new_elements() -> None:
    run, turns = run_after(1), Turns()
    run.take(turns.take(0, Rows(), run))
    assert not run.was_decided
    run.next_part()
    assert (run.part, run.plain) == (1, 0)
    assert run.was_decided
