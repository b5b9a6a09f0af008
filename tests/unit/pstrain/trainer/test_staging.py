"""The elements and changes of a closure's run, and which parts a later run makes again."""

from __future__ import annotations

from typing import Any

from pstrain.trainer.outgoing import Answers, Pulls
from pstrain.trainer.staging import ClosureRun
from pstrain.trainer.turns import Turns
from pstrain.vocabulary import StepToken


class Rows:
    def acknowledge(self) -> None: ...

    def marks(self) -> list[dict[str, Any]]:
        return []


class Held:
    is_done = False


class Commits:
    """A committer that records which pulls went along with which commit."""

    def __init__(self) -> None:
        self.made: list[tuple[str, Pulls]] = []

    def commit_part(self, run: ClosureRun, pulls: Pulls) -> Answers:
        self.made.append(("part", pulls))
        run.next_part()
        return {}

    def commit_held(self, run: ClosureRun, pulls: Pulls) -> Answers:  # noqa: ARG002
        self.made.append(("held", pulls))
        return {}


def run_after(parts_decided: int) -> ClosureRun:
    return ClosureRun(StepToken("s", 0, 1), Commits(), parts_decided)


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


def test_a_pull_goes_along_with_what_it_would_not_see_otherwise() -> None:
    commits, held = Commits(), Held()
    run = ClosureRun(StepToken("s", 0, 1), commits, held=held)
    pulls: Pulls = {0: ({"kind": "pull"}, None)}
    run.read_with([1], pulls)
    held.is_done = True
    run.read_with([1], pulls)
    run.add(0, {}, None)
    run.touch([1])
    run.read_with([2], pulls)
    run.read_with([2, 1], pulls)
    run.read_with([1], pulls)
    assert commits.made == [("held", pulls), ("part", pulls)]


def test_what_is_read_otherwise_waits_for_the_same() -> None:
    commits = Commits()
    run = ClosureRun(StepToken("s", 0, 1), commits, held=Held())
    run.before_read([1])
    assert commits.made == [("held", {})]
