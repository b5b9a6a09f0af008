"""Schedules are functions of their seeds and keep the rules of their module."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.chaos.schedule import (
    DEATH_GAP_S,
    FIXED,
    HEAL_S,
    MAX_DEATHS,
    Action,
    Schedule,
    schedule_of,
)

SEEDS = range(300)
ENDS = {"kill": "start", "freeze": "thaw"}


def random_schedules() -> list[Schedule]:
    return [schedule_of(str(seed)) for seed in SEEDS]


def test_seed_gives_the_same_schedule_each_time() -> None:
    assert random_schedules() == random_schedules()
    assert len({schedule.actions for schedule in random_schedules()}) > 290


def test_fixed_name_gives_its_schedule_and_unknown_name_is_refused() -> None:
    assert all(schedule_of(name) is schedule for name, schedule in FIXED.items())
    with pytest.raises(ValueError, match="invalid literal"):
        schedule_of("unheard-of")


def test_every_fault_ends() -> None:
    for schedule in (*FIXED.values(), *random_schedules()):
        check_ends(schedule)


def check_ends(schedule: Schedule) -> None:
    under_way: dict[str, Action] = {}
    for action in schedule.actions:
        assert 0 <= action.at_s <= HEAL_S
        if action.verb in ("start", "thaw", "heal"):
            began = under_way.pop(action.target)
            assert ENDS.get(began.verb, "heal") == action.verb
        elif action.verb != "cut" and action.target != "doomed":
            assert action.target not in under_way, str(schedule)
            under_way[action.target] = action
    assert not under_way


def test_worker_deaths_are_few_and_far_between() -> None:
    for schedule in random_schedules():
        deaths = [
            action.at_s
            for action in schedule.actions
            if action.verb == "kill" and action.target.startswith("worker")
        ]
        assert len(deaths) <= MAX_DEATHS
        assert all(later - earlier >= DEATH_GAP_S for earlier, later in pairwise(deaths))


def test_all_kinds_of_faults_occur() -> None:
    found = {(a.verb, a.target.split("-")[0]) for s in random_schedules() for a in s.actions}
    links = ("control", "readers", "data")
    verbs = ("hold", "hold-up", "hold-down", "refuse", "delay", "slice", "cut-after", "cut", "heal")
    expected = {(verb, link) for verb in verbs for link in links}
    expected |= {("kill", target) for target in ("worker", "dispatcher", "doomed")}
    expected |= {
        ("freeze", "worker"),
        ("freeze", "dispatcher"),
        ("thaw", "worker"),
        ("start", "worker"),
    }
    assert found >= expected
