"""Plays the delivery of rows in a small cluster, seed by seed, and checks every step.

SIMULATION_SEEDS is the number of seeds (default 300; CI plays the next 3,000 in addition); a
failure names the command that replays it.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.simulation.base_scenario import Failure
from tests.simulation.checker import Checker
from tests.simulation.mutants import keep_zombies, lose_frames, trust_rows
from tests.simulation.scenario import play, staged
from tests.simulation.shadow import Violation

SEEDS = int(os.environ.get("SIMULATION_SEEDS", "300"))
BLOCK = 100
_PRINT_DIGESTS = """
from tests.simulation.scenario import play
from tests.simulation.scenario import staged
with staged():
    print([play(seed).digest for seed in range(30)])
"""

# Tests that look at the same seeds share their outcomes.
played = functools.cache(play)


@pytest.fixture(autouse=True)
def _stage() -> Iterator[None]:
    with staged():
        yield


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_every_row_arrives_once_whatever_fails(first: int) -> None:
    for seed in range(first, min(first + BLOCK, SEEDS)):
        played(seed)


def test_seed_gives_the_same_outcome_each_time() -> None:
    assert [play(seed) for seed in range(40)] == [played(seed) for seed in range(40)]


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_outcomes_do_not_depend_on_the_hash_seed(hash_seed: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PRINT_DIGESTS],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert done.stdout.strip() == str([played(seed).digest for seed in range(30)])


def test_most_seeds_have_faults_and_all_kinds_occur() -> None:
    outcomes = [played(seed) for seed in range(100)]
    assert sum(bool(outcome.faults) for outcome in outcomes) > 50
    kinds = {fault.split()[0] for outcome in outcomes for fault in outcome.faults}
    assert {"kill", "freeze", "cut", "reset", "noise", "corrupt", "join", "close"} <= kinds


def test_failure_names_the_replay_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_self: Checker, _node: object, _delivery: object) -> None:
        raise Violation("I1: made up")

    monkeypatch.setattr(Checker, "delivered", refuse)
    with pytest.raises(Failure, match=r"I1: made up\nreplay: python -m tests.simulation.replay 7"):
        play(7)


@pytest.mark.parametrize("defence", [lose_frames, trust_rows, keep_zombies])
def test_removing_one_defence_alone_breaks_nothing(
    defence: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ensures that a failure of a mutant without this defence is due to the mutant itself."""
    defence(monkeypatch)
    for seed in range(100):
        play(seed)
