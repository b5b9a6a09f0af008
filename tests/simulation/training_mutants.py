"""Deliberate mistakes in the training protocol, each of which the simulation must notice.

A mutant changes one decision of the real code. If a second defence hides the mistake, the
mutant removes that defence as well and names it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pstrain.coordinator import decide, lost_trainers, settling
from pstrain.coordinator.dependencies import Dependencies
from pstrain.coordinator.priority_queue import PriorityQueue
from pstrain.coordinator.state import CoordinatorState
from pstrain.coordinator.trainer_interface import TrainerInterface
from pstrain.paramserver import requests
from pstrain.paramserver.commits import Commits, FenceReport, _Trainer
from pstrain.paramserver.ledger import Ledger
from pstrain.paramserver.messages import Call
from pstrain.trainer import decisions
from pstrain.trainer.cancelling import Cancelling, OpenRuns
from pstrain.trainer.client import RemoteParameters
from pstrain.trainer.committing import Committer
from pstrain.trainer.left_commits import LeftCommits
from pstrain.trainer.service import TrainerService
from pstrain.trainer.staging import ClosureRun, note
from pstrain.trainer.turns import Turns
from tests.simulation import training_closures
from tests.simulation.mutants import Mutant
from tests.simulation.training_wires import Connections

Patch = pytest.MonkeyPatch

TRAINING_MUTANTS: list[Mutant] = []


def mutant(
    *signs: str, defences_off: str = ""
) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    def note(apply: Callable[[Patch], None]) -> Callable[[Patch], None]:
        TRAINING_MUTANTS.append(Mutant(apply.__name__, apply, signs, defences_off))
        return apply

    return note


# Servers


@mutant("I7", "I8")
def servers_decide_without_a_record(patch: Patch) -> None:
    original = Commits.decide

    def decide_only(self: Any, trainer: str, key: Any, _entries: Any, rows: Any = ()) -> bool:
        return bool(original(self, trainer, key, (), rows))

    patch.setattr(Commits, "decide", decide_only)


@mutant("I7")
def repeated_requests_are_applied_twice(patch: Patch) -> None:
    patch.setattr(Ledger, "add", lambda _self, _closure, _sequence: True)


@mutant("I7", "I1")
def fences_let_lost_trainers_through(patch: Patch) -> None:
    def fence(self: Any, trainer: str) -> FenceReport:
        left = self._fenced.setdefault(trainer, self._live(trainer))
        return left.report()

    def live(self: Any, trainer: str) -> Any:
        return self._trainers.setdefault(trainer, _Trainer())

    patch.setattr(Commits, "fence", fence)
    patch.setattr(Commits, "_live", live)


@mutant("I1", "I7")
def fence_reports_omit_rows(patch: Patch) -> None:
    original = Commits.fence
    patch.setattr(Commits, "fence", lambda self, trainer: original(self, trainer)._replace(rows={}))


# Trainers


@mutant("I1")
def rows_are_acknowledged_when_taken(patch: Patch) -> None:
    original = Committer.take

    def take(self: Committer, run: Any, source: int, receipt: Any) -> None:
        original(self, run, source, receipt)
        receipt.acknowledge()

    patch.setattr(Committer, "take", take)


@mutant("I1")
def rows_of_later_closures_are_acknowledged_with_an_earlier_one(patch: Patch) -> None:
    def group(_self: Turns, run: Any, *_ready: Any) -> list[Any]:
        return [run]

    def finish(_self: Turns, tickets: Any) -> list[Any]:
        return [ticket.receipt for ticket in tickets]

    patch.setattr(Turns, "group", group)
    patch.setattr(Turns, "finish", finish)


@mutant("I8", "I7", "I12")
def commit_messages_are_not_sent(patch: Patch) -> None:
    original = RemoteParameters.exchange_with

    def exchange(self: Any, messages: Any, pulls: Any) -> Any:
        kept = {ps: each for ps, each in messages.items() if each[0]["kind"] != "commit"}
        return original(self, kept, pulls)

    patch.setattr(RemoteParameters, "exchange_with", exchange)


@mutant("I7", "I8")
def closures_are_reported_when_they_are_decided(patch: Patch) -> None:
    original = Committer._commit_changes

    def commit(self: Any, group: Any, ended: Any, pulls: Any, answers: Any) -> None:
        original(self, group, [], pulls, answers)
        self._report(ended)

    patch.setattr(Committer, "_commit_changes", commit)


@mutant("I12")
def closures_that_run_alone_leave_commits(patch: Patch) -> None:
    original = Committer.__init__

    def init(self: Any, *args: Any) -> None:
        original(self, *args)
        self._is_side_by_side = True

    patch.setattr(Committer, "__init__", init)


@mutant("I10", "I7")
def commits_of_refused_messages_are_forgotten(patch: Patch) -> None:
    patch.setattr(LeftCommits, "put_back", lambda _self, _taken: None)


@mutant("I10", "I7")
def commits_that_were_left_need_another_message(patch: Patch) -> None:
    patch.setattr(Committer, "_commit_left", lambda _self, _until_s=0.0: None)


@mutant("gone", "I8", "I7", "I1", "ClosureRun")
def trainer_goes_on_after_an_unknown_outcome(patch: Patch) -> None:
    patch.setattr(Committer, "_check_open", lambda _self: None)

    patch.setattr(Committer, "_hand_over", lambda _self, _error: None)


@mutant("I7", "I1")
def results_are_sent_before_their_part_is_decided(patch: Patch) -> None:
    original = Committer._hold

    def hold(self: Any, run: Any, result: Any) -> Any:
        self._send([result])
        return original(self, run, result)

    patch.setattr(Committer, "_hold", hold)


@mutant("I7", "I1")
def last_held_closure_is_dropped_and_its_result_sent(patch: Patch) -> None:
    original = Committer.flush

    def flush(self: Any, held: Any) -> None:
        if len(self._pending) > 1:
            original(self, held)
        elif not held.is_done:
            self._send([held.result])

    patch.setattr(Committer, "flush", flush)
    patch.setattr(Committer, "_commit_overdue", lambda _self: False)


@mutant("I12")
def other_servers_are_read_before_the_decision(patch: Patch) -> None:
    original, ask = RemoteParameters.exchange_with, RemoteParameters._ask

    def exchange(self: Any, messages: Any, pulls: Any) -> Any:
        if any(header["kind"] == "commit" for header, _ in messages.values()):
            return original(self, messages, {})
        early = ask(self, {ps: self._request(*pulls[ps]) for ps in pulls if ps not in messages})
        return {**early, **original(self, messages, pulls)}

    patch.setattr(RemoteParameters, "exchange_with", exchange)


@mutant("I12")
def pulls_are_answered_before_the_commit_sent_with_them(patch: Patch) -> None:
    def both(store: Any, call: Any) -> Any:
        read = requests._or_refused(requests.answer, store, Call(call.header["then"], None))
        done = requests._or_refused(requests.answer, store, Call(call.header["first"], None))
        return {"first": done[0], "then": read[0]}, read[1]

    patch.setitem(requests._HANDLERS, "both", both)


@mutant("I7", defences_off="what was decided is not decided again")
def combined_request_runs_its_first_part_twice(patch: Patch) -> None:
    original = requests._both

    def both(store: Any, call: Any) -> Any:
        requests._or_refused(requests.answer, store, Call(call.header["first"], None))
        return original(store, call)

    patch.setattr(Ledger, "add", lambda _self, _closure, _sequence: True)
    patch.setitem(requests._HANDLERS, "both", both)


@mutant("I10", defences_off="what is overdue is committed by a thread of its own")
def idle_threads_never_commit_held_closures(patch: Patch) -> None:
    patch.setattr(Committer, "flush", lambda _self, _held: None)
    patch.setattr(Committer, "_commit_overdue", lambda _self: False)


@mutant("I10")
def overdue_closures_are_not_committed(patch: Patch) -> None:
    patch.setattr(Committer, "_commit_overdue", lambda _self: False)


@mutant("I10")
def pulling_threads_wait_for_their_turn(patch: Patch) -> None:
    original = Committer._wait_for_turn

    def wait(self: Any, pending: Any, *, patiently: bool) -> Any:  # noqa: ARG001
        return original(self, pending, patiently=True)

    patch.setattr(Committer, "_wait_for_turn", wait)


@mutant("I10", "I1")
def held_closures_that_fail_are_forgotten(patch: Patch) -> None:
    def forget(_self: Any, member: Any, _error: Exception) -> bool:
        member.result = None
        return False

    patch.setattr(Committer, "_hold_as_failed", forget)


@mutant("I13")
def refused_closure_fails_its_whole_group(patch: Patch) -> None:
    patch.setattr(
        Committer, "_failed_members", lambda _self, group, error: dict.fromkeys(group, error)
    )


@mutant("I7")
def decided_parts_are_made_again(patch: Patch) -> None:
    patch.setattr(ClosureRun, "was_decided", property(lambda _self: False))


@mutant("I1")
def notes_of_a_part_are_sent_with_the_next_one_too(patch: Patch) -> None:
    original = ClosureRun.next_part

    def next_part(self: ClosureRun) -> None:
        notes = self.notes
        original(self)
        self.notes = notes

    patch.setattr(ClosureRun, "next_part", next_part)


@mutant("I16")
def notes_without_room_are_dropped_and_closures_go_on(patch: Patch) -> None:
    patch.setattr(training_closures, "note", lambda step: note(step) or True)


@mutant("I7", "I16")
def parts_with_elements_count_as_decided(patch: Patch) -> None:
    original = decisions._entry

    def was_decided(self: Any) -> bool:
        return bool(self.part < self._parts_decided and not self.tickets)

    patch.setattr(ClosureRun, "was_decided", property(was_decided))
    patch.setattr(decisions, "_entry", lambda member: [*original(member)[:4], member.run.part + 1])


@mutant("I10")
def requests_of_old_sessions_are_served(patch: Patch) -> None:
    original = TrainerService._current

    def current(self: Any, request: Any) -> Any:
        return self._session or original(self, request)

    patch.setattr(TrainerService, "_current", current)


@mutant("I7")
def cancelled_runs_are_committed(patch: Patch) -> None:
    patch.setattr(OpenRuns, "is_cancelled", lambda _self, _run: False)


@mutant("I7")
def runs_within_a_commit_can_be_cancelled(patch: Patch) -> None:
    def cancel(self: Any, key: Any) -> bool:
        return key in self._open

    patch.setattr(Cancelling, "cancel", cancel)


# The coordinator


@mutant("I7")
def closures_decided_by_a_lost_trainer_can_be_cancelled(patch: Patch) -> None:
    original = decide.lose_trainer

    def lose(state: Any, trainer: int, decided: Any = None, *, attempts_max: int) -> Any:
        known = {c: found for c, found in (decided or {}).items() if c not in state.cancelling}
        return original(state, trainer, known, attempts_max=attempts_max)

    patch.setattr(decide, "lose_trainer", lose)


@mutant("I14", "NoneType")
def closures_do_not_wait_for_their_inputs(patch: Patch) -> None:
    original = decide.schedule

    def schedule(
        state: Any, closure: int, trainer: Any = None, *_inputs: Any, **options: Any
    ) -> Any:
        return original(state, closure, trainer, **options)

    patch.setattr(decide, "schedule", schedule)


@mutant("I10")
def dependants_of_cancelled_closures_wait_on(patch: Patch) -> None:
    patch.setattr(Dependencies, "dependants_of", lambda _self, _closures: iter(()))


@mutant("I15")
def closures_start_in_arrival_order_whatever_the_priority(patch: Patch) -> None:
    def order(self: PriorityQueue) -> Any:
        return iter(sorted([*self._plain, *(c for each in self._others.values() for c in each)]))

    patch.setattr(PriorityQueue, "__iter__", order)


@mutant("I7")
def partly_committed_closures_can_be_cancelled(patch: Patch) -> None:
    original = decide.cancel

    def cancel(state: Any, closure: int, reason: Any) -> Any:
        part = state.parts.pop(closure, None)
        decision = original(state, closure, reason)
        if part is not None:
            state.parts[closure] = part
        return decision

    patch.setattr(decide, "cancel", cancel)


@mutant("I7", "I8", "I1")
def decisions_of_lost_trainers_are_not_requested(patch: Patch) -> None:
    patch.setattr(
        settling, "settle_servers", lambda _servers, _name: lost_trainers.Settlement({}, {}, {})
    )


@mutant("I16")
def notes_of_interrupted_closures_are_ignored(patch: Patch) -> None:
    original = lost_trainers._end_of
    patch.setattr(
        lost_trainers,
        "_end_of",
        lambda parts: None if parts[-1][3] is None else original(parts),
    )


@mutant("I16")
def only_the_last_notes_of_a_lost_closure_count(patch: Patch) -> None:
    original = lost_trainers._end_of
    patch.setattr(lost_trainers, "_end_of", lambda parts: original(parts[-1:]))


@mutant("I8", "I7", "I12")
def decided_commits_are_not_completed(patch: Patch) -> None:
    original = RemoteParameters.complete

    def complete(self: Any, trainer: str, keys: Any) -> None:
        original(self, trainer, {ps: [] for ps in keys})

    patch.setattr(RemoteParameters, "complete", complete)


@mutant("I7")
def closures_committed_by_a_lost_trainer_run_again(patch: Patch) -> None:
    original = decide.lose_trainer

    def lose(state: Any, trainer: int, _decided: Any = None, *, attempts_max: int) -> Any:
        return original(state, trainer, attempts_max=attempts_max)

    patch.setattr(decide, "lose_trainer", lose)


@mutant("bound")
def returned_closures_lose_their_bound_trainer(patch: Patch) -> None:
    original = CoordinatorState._leave_trainer

    def leave(self: CoordinatorState, closure: int) -> Any:
        self.queues.bound.pop(closure, None)
        return original(self, closure)

    patch.setattr(CoordinatorState, "_leave_trainer", leave)


@mutant("I7", "I1", "I10")
def low_water_mark_runs_ahead(patch: Patch) -> None:
    original = TrainerInterface.low_water
    patch.setattr(TrainerInterface, "low_water", lambda self: original(self) + 3)


@mutant("I7", "I1", defences_off="servers refuse what a lost trainer still does")
def late_results_of_lost_trainers_count(patch: Patch) -> None:
    fences_let_lost_trainers_through(patch)
    patch.setattr(decide, "is_current", lambda state, closure, *_run: closure in state.running)


@mutant("gone", "ClosureRun")
def lost_replies_are_not_requested_again(patch: Patch) -> None:
    original = Connections.ask

    def ask(self: Any, requests: Any, timeout_s: float, *, repeat: bool) -> Any:  # noqa: ARG001
        return original(self, requests, timeout_s, repeat=False)

    trainer_goes_on_after_an_unknown_outcome(patch)
    patch.setattr(Connections, "ask", ask)
