"""Deliberate mistakes in coordinated reads, each of which the simulation must notice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dataservice.client.rounds import RoundTracker
from dataservice.dispatcher import roll_call, rounds
from dataservice.dispatcher import round_events as facts
from dataservice.dispatcher.requests import Decision
from dataservice.dispatcher.round_table import RoundTable
from dataservice.worker.rounds import RoundBuffer
from tests.simulation.mutants import Mutant

Patch = pytest.MonkeyPatch

COORDINATED_MUTANTS: list[Mutant] = []


def mutant(*signs: str) -> Callable[[Callable[[Patch], None]], None]:
    def note(apply: Callable[[Patch], None]) -> None:
        COORDINATED_MUTANTS.append(Mutant(apply.__name__, apply, signs))

    return note


# Roll calls


@mutant("C4", "C1", "C2")
def reports_before_a_roll_call_count_in_it(patch: Patch) -> None:
    original = rounds.mark

    def mark(state: Any, request: Any) -> Decision:
        roll = rounds.table_of(state.iterations[request.iteration_id]).roll
        return original(state, replace(request, roll=roll))

    patch.setattr(rounds, "mark", mark)


@mutant("C4", "C1")
def roll_call_does_not_wait_for_absent_consumers(patch: Patch) -> None:
    patch.setattr(RoundTable, "absent", lambda _self: ())


@mutant("C4", "C1")
def consumers_do_not_stop_in_a_roll_call(patch: Patch) -> None:
    original = RoundTracker.apply_answer

    def apply_answer(self: Any, report: Any, answer: Any) -> bool:
        complete = max(answer.complete, self._answer.complete)
        return original(self, report, answer._replace(complete=complete))

    patch.setattr(RoundTracker, "apply_answer", apply_answer)


@mutant("C1", "C4", "C2")
def returning_consumer_begins_at_the_furthest_round(patch: Patch) -> None:
    original = roll_call._begins

    def begins(table: RoundTable) -> list[int]:
        furthest = max(table.consumed)
        return [
            furthest if index in table.newcomers else begin
            for index, begin in enumerate(original(table))
        ]

    patch.setattr(roll_call, "_begins", begins)


@mutant("C4")
def consumers_skip_different_numbers_of_rounds(patch: Patch) -> None:
    def align(state: Any, iteration_id: Any, table: RoundTable) -> Decision:
        if not table.is_calling_roll or table.missing() or table.absent():
            return Decision(())
        end = roll_call._end_of_lost(state, table)
        begins = tuple(max(begin, end) for begin in roll_call._begins(table))
        return Decision((facts.RoundsAligned(iteration_id=iteration_id, begins=begins),))

    patch.setattr(roll_call, "align", align)


@mutant("C5")
def lost_rounds_are_not_skipped(patch: Patch) -> None:
    patch.setattr(roll_call, "_end_of_lost", lambda _state, _table: 0)


@mutant("I5")
def compaction_forgets_returning_consumers(patch: Patch) -> None:
    original = RoundTable.to_json
    patch.setattr(RoundTable, "to_json", lambda self: {**original(self), "newcomers": []})


# Rounds


@mutant("C1", "C3", "I5", "fails")
def number_of_complete_rounds_can_decrease(patch: Patch) -> None:
    def record_progress(self: RoundTable) -> None:
        self.complete = min(self.received)
        self.blocks = [block for block in self.blocks if block.end > self.low]

    patch.setattr(RoundTable, "_record_progress", record_progress)


@mutant("C1", "C3")
def void_rounds_are_delivered(patch: Patch) -> None:
    patch.setattr(RoundTracker, "_drop_void", lambda _self: None)


@mutant("C1", "C3", "C5")
def reports_before_the_loss_of_a_worker_count(patch: Patch) -> None:
    original = rounds.mark

    def mark(state: Any, request: Any) -> Decision:
        version = rounds.table_of(state.iterations[request.iteration_id]).version
        return original(state, replace(request, version=version))

    patch.setattr(rounds, "mark", mark)


@mutant("C1", "C3")
def workers_give_each_consumer_the_next_group(patch: Patch) -> None:
    def held(self: Any, _number: int, _generation: int) -> Any:
        if not self._ahead:
            return None
        self._changed.notify_all()
        return self._ahead.popleft()

    patch.setattr(RoundBuffer, "_group_locked", held)


@mutant("C5")
def workers_drop_rounds_before_all_consumers_have_them(patch: Patch) -> None:
    original = RoundBuffer._group_locked

    def held(self: Any, number: int, generation: int) -> Any:
        known = number in self._given
        group = original(self, number, generation)
        self._low = max(self._low, number if known else 0)
        return group

    patch.setattr(RoundBuffer, "_group_locked", held)
