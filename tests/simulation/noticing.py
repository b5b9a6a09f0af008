"""Finds a life (seed) in which a mutant is noticed, and looks first where it was noticed before.

`NOTICED_IN` only saves time: if a mutant is not noticed in that life, because the protocol or the
scenario has changed since, all lives are searched. `python -m tests.simulation.noticing` prints the
table anew. Invariants: a mutant counts as surviving only after all lives were played, and as
noticed only in a life that passes without the mutant.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation import (
    coordinated_scenario,
    hard_restores,
    membership_mutants,
    mutants,
    quarantine_mutants,
    scenario,
    second_losses,
    snapshot_scenario,
    training_scenario,
)
from tests.simulation.base_scenario import Failure
from tests.simulation.consistency_mutants import SSP_MUTANTS, SYNC_MUTANTS
from tests.simulation.coordinated_mutants import COORDINATED_MUTANTS
from tests.simulation.loop_mutants import LOOP_MUTANTS
from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.restore_mutants import (
    FAILING_RESTORE_MUTANTS,
    HARD_RESTORE_MUTANTS,
    RESTORE_MUTANTS,
    SECOND_LOSS_MUTANTS,
    SSP_RESTORE_MUTANTS,
    SYNC_RESTORE_MUTANTS,
)
from tests.simulation.snapshot_mutants import SNAPSHOT_MUTANTS
from tests.simulation.training_mutants import TRAINING_MUTANTS

DELIVERY_LIVES = 3_000
COORDINATED_LIVES = 500
CONSISTENCY_LIVES = 500
LOOP_LIVES = 500
TRAINING_LIVES = 1_500
RESTORE_LIVES = 1_500
SNAPSHOT_LIVES = 800

ALL_RESTORE_MUTANTS = (
    *RESTORE_MUTANTS,
    *SYNC_RESTORE_MUTANTS,
    *SSP_RESTORE_MUTANTS,
    *FAILING_RESTORE_MUTANTS,
    *SECOND_LOSS_MUTANTS,
    *HARD_RESTORE_MUTANTS,
)

DELIVERY_MODULES = (mutants, membership_mutants, quarantine_mutants)
"""The modules that define MUTANTS; importing one adds its mutants."""

# The life in which a mutant is noticed, for mutants that the first lives do not reveal.
NOTICED_IN = {
    "reader_accepts_old_generations": 2415,
    "reader_answers_fences_and_goes_on": 2415,
    "replay_forgets_releases": 199,
    "lost_workers_are_not_fenced": 160,
    "owners_are_forgotten_when_a_lease_ends": 226,
    "what_a_dead_reader_received_counts_as_consumed": 2594,
    "a_new_stream_leaves_old_leases_alone": 166,
    "a_worker_outliving_its_lease_fails_its_readers": 2302,
    "time_outs_do_not_follow_the_intervals": 1858,
    "who_was_last_heard_somewhere_counts_as_standing_there": 25,
    "nobody_is_waited_for_in_a_roll_call": 30,
    "consumers_do_not_stop": 64,
    "one_that_is_ahead_is_caught_up_with": 193,
    "lost_rounds_are_waited_for": 85,
    "a_shortened_journal_forgets_who_came_back": 9,
    "complete_rounds_move_too": 30,
    "what_was_received_of_a_lost_worker_counts": 64,
    "the_mean_is_over_those_who_changed_something_here": 11,
    "rounds_are_made_anew_of_whatever_waits": 131,
    "a_round_that_a_lost_server_broke_off_stands": 117,
    "a_save_ends_a_round_that_is_scheduled_in_part": 33,
    "what_a_late_run_took_is_not_given_back": 5,
    "late_runs_count_all_the_same": 14,
    "lost_trainers_are_fenced_in_the_middle_of_a_round": 178,
    "what_was_made_is_made_again": 6,
    "closures_of_a_decided_round_run_again_with_their_trainer": 178,
    "who_is_free_first_runs_the_next_closure": 13,
    "old_streams_speak_for_new_sessions": 1317,
    "parts_that_were_undone_are_not_made_again": 131,
    "parts_in_a_checkpoint_are_made_again": 4107,
    "who_joins_in_a_restore_stays_in_the_old_session": 285,
    "what_ended_beside_a_lost_server_counts": 998,
    "what_was_told_ends_with_another_error": 335,
    "the_program_goes_back_before_everything_else_is_back": 76,
    "attempts_write_over_each_other": 1122,
    "contents_are_not_synced": 57,
    "names_are_not_synced": 221,
    "whoever_begins_takes_the_folder": 287,
    "windows_of_lost_workers_stay_theirs": 11,
    "a_lost_answer_is_not_given_again": 16,
    "writers_outlive_their_snapshot": 22,
    "who_is_to_write_done_is_waited_for_for_ever": 11,
    "returned_closures_forget_their_trainer": 238,
    "live_readers_get_rows_again_from_what_they_consumed": 122,
    "reader_keeps_rows_it_has": 30,
    "who_finds_no_seat_never_asks_again": 44,
    "requests_of_given_up_streams_are_served": 76,
    "repeated_requests_get_new_windows": 30,
    "windows_that_were_begun_begin_anew": 56,
    "a_worker_of_which_a_stream_broke_stays_accused": 147,
    "any_word_of_a_worker_acquits_it": 46,
    "who_comes_back_begins_with_the_furthest": 44,
    "void_rounds_are_handed_out": 9,
    "fences_let_everything_through": 6,
    "late_results_of_lost_trainers_count": 6,
    "who_needs_what_was_cancelled_waits_on": 23,
    "what_was_noted_of_a_part_is_told_with_the_next_one_too": 17,
    "what_a_lost_trainers_closure_noted_is_not_heard": 17,
    "only_what_was_noted_last_is_heard": 17,
    "parts_with_elements_count_as_decided": 254,
    "who_is_refused_fails_those_that_commit_with_it": 10,
    "what_is_given_up_is_not_told": 52,
    "a_save_waits_for_no_closure": 12,
    "what_a_lost_trainer_decided_can_be_cancelled": 3978,
    "what_was_made_in_part_can_be_cancelled": 388,
    "replies_that_were_lost_are_not_asked_for_again": 6,
    "a_restore_overlooks_what_is_being_saved": 43,
    "who_comes_back_counts_as_the_furthest": 245,
}


def noticed_delivery(mutant: Mutant) -> Failure | None:
    """Returns the failure that reveals a mistake in the delivery of rows; None if it survives."""
    with scenario.staged(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(scenario, "POISONED", mutant.poisoned)
        return _noticed(scenario.play, mutant, DELIVERY_LIVES)


def noticed_coordinated(mutant: Mutant) -> Failure | None:
    """Returns the failure that reveals a mistake in coordinated reads; None if it survives."""
    with coordinated_scenario.staged():
        return _noticed(coordinated_scenario.play, mutant, COORDINATED_LIVES)


def noticed_training(mutant: Mutant) -> Failure | None:
    """Returns the failure that reveals a mistake in training; None if it survives."""
    with training_scenario.staged():
        return _noticed(training_scenario.play, mutant, TRAINING_LIVES)


def noticed_consistency(mutant: Mutant) -> Failure | None:
    """Returns the failure that reveals a mistake in a consistency rule; None if it survives."""
    play = training_scenario.play_sync if mutant in SYNC_MUTANTS else training_scenario.play_ssp
    with training_scenario.staged():
        return _noticed(play, mutant, CONSISTENCY_LIVES)


def noticed_loops(mutant: Mutant) -> Failure | None:
    """Returns the failure that reveals a mistake about a loop's end; None if it survives."""
    with training_scenario.staged():
        return _noticed(training_scenario.play_loops, mutant, LOOP_LIVES)


def noticed_restores(mutant: Mutant) -> Failure | None:
    """Returns the failure that reveals a mistake in restoring checkpoints; None if it survives."""
    with training_scenario.staged():
        play = training_scenario.play_restores
        if mutant in SYNC_RESTORE_MUTANTS:
            play = training_scenario.play_sync_restores
        if mutant in SSP_RESTORE_MUTANTS:
            play = training_scenario.play_ssp_restores
        if mutant in FAILING_RESTORE_MUTANTS:
            play = training_scenario.play_failing_restores
        if mutant in SECOND_LOSS_MUTANTS:
            play = second_losses.play_second_losses
        if mutant in HARD_RESTORE_MUTANTS:
            play = hard_restores.play_hard_restores
        return _noticed(play, mutant, RESTORE_LIVES)


def noticed_snapshots(mutant: Mutant) -> Failure | None:
    """Returns the failure that reveals a mistake in saving datasets; None if it survives."""
    with snapshot_scenario.staged():
        return _noticed(snapshot_scenario.play, mutant, SNAPSHOT_LIVES)


def _noticed(play: Callable[[int], object], mutant: Mutant, lives: int) -> Failure | None:
    """Returns the mutant's first failure; AssertionError if that life fails without it as well."""
    with pytest.MonkeyPatch.context() as patch:
        mutant.apply(patch)
        failure = _first_failure(play, mutant, lives)
    if failure is not None:
        try:
            play(failure.seed)
        except Failure as clean:
            raise AssertionError(f"a life fails without {mutant.name} too: {clean}") from clean
    return failure


def _first_failure(play: Callable[[int], object], mutant: Mutant, lives: int) -> Failure | None:
    known = NOTICED_IN.get(mutant.name)
    for seed in [*([] if known is None else [known]), *range(lives)]:
        try:
            play(seed)
        except Failure as failure:
            return failure
    return None


def main() -> None:
    NOTICED_IN.clear()
    kinds = (
        (noticed_delivery, MUTANTS),
        (noticed_coordinated, COORDINATED_MUTANTS),
        (noticed_training, TRAINING_MUTANTS),
        (noticed_consistency, [*SYNC_MUTANTS, *SSP_MUTANTS]),
        (noticed_loops, LOOP_MUTANTS),
        (noticed_restores, ALL_RESTORE_MUTANTS),
        (noticed_snapshots, SNAPSHOT_MUTANTS),
    )
    for noticed, each in kinds:
        for mutant in each:
            failure = noticed(mutant)
            print(f'    "{mutant.name}": {None if failure is None else failure.seed},', flush=True)


if __name__ == "__main__":
    main()
