"""Plays a training cluster that loses parameter servers and restores its checkpoints.

RESTORE_SEEDS is the number of seeds (default 60, at least 20). Half as many are played in rounds,
with bounded staleness and with failing closures each; a fifth as many lose a second server while
rounds are made again, or more servers in a restore. A failure names the command that replays it.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from pstrain.coordinator import rounds, waits
from pstrain.coordinator.events import Event
from pstrain.coordinator.state import CoordinatorState
from tests.simulation.base_scenario import Outcome
from tests.simulation.hard_restores import play_hard_restores
from tests.simulation.mutants import Mutant
from tests.simulation.noticing import ALL_RESTORE_MUTANTS, RESTORE_SEEDS_MAX, noticed_restores
from tests.simulation.second_losses import play_second_losses
from tests.simulation.training_restores import PreemptedRecovery
from tests.simulation.training_scenario import (
    play_failing_restores,
    play_restores,
    play_ssp_restores,
    play_sync_restores,
    staged,
)

SEEDS = max(20, int(os.environ.get("RESTORE_SEEDS", "60")))
RULED_SEEDS = SEEDS // 2
SECOND_LOSS_SEEDS = SEEDS // 5


def test_closures_and_rows_count_once_whatever_is_lost() -> None:
    with staged():
        outcomes = [play_restores(seed) for seed in range(SEEDS)]
        assert [play_restores(seed) for seed in range(5)] == outcomes[:5]
    faults = [fault for outcome in outcomes for fault in outcome.faults]
    assert sum(fault.startswith("kill ps") for fault in faults) > SEEDS / 5


@pytest.mark.parametrize("play", [play_sync_restores, play_ssp_restores, play_failing_restores])
def test_consistency_rule_holds_and_values_are_exact_whatever_is_lost(
    play: Callable[[int], Outcome],
) -> None:
    with staged():
        outcomes = [play(seed) for seed in range(RULED_SEEDS)]
        assert [play(seed) for seed in range(3)] == outcomes[:3]
    faults = [fault for outcome in outcomes for fault in outcome.faults]
    assert sum(fault.startswith("kill ps") for fault in faults) > RULED_SEEDS / 5


def test_rerun_rounds_keep_their_closures_when_a_second_server_is_lost() -> None:
    with staged():
        outcomes = [play_second_losses(seed) for seed in range(SECOND_LOSS_SEEDS)]
        assert play_second_losses(0) == outcomes[0]
    assert sum(len(outcome.faults) == 2 for outcome in outcomes) > SECOND_LOSS_SEEDS / 2


def test_restore_survives_further_losses_and_saves_that_end_meanwhile() -> None:
    with staged():
        outcomes = [play_hard_restores(seed) for seed in range(SECOND_LOSS_SEEDS)]
        assert play_hard_restores(0) == outcomes[0]
    faults = [fault for outcome in outcomes for fault in outcome.faults]
    assert sum(fault.startswith("kill ps") for fault in faults) > SECOND_LOSS_SEEDS


@pytest.mark.parametrize("seed", [1507, 2060])
def test_save_waiting_for_a_round_does_not_block_a_restore(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    undo_round, undone = rounds.undo_round, list[bool]()

    def note(state: CoordinatorState) -> tuple[Event, ...]:
        events = undo_round(state)
        undone.append(bool(events))
        return events

    monkeypatch.setattr(rounds, "undo_round", note)
    with staged():
        play_sync_restores(seed)
    assert any(undone), "a round is under way when a restore begins"


@pytest.mark.parametrize(("play", "seed"), [(play_restores, 275), (play_ssp_restores, 55)])
def test_program_continues_when_a_restore_began_at_its_end(
    play: Callable[[int], Outcome], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_intact, begins_at_end = PreemptedRecovery.check_intact, list[bool]()

    def note(recovery: PreemptedRecovery) -> None:
        check_intact(recovery)
        begins_at_end.append(recovery.node.world.data.is_over and recovery.is_restoring)

    monkeypatch.setattr(PreemptedRecovery, "check_intact", note)
    with staged():
        play(seed)
    assert any(begins_at_end)


def test_program_goes_back_after_a_restore_that_began_while_a_save_ended() -> None:
    with staged():
        outcome = play_hard_restores(34_000_066)
    assert sum(fault.startswith("kill ps") for fault in outcome.faults) == 2


def test_wait_for_a_trainer_lost_in_a_restore_ends_at_its_timeout() -> None:
    with staged():
        outcome = play_sync_restores(112)
    assert outcome.seconds > waits.ABSENT_TIMEOUT_S
    assert any(fault.startswith("kill for good") for fault in outcome.faults)


@pytest.mark.parametrize(
    "mutant", ALL_RESTORE_MUTANTS, ids=[each.name for each in ALL_RESTORE_MUTANTS]
)
def test_mutant_is_noticed(mutant: Mutant) -> None:
    failure = noticed_restores(mutant)
    assert failure is not None, f"{mutant.name} survived {RESTORE_SEEDS_MAX} seeds"
    assert any(sign in str(failure) for sign in mutant.signs), failure
