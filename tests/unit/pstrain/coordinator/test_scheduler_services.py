"""The data services of a lost trainer are known even if it did not get to name them."""

from __future__ import annotations

import itertools

from pstrain.consistency import Sync
from pstrain.coordinator.core import Core
from pstrain.coordinator.lost_trainers import Settlement
from pstrain.coordinator.orders import Outbox, RoundPart, RunResult
from pstrain.coordinator.scheduler import Scheduler


def scheduler() -> Scheduler:
    core = Core(attempts_max=3)
    return Scheduler(core, ids=itertools.count(), capacity=4, trainer_timeout_s=1.0)


def test_lost_trainer_is_assumed_to_have_read_services_named_by_others() -> None:
    one = scheduler()
    assert one.trainers.services_read(["a:1"]) == (frozenset({"a:1"}), ())
    services, _ = one.trainers.record_loss(1, "trainer-1")
    assert services == {"a:1"}


def test_service_named_later_is_told_of_trainers_lost_before() -> None:
    one = scheduler()
    assert one.trainers.record_loss(0, "trainer-0") == (frozenset(), {})
    assert one.trainers.services_read(["a:1"]) == (frozenset({"a:1"}), ("trainer-0",))
    assert one.trainers.services_read(["a:1"]) == (frozenset(), ())


def test_failed_replacement_run_consumes_no_rows_of_prepared_closure() -> None:
    core = Core(attempts_max=3, consistency=Sync(), trainer_indices=range(3))
    one = Scheduler(core, ids=itertools.count(), capacity=4, trainer_timeout_s=1.0)
    for trainer in range(3):
        one.trainers.joined(trainer, 1, Outbox())
    for _ in range(3):
        one.submit("step", b"", None)
    one.trainers.silence(1)
    one.trainers.lost(1, Settlement({}, {}, {}))
    first, both = ({"reader": "a", "marks": [["window", rows]]} for rows in (1, 2))
    part = RoundPart("trainer-0", (0,), has_gradient=True, marks=(first,))
    one.trainers.results(0, [RunResult(0, 0, None, None, part=part)])
    assert core.state.running[1].trainer == 0  # in place of trainer 1; 2 holds up the round
    one.trainers.results(0, [RunResult(1, 1, None, ValueError("made up"), marks=(both,))])
    assert one.trainers.record_loss(0, "trainer-0")[1] == {}


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
