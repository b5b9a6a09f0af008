"""Finds a seed with which a mutant is noticed, and tries first that of an earlier search.

`NOTICED_IN` only saves time: if a mutant is not noticed with that seed, because the protocol or the
scenario has changed since, all seeds are tried. `python -m tests.simulation.noticing` prints the
table anew. Invariants: a mutant counts as surviving only after all seeds were played, and as
noticed only with a seed that passes without the mutant.
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

DELIVERY_SEEDS_MAX = 3_000
COORDINATED_SEEDS_MAX = 500
CONSISTENCY_SEEDS_MAX = 500
LOOP_SEEDS_MAX = 500
TRAINING_SEEDS_MAX = 1_500
RESTORE_SEEDS_MAX = 1_500
SNAPSHOT_SEEDS_MAX = 800

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

# The seed with which a mutant is noticed, for mutants that the first seeds do not reveal.
NOTICED_IN = {
    "reader_accepts_old_generations": 2415,
    "reader_answers_fences_without_obeying_them": 2415,
    "replay_forgets_releases": 199,
    "lost_workers_are_not_fenced": 160,
    "release_forgets_the_owner_of_a_window": 226,
    "rows_received_by_lost_readers_count_as_consumed": 2594,
    "new_stream_does_not_fence_old_leases": 166,
    "worker_with_expired_lease_fails_its_readers": 1118,
    "timeouts_ignore_heartbeat_intervals": 1858,
    "reports_before_a_roll_call_count_in_it": 25,
    "roll_call_does_not_wait_for_absent_consumers": 30,
    "consumers_do_not_stop_in_a_roll_call": 64,
    "consumers_skip_different_numbers_of_rounds": 193,
    "lost_rounds_are_not_skipped": 85,
    "compaction_forgets_returning_consumers": 9,
    "number_of_complete_rounds_can_decrease": 30,
    "reports_before_the_loss_of_a_worker_count": 64,
    "gradient_mean_is_over_the_updates_of_one_server": 11,
    "requeued_closures_forget_their_rounds": 131,
    "interrupted_round_is_not_undone": 117,
    "save_seals_a_partly_scheduled_round": 33,
    "late_runs_do_not_give_rows_back": 5,
    "aborted_changes_are_applied": 14,
    "lost_trainers_are_fenced_within_a_round": 178,
    "applied_changes_are_applied_again": 6,
    "closures_of_a_decided_round_rerun_when_their_trainer_is_lost": 178,
    "closures_are_assigned_in_reverse_trainer_order": 13,
    "requests_of_old_sessions_are_served": 1317,
    "undone_parts_still_count_as_made": 131,
    "restore_forgets_the_parts_in_a_checkpoint": 4107,
    "trainer_joining_in_a_restore_keeps_the_old_session": 285,
    "results_sent_with_a_lost_server_error_count": 2583,
    "reported_closures_are_cancelled_by_another_error": 27,
    "program_rolls_back_before_the_restore_is_complete": 654,
    "attempts_share_chunk_names": 1122,
    "file_contents_are_not_synced": 3,
    "folders_are_not_synced": 221,
    "metadata_of_another_snapshot_is_overwritten": 287,
    "windows_of_lost_workers_are_not_freed": 11,
    "lost_lease_reply_is_not_repeated": 12,
    "writers_outlive_their_snapshot": 12,
    "lost_worker_keeps_the_task_of_writing_done": 11,
    "returned_closures_lose_their_bound_trainer": 238,
    "released_windows_restart_at_row_zero": 122,
    "reader_accepts_duplicate_rows": 30,
    "refused_long_polls_never_ask_again": 44,
    "late_lease_requests_of_old_streams_are_served": 76,
    "repeated_lease_requests_get_new_windows": 30,
    "resume_restarts_partly_consumed_windows": 56,
    "workers_are_never_acquitted": 147,
    "any_call_of_a_worker_acquits_it": 46,
    "returning_consumer_begins_at_the_furthest_round": 44,
    "void_rounds_are_delivered": 9,
    "fences_let_lost_trainers_through": 6,
    "late_results_of_lost_trainers_count": 6,
    "dependants_of_cancelled_closures_wait_on": 23,
    "notes_of_a_part_are_sent_with_the_next_one_too": 206,
    "notes_of_interrupted_closures_are_ignored": 75,
    "only_the_last_notes_of_a_lost_closure_count": 206,
    "parts_with_elements_count_as_decided": 254,
    "refused_closure_fails_its_whole_group": 10,
    "give_up_does_not_stop_new_closures": 52,
    "closures_decided_by_a_lost_trainer_can_be_cancelled": 3978,
    "partly_committed_closures_can_be_cancelled": 388,
    "lost_replies_are_not_requested_again": 6,
    "restore_ignores_a_save_in_progress": 43,
    "services_are_told_of_lost_trainers_before_servers_are_asked": 36100436,
    "joining_trainer_gets_the_furthest_clock": 172,
    "repeated_requests_are_applied_twice": 14,
    "notes_without_room_are_dropped_and_closures_go_on": 17,
    "decided_commits_are_not_completed": 11,
    "ssp_waits_for_exhausted_trainers": 44,
    "sync_rounds_wait_for_exhausted_trainers": 58,
    "rows_returned_by_a_lost_trainer_are_not_looked_for": 259,
    "ends_met_before_a_loss_count_after_it": 627,
    "marks_of_an_end_count_before_its_round": 232,
    "fit_ends_although_a_restore_is_due": 20,
    "restore_may_begin_after_the_end_of_fit": 20,
    "assignment_waits_until_an_error_is_raised": 24,
    "ssp_waits_for_lost_trainers": 12,
    "repeated_save_request_starts_another_snapshot": 22,
    "new_ordered_reader_waits_for_windows_done_before_it": 49,
    "returned_windows_count_as_lookahead": 34,
}


def noticed_delivery(mutant: Mutant) -> Failure | None:
    """Returns the failure that reveals a mistake in the delivery of rows; None if it survives."""
    with scenario.staged(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(scenario, "POISONED", mutant.poisoned)
        return _noticed(scenario.play, mutant, DELIVERY_SEEDS_MAX)


def noticed_coordinated(mutant: Mutant) -> Failure | None:
    """Returns the failure that reveals a mistake in coordinated reads; None if it survives."""
    with coordinated_scenario.staged():
        return _noticed(coordinated_scenario.play, mutant, COORDINATED_SEEDS_MAX)


def noticed_training(mutant: Mutant) -> Failure | None:
    """Returns the failure that reveals a mistake in training; None if it survives."""
    with training_scenario.staged():
        return _noticed(training_scenario.play, mutant, TRAINING_SEEDS_MAX)


def noticed_consistency(mutant: Mutant) -> Failure | None:
    """Returns the failure that reveals a mistake in a consistency rule; None if it survives."""
    play = training_scenario.play_sync if mutant in SYNC_MUTANTS else training_scenario.play_ssp
    with training_scenario.staged():
        return _noticed(play, mutant, CONSISTENCY_SEEDS_MAX)


def noticed_loops(mutant: Mutant) -> Failure | None:
    """Returns the failure that reveals a mistake about a loop's end; None if it survives."""
    with training_scenario.staged():
        return _noticed(training_scenario.play_loops, mutant, LOOP_SEEDS_MAX)


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
        return _noticed(play, mutant, RESTORE_SEEDS_MAX)


def noticed_snapshots(mutant: Mutant) -> Failure | None:
    """Returns the failure that reveals a mistake in saving datasets; None if it survives."""
    with snapshot_scenario.staged():
        return _noticed(snapshot_scenario.play, mutant, SNAPSHOT_SEEDS_MAX)


def _noticed(play: Callable[[int], object], mutant: Mutant, seeds: int) -> Failure | None:
    """Returns the mutant's first failure; AssertionError if that seed fails without it as well."""
    with pytest.MonkeyPatch.context() as patch:
        mutant.apply(patch)
        failure = _first_failure(play, mutant, seeds)
    if failure is not None:
        try:
            play(failure.seed)
        except Failure as clean:
            raise AssertionError(f"a seed fails without {mutant.name} too: {clean}") from clean
    return failure


def _first_failure(play: Callable[[int], object], mutant: Mutant, seeds: int) -> Failure | None:
    known = NOTICED_IN.get(mutant.name)
    for seed in [*([] if known is None else [known]), *range(seeds)]:
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
