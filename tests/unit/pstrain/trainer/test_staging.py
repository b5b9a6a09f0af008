"""The elements and changes of a closure's run, and which parts a later run makes again."""

from __future__ import annotations

from typing import Any

import numpy as np

from pstrain.paramserver.messages import LateBody, body_arrays
from pstrain.trainer.outgoing import Answers, Pulls
from pstrain.trainer.staging import ClosureRun, PendingPart, one_message
from pstrain.trainer.turns import Turns
from pstrain.vocabulary import StepToken


class Rows:
    def acknowledge(self) -> None: ...

    def marks(self) -> list[dict[str, Any]]:
        return []


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


def held_part(earlier: PendingPart | None = None) -> PendingPart:
    return PendingPart(run_after(0), None, earlier=earlier)


def run_after(parts_decided: int) -> ClosureRun:
    return ClosureRun(StepToken("s", 0, 1), Commits(), parts_decided)


def test_thread_commits_first_what_it_held_first() -> None:
    first = held_part()
    second = held_part(first)
    third = held_part(second)
    assert third.waiting() == [first, second, third]
    second.is_done = True
    assert third.waiting() == [first, third]
    assert third.earlier is first, "what is done is kept"
    first.is_done = True
    assert third.waiting() == [third]
    third.is_done = True
    assert third.waiting() == []


def test_decided_part_without_elements_is_not_made_again() -> None:
    run = run_after(1)
    run.add(0, {}, None)
    assert run.was_decided
    run.next_part()
    assert not run.was_decided


def test_rerun_part_with_elements_is_made_from_new_elements() -> None:
    run, turns = run_after(1), Turns()
    run.tickets.append(turns.take(0, Rows(), run))
    assert not run.was_decided
    run.next_part()
    assert (run.part, run.plain) == (1, 0)
    assert run.was_decided


def test_pull_carries_commit_only_for_uncommitted_changes_it_would_miss() -> None:
    commits, held = Commits(), held_part()
    run = ClosureRun(StepToken("s", 0, 1), commits, held=held)
    pulls: Pulls = {0: ({"kind": "pull"}, None)}
    run.read_with([1], pulls)
    held.is_done = True
    run.read_with([1], pulls)
    run.add(0, {}, None)
    run.touch([1])
    run.read_with([2], pulls)
    assert commits.made == [("held", pulls)]
    run.read_with([2, 1], pulls)
    run.read_with([1], pulls)
    assert commits.made == [("held", pulls), ("part", pulls)]


def test_read_without_own_or_held_changes_commits_nothing() -> None:
    assert run_after(0).read_with([1], {0: ({"kind": "pull"}, None)}) == {}


def test_only_end_of_own_data_is_met_without_effect() -> None:
    run = run_after(0)
    assert not run.only_met_end(StopIteration())
    run.ended_resources.add("iterator-1")
    assert run.only_met_end(StopIteration())
    assert not run.only_met_end(ValueError())
    run.has_taken = True
    assert not run.only_met_end(StopIteration())


def test_kept_elements_are_given_back_once_the_last_first() -> None:
    class Origin:
        def __init__(self) -> None:
            self.back: list[Any] = []

        def give_back(self, element: Any) -> None:
            self.back.append(element)

    run, origin = run_after(0), Origin()
    for element in "ab":
        run.keep(origin, element)
    for _ in range(2):
        run.give_back()
        assert origin.back == ["b", "a"]


def test_changes_in_one_message_share_a_body() -> None:
    def sent(*bodies: LateBody | None) -> list[list[float]]:
        headers, body = one_message([({"number": n}, each) for n, each in enumerate(bodies)])
        assert headers == [{"number": n} for n in range(len(bodies))]
        if body is None:
            return []
        return [array.tolist() for array in body_arrays(body.to_buffer(), body.parts)]

    first, second = (LateBody.of([np.full(n, n, np.float32)]) for n in (1, 2))
    assert sent(None) == []
    assert sent(None, first) == [[1.0]]
    assert sent(first, None, second) == [[1.0], [2.0, 2.0]]


def test_plain_read_commits_held_part_first() -> None:
    commits = Commits()
    run = ClosureRun(StepToken("s", 0, 1), commits, held=held_part())
    run.before_read([1])
    assert commits.made == [("held", {})]
