"""The data services of a lost trainer are known even if it did not get to name them."""

from __future__ import annotations

import itertools

from pstrain.consistency import Sync
from pstrain.coordinator.core import Core
from pstrain.coordinator.events import Reason
from pstrain.coordinator.lost_trainers import Settlement
from pstrain.coordinator.orders import Outbox, RoundOrder, RoundPart, RunResult, Settled
from pstrain.coordinator.scheduler import Scheduler
from pstrain.errors import AbortedError, CancelledError
from pstrain.reader_marks import Marks
from tests.scheduler_invariants import check_invariants


def scheduler() -> Scheduler:
    core = Core(attempts_max=3)
    return Scheduler(core, ids=itertools.count(), capacity=4, trainer_timeout_s=1.0)


def test_lost_trainer_is_assumed_to_have_read_services_named_by_others() -> None:
    one = scheduler()
    assert one.trainers.services_read(["a:1"]) == {}
    assert one.trainers.record_settled("trainer-1", {}) == {"a:1"}


def test_service_named_later_is_told_of_trainers_lost_before() -> None:
    one = scheduler()
    assert one.trainers.record_settled("trainer-0", {}) == frozenset()
    assert one.trainers.services_read(["a:1"]) == {"trainer-0": {"a:1"}}
    assert one.trainers.services_read(["a:1"]) == {}
    assert not one._core.state.is_settled, "what trainer 0 held is yet to be given back"
    one.trainers.released()
    assert one._core.state.is_settled


class Round:
    """A round in which trainer 0 has prepared closure 0, and failed closure 1, while 2 runs.

    It ran both because trainer 1 was lost. ``both``: the mark of the element of closure 1, which
    covers that of closure 0 too. ``is_cancelled``: closure 1 failed because it was cancelled.
    """

    def __init__(self, attempts_max: int = 3, *, is_cancelled: bool = False) -> None:
        self.core = Core(attempts_max=attempts_max, consistency=Sync(), trainer_indices=range(3))
        one = Scheduler(self.core, ids=itertools.count(), capacity=4, trainer_timeout_s=1.0)
        self.scheduler, self.outbox = one, Outbox()
        for trainer in range(3):
            one.trainers.joined(trainer, 1, Outbox() if trainer else self.outbox)
        self.values = [one.submit("step", b"", None) for _ in range(3)]
        one.trainers.silence(1)
        one.trainers.lost(1, Settlement({}, {}, {}))
        first, self.both = ({"reader": "a", "marks": [["window", rows]]} for rows in (1, 2))
        self.prepare(0, RoundPart("trainer-0", (0,), has_gradient=True, marks=(first,)))
        assert self.core.state.running[1].trainer == 0  # in place of trainer 1
        if is_cancelled:
            with self.core.changed:
                self.core.cancel(1, Reason.ASKED)
            one.trainers.cancel_answered(0, 1, 1, is_granted=True)
        self.fail(CancelledError("asked") if is_cancelled else ValueError("made up"))

    def prepare(self, trainer: int, part: RoundPart) -> None:
        end = RunResult(trainer, 0, f"value {trainer}", None, part=part)
        self.scheduler.trainers.results(trainer, [end])

    def fail(self, error: Exception) -> None:
        end = RunResult(1, 1, None, error, needs_settling=True, marks=(self.both,))
        self.scheduler.trainers.results(0, [end])

    def decide(self) -> RoundOrder:
        self.prepare(2, RoundPart("trainer-2", (0,), has_gradient=True))
        order = self.core.orders.get_nowait()
        assert order is not None
        return order

    def lose(self) -> Marks:
        """Loses trainer 0; returns its marks that count."""
        self.scheduler.trainers.silence(0)
        marks = self.scheduler.trainers.marks_of(0)
        self.scheduler.trainers.lost(0, Settlement({}, {}, {}))
        return marks

    def settled(self) -> list[int]:
        """Returns the closures of which trainer 0 was told that their elements are used up."""
        told = []
        while not self.outbox.empty():
            told.append(self.outbox.get_nowait())
        return [closure for each in told if isinstance(each, Settled) for closure in each.closures]


def test_failed_run_ends_with_the_round_of_what_its_trainer_has_prepared() -> None:
    this = Round()
    order = this.decide()
    assert not this.values[1].has_ended
    assert this.settled() == []
    this.scheduler.rounds.applied(order)
    assert isinstance(this.values[1].error, ValueError)
    assert [this.values[closure].fetch(0) for closure in (0, 2)] == ["value 0", "value 2"]
    assert this.settled() == [0, 1]


def test_row_of_failed_run_is_used_up_by_the_round_although_its_trainer_is_lost() -> None:
    this = Round()
    order = this.decide()
    assert this.lose() == {"a": this.both}
    this.scheduler.rounds.applied(order)
    assert isinstance(this.values[1].error, ValueError)


def test_failed_run_whose_trainer_is_lost_before_the_round_runs_again_elsewhere() -> None:
    this = Round()
    assert this.lose() == {}
    assert not this.values[1].has_ended
    assert {0, 1} <= {*this.core.state.waiting, *this.core.state.running}


def test_failed_run_out_of_attempts_reports_the_loss_and_not_its_error() -> None:
    this = Round(attempts_max=2)
    this.lose()
    assert isinstance(this.values[1].error, AbortedError)


def test_no_other_run_is_awaited_by_a_round_with_a_failed_run() -> None:
    this = Round()
    this.scheduler.trainers.silence(2)
    this.scheduler.trainers.lost(2, Settlement({}, {}, {}))
    order = this.core.orders.get_nowait()
    assert order is not None
    assert [closure for closure, _, _ in order.parts] == [0, 1]
    this.scheduler.rounds.applied(order)
    assert isinstance(this.values[2].error, CancelledError)


def test_cancelled_run_ends_with_the_round_and_cancels_no_others() -> None:
    this = Round(is_cancelled=True)
    assert isinstance(this.values[1].error, CancelledError), "its trainer has agreed"
    later = this.scheduler.submit("step", b"", None)
    this.scheduler.rounds.applied(this.decide())
    assert this.settled() == [0, 1]
    assert this.scheduler.counts()["cancelled"] == 1
    assert not later.has_ended


def test_cancelled_run_of_an_undone_round_does_not_run_again() -> None:
    this = Round(is_cancelled=True)
    this.decide()
    this.scheduler.rollback.undo_round()
    assert list(this.core.state.waiting) == [0, 2]
    check_invariants(this.core.state)


def test_iterator_that_is_made_again_has_its_data_asked_for_where_they_had_ended() -> None:
    core, data = Core(attempts_max=3), frozenset({"iterator"})
    one = Scheduler(core, ids=itertools.count(), capacity=4, trainer_timeout_s=1.0)
    for trainer in range(2):
        one.trainers.joined(trainer, 1, Outbox())
    for _ in range(2):
        one.submit("step", b"", None, iterators=data)
    end = RunResult(0, 0, None, IndexError("no rows"), ended_iterators=data)
    one.trainers.results(0, [end])
    assert list(core.state.running) == [1]
    one.add_resource("iterator", b"")
    assert core.state.running[0].trainer == 0
