"""Plays a small training cluster, seed by seed, and checks every step.

TRAINING_SEEDS is the number of seeds (default 100; CI plays more in addition); a failure names the
command that replays it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator

import pytest

from tests.simulation.base_scenario import Failure
from tests.simulation.shadow import Violation
from tests.simulation.training_checker import TrainingChecker
from tests.simulation.training_scenario import play, staged

SEEDS = int(os.environ.get("TRAINING_SEEDS", "100"))
BLOCK = 50

# Tests that look at the same seeds share their outcomes.
played = functools.cache(play)


@pytest.fixture(autouse=True)
def _stage() -> Iterator[None]:
    with staged():
        yield


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_closures_and_rows_count_once_whatever_fails(first: int) -> None:
    for seed in range(first, min(first + BLOCK, SEEDS)):
        played(seed)


def test_seed_gives_the_same_outcome_each_time() -> None:
    assert [play(seed) for seed in range(10)] == [played(seed) for seed in range(10)]


def test_most_seeds_have_faults_and_all_kinds_occur() -> None:
    outcomes = [played(seed) for seed in range(60)]
    assert sum(bool(outcome.faults) for outcome in outcomes) > 30
    kinds = {fault.split()[0] for outcome in outcomes for fault in outcome.faults}
    assert kinds == {"kill", "freeze", "cut", "reset", "noise"}


def test_failure_names_the_replay_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_self: TrainingChecker, _ps: int, _tag: object) -> None:
        raise Violation("I7: made up")

    monkeypatch.setattr(TrainingChecker, "apply", refuse)
    replay = r"I7: made up\nreplay: python -m tests.simulation.replay --training 7"
    with pytest.raises(Failure, match=replay):
        play(7)
