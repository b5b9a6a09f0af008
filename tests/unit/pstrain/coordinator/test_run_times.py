"""How many closures may queue at a trainer, given how long earlier ones took."""

from __future__ import annotations

from pstrain.coordinator.run_times import AHEAD_MAX, AHEAD_S, RunTimes


def _run_times(*seconds: float) -> RunTimes:
    run_times = RunTimes()
    for each in seconds:
        run_times.note("f", each)
    return run_times


def test_no_closure_queues_ahead_before_several_runs_of_its_function_ended() -> None:
    assert _run_times(*[0.0] * 7).ahead("f") == 0
    assert _run_times(*[0.0] * 8).ahead("f") == AHEAD_MAX
    assert _run_times(*[0.0] * 8).ahead("g") == 0


def test_ahead_count_follows_longest_of_latest_runs() -> None:
    assert _run_times(*[AHEAD_S / 20] * 8).ahead("f") == 21
    assert _run_times(*[0.0] * 8, AHEAD_S / 10).ahead("f") == 11
    assert _run_times(AHEAD_S / 10, *[0.0] * 8).ahead("f") == AHEAD_MAX
    assert _run_times(*[2 * AHEAD_S] * 8).ahead("f") == 0


def test_remembered_functions_are_bounded() -> None:
    run_times = RunTimes()
    for number in range(8 * 2000):
        run_times.note(str(number // 8), 0.0)
    assert len(run_times._latest) == len(run_times._ahead) <= 1024
    for _ in range(8):
        run_times.note("new", 0.0)
    assert run_times.ahead("new") == AHEAD_MAX


def test_ahead_count_grows_with_slots_of_trainer() -> None:
    run_times = RunTimes(3)
    for _ in range(8):
        run_times.note("f", AHEAD_S / 10)
    assert run_times.ahead("f") == 33
    run_times.note("f", 2.9 * AHEAD_S)
    assert run_times.ahead("f") == 4
    run_times.note("f", 3.1 * AHEAD_S)
    assert run_times.ahead("f") == 0


def test_ahead_count_is_capped_at_ahead_max() -> None:
    assert _run_times(*[AHEAD_S / (AHEAD_MAX - 0.5)] * 8).ahead("f") == AHEAD_MAX


def test_largest_ahead_count_is_that_of_any_function() -> None:
    run_times = RunTimes()
    assert run_times.ahead_max == 0
    for function_id, seconds in (("f", AHEAD_S / 10), ("g", AHEAD_S / 20), ("h", 2 * AHEAD_S)):
        for _ in range(8):
            run_times.note(function_id, seconds)
    assert run_times.ahead_max == run_times.ahead("g") == 21


def test_largest_ahead_count_costs_nothing_for_functions_that_are_not_sent_ahead() -> None:
    assert _run_times(*[0.0] * 8)._ahead
    assert not _run_times(*[0.0] * 7)._ahead
    assert not _run_times(*[0.0] * 8, 2 * AHEAD_S)._ahead
