"""Closures commit in the order of their elements, alone or in groups; none waits for ever."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstrain.trainer import turns
from pstrain.trainer.outgoing import Answers, Pulls
from pstrain.trainer.staging import ClosureRun
from pstrain.trainer.turns import Phase, Ticket, Turns, last_receipts
from pstrain.vocabulary import StepToken


class Receipt:
    def __init__(self, number: int) -> None:
        self.number = number

    def acknowledge(self) -> None: ...

    def marks(self) -> list[dict[str, Any]]:
        return [{"number": self.number}]


class Commits:
    """A committer that records how many servers each part has changed."""

    def __init__(self) -> None:
        self.made: list[int] = []

    def commit_part(self, run: ClosureRun, pulls: Pulls) -> Answers:
        assert not pulls
        self.made.append(len(run.changes))
        run.next_part()
        return {}

    def commit_held(self, run: ClosureRun, pulls: Pulls) -> Answers:  # noqa: ARG002
        raise AssertionError


class Trainer:
    """The runs of a trainer, which take elements and make changes."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.runs: dict[str, ClosureRun] = {}
        self.taken: dict[int, int] = {}

    def take(self, *names: str, source: int = 0) -> None:
        for name in names:
            number = self.taken[source] = self.taken.get(source, -1) + 1
            run = self.run(name)
            run.tickets.append(self.turns.take(source, Receipt(number), run))

    def run(self, name: str) -> ClosureRun:
        token = StepToken("s", len(self.runs), 0)
        return self.runs.setdefault(name, ClosureRun(token, Commits()))

    def change(self, *names: str) -> None:
        for name in names:
            self.run(name).add(0, {}, None)

    def group(self, name: str, *ready: str) -> list[str] | None:
        names = {run: name for name, run in self.runs.items()}
        free = {self.run(each) for each in (name, *ready)}
        found = self.turns.group(self.run(name), free, free)
        return None if found is None else [names[run] for run in found]

    def commit(self, *names: str) -> list[int]:
        tickets = [ticket for name in names for ticket in self.run(name).tickets]
        for name in names:
            self.run(name).next_part()
        return [receipt.number for receipt in self.turns.finish(tickets)]


@pytest.fixture
def trainer() -> Trainer:
    return Trainer()


def test_run_that_took_first_element_commits_first(trainer: Trainer) -> None:
    trainer.take("a", "b")
    trainer.change("a", "b", "c")
    assert trainer.group("b") is None
    assert trainer.group("a") == ["a"]
    assert trainer.group("c") == ["c"]
    assert trainer.commit("a") == [0]
    assert trainer.group("b", "c") == ["b"]


def test_ready_runs_with_the_next_elements_commit_along(trainer: Trainer) -> None:
    trainer.take("a", "b", "c", "d", "e")
    trainer.change("a", "c")
    assert trainer.group("a", "c", "b", "e") == ["a", "b", "c"]
    assert trainer.group("a", "c", "e") == ["a"]
    assert trainer.commit("a", "b", "c") == [2]
    assert trainer.group("d", "e") == ["d", "e"]


def test_run_with_a_later_element_of_another_source_waits_for_that(trainer: Trainer) -> None:
    trainer.take("a", "b")
    trainer.take("c", "b", source=1)
    assert trainer.group("a", "b") == ["a"]
    assert trainer.group("a", "b", "c") == ["a", "c"]


def test_run_without_elements_comes_first_in_its_group(trainer: Trainer) -> None:
    trainer.take("a")
    trainer.change("a", "plain")
    assert trainer.group("plain", "a") == ["plain", "a"]


def test_run_behind_an_end_that_was_sent_commits_along_only_without_changes(
    trainer: Trainer,
) -> None:
    trainer.take("sent", "a", "b")
    (ticket,) = trainer.run("sent").tickets
    ticket.phase = Phase.SENT
    assert trainer.group("a", "b") == ["a", "b"]
    trainer.change("b")
    assert trainer.group("a", "b") == ["a"]


def test_staged_changes_are_committed_before_next_element_is_taken() -> None:
    commits = Commits()
    run = ClosureRun(StepToken("s", 1, 0), commits)
    run.before_take()
    run.add(0, {}, None)
    run.before_take()
    run.before_take()
    assert commits.made == [1]


def test_runs_with_interleaved_elements_commit_together(trainer: Trainer) -> None:
    trainer.take("a", "b", "a", "b")
    trainer.change("a", "b")
    assert trainer.group("a") is None
    assert trainer.group("a", "b") == ["a", "b"] == trainer.group("b", "a")
    assert trainer.commit("a", "b") == [3]


def test_group_is_in_order_of_first_elements(trainer: Trainer) -> None:
    trainer.take("a", "b", "b", "a")
    trainer.change("a", "b")
    assert trainer.group("a", "b") == ["a", "b"]


def test_each_source_has_separate_commit_order(trainer: Trainer) -> None:
    trainer.take("a", source=0)
    trainer.take("b", source=1)
    trainer.change("a", "b")
    assert trainer.group("b") == ["b"]


def test_sources_without_open_tickets_are_forgotten(trainer: Trainer) -> None:
    for source in range(3):
        trainer.take("a", source=source)
        trainer.commit("a")
        assert not trainer.turns._waiting
    trainer.take("b", source=3)
    trainer.turns.withdraw(trainer.run("b").tickets)
    assert not trainer.turns._waiting


def test_source_keeps_order_after_all_its_tickets_were_finished(trainer: Trainer) -> None:
    trainer.take("a")
    trainer.commit("a")
    trainer.take("b", "c")
    trainer.change("b", "c")
    assert trainer.group("c") is None
    assert trainer.group("b") == ["b"]


def test_sent_end_blocks_later_changes_but_not_later_ends(trainer: Trainer) -> None:
    trainer.take("a", "b", "c")
    trainer.change("c")
    sent = list(trainer.run("a").tickets)
    assert trainer.group("a") == ["a"]
    for ticket in sent:
        ticket.phase = Phase.SENT
    assert trainer.group("b") == ["b"]
    trainer.commit("b")
    assert trainer.group("c") is None
    trainer.turns.finish(sent)
    assert trainer.group("c") == ["c"]


def test_sent_end_blocks_group_of_which_only_one_run_has_changes(trainer: Trainer) -> None:
    trainer.take("a", "b", "c", "b", "c")
    trainer.change("c")
    for ticket in trainer.run("a").tickets:
        ticket.phase = Phase.SENT
    assert trainer.group("b", "c") is None


def test_run_waits_for_part_that_is_being_committed(trainer: Trainer) -> None:
    trainer.take("a", "b")
    trainer.change("b")
    part = trainer.run("a").tickets
    trainer.run("a").next_part()
    assert trainer.group("b", "a") is None
    trainer.turns.finish(part)
    assert trainer.group("b", "a") == ["b"]


def test_failed_closure_does_not_block_commit_order(trainer: Trainer) -> None:
    trainer.take("a", "b")
    trainer.change("a", "b")
    trainer.run("a").drop_changes()
    assert not trainer.run("a").has_changes
    assert trainer.commit("a") == [0]
    assert trainer.group("b") == ["b"]


def test_last_receipts_returns_latest_receipt_of_each_source(trainer: Trainer) -> None:
    trainer.take("a", "a", source=0)
    trainer.take("a", source=1)
    trainer.change("a")
    found = [receipt.marks()[0]["number"] for receipt in last_receipts(trainer.run("a").tickets)]
    assert found == [1, 0]
    trainer.take("b", "c", "b", source=2)
    tickets = [ticket for name in "bc" for ticket in trainer.run(name).tickets]
    assert [receipt.marks()[0]["number"] for receipt in last_receipts(tickets)] == [2]


def test_turn_of_closures_with_many_elements_compares_few_of_them(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[Ticket] = []

    class Counted(Ticket):
        def __eq__(self, other: object) -> bool:
            compared.append(self)
            return self is other

        __hash__ = Ticket.__hash__

    monkeypatch.setattr(turns, "Ticket", Counted)
    trainer.take(*("a" * 100 + "b" * 100 + "c" * 100))
    assert trainer.group("a", "b", "c") == ["a", "b", "c"]
    assert len(compared) < 1000


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=40))
def test_ready_runs_all_commit_in_groups_that_form_prefixes(
    steps: list[tuple[str, bool]],
) -> None:
    trainer = Trainer()
    for name, changes in steps:
        trainer.take(name)
        if changes:
            trainer.change(name)
    left = set(trainer.runs)
    done = -1
    while left:
        groups = [found for name in sorted(left) if (found := trainer.group(name, *left))]
        assert groups, "nobody may commit"
        numbers = sorted(t.number for name in groups[0] for t in trainer.run(name).tickets)
        assert numbers == list(range(done + 1, done + 1 + len(numbers)))
        done += len(numbers)
        trainer.commit(*groups[0])
        left -= set(groups[0])
    assert done == len(steps) - 1
