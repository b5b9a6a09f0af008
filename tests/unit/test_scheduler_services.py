"""Data services of a lost trainer are known even where it could not name them any more."""

from __future__ import annotations

import itertools

from pstrain.coordinator.core import Core
from pstrain.coordinator.scheduler import Scheduler


def scheduler() -> Scheduler:
    core = Core(attempts_max=3)
    return Scheduler(core, ids=itertools.count(), capacity=4, trainer_timeout_s=1.0)


def test_a_lost_trainer_may_have_read_what_others_read() -> None:
    one = scheduler()
    assert one.reads_services(["a:1"]) == (frozenset({"a:1"}), ())
    services, _ = one.left_by(1, "trainer-1")
    assert services == {"a:1"}


def test_a_service_that_is_named_later_is_told_of_those_lost_before() -> None:
    one = scheduler()
    assert one.left_by(0, "trainer-0") == (frozenset(), {})
    assert one.reads_services(["a:1"]) == (frozenset({"a:1"}), ("trainer-0",))
    assert one.reads_services(["a:1"]) == (frozenset(), ("trainer-0",))
