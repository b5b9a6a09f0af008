"""Plays coordinated reads, seed by seed, and checks every step.

COORDINATED_SEEDS is the number of seeds (default 15); a failure names the command that replays it.
"""

from __future__ import annotations

import os

import pytest

from tests.simulation.coordinated_mutants import COORDINATED_MUTANTS
from tests.simulation.coordinated_scenario import play, staged
from tests.simulation.fibers import Fiber
from tests.simulation.mutants import Mutant
from tests.simulation.noticing import COORDINATED_SEEDS_MAX, noticed_coordinated

SEEDS = int(os.environ.get("COORDINATED_SEEDS", "15"))


def test_consumers_step_together_whatever_fails() -> None:
    with staged():
        outcomes = [play(seed) for seed in range(SEEDS)]
        assert [play(seed) for seed in range(3)] == outcomes[:3]
    kinds = {fault.split()[0] for outcome in outcomes for fault in outcome.faults}
    assert {"kill", "replace", "freeze", "cut", "noise"} <= kinds


@pytest.mark.parametrize("seed", [3164, 3353, 3423])
def test_wait_on_an_offset_clock_ends_at_its_time(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In these seeds less time is left of a wait than can be added to the world's clock."""
    wait, least_s = Fiber.wait, list[float]()

    def note(fiber: Fiber, timeout_s: float | None) -> bool:
        now_s = fiber.node.world.now_s
        if timeout_s is not None and timeout_s > 0 and now_s + timeout_s == now_s:
            least_s.append(timeout_s)
        return wait(fiber, timeout_s)

    monkeypatch.setattr(Fiber, "wait", note)
    with staged():
        play(seed)
    assert least_s


@pytest.mark.parametrize("mutant", COORDINATED_MUTANTS, ids=[m.name for m in COORDINATED_MUTANTS])
def test_mutant_is_noticed(mutant: Mutant) -> None:
    failure = noticed_coordinated(mutant)
    assert failure is not None, f"{mutant.name} survived {COORDINATED_SEEDS_MAX} seeds"
    assert any(sign in str(failure) for sign in mutant.signs), failure
