"""How many closures may queue at a trainer, given how long earlier ones took."""

from __future__ import annotations

from pstrain.coordinator.paces import AHEAD_MAX, AHEAD_S, Paces


def _paces(*seconds: float) -> Paces:
    paces = Paces()
    for each in seconds:
        paces.note("f", each)
    return paces


def test_nothing_goes_ahead_before_several_runs_have_ended() -> None:
    assert _paces(*[0.0] * 7).ahead("f") == 0
    assert _paces(*[0.0] * 8).ahead("f") == AHEAD_MAX
    assert _paces(*[0.0] * 8).ahead("g") == 0


def test_the_longest_of_the_latest_runs_counts() -> None:
    assert _paces(*[AHEAD_S / 20] * 8).ahead("f") == 21
    assert _paces(*[0.0] * 8, AHEAD_S / 10).ahead("f") == 11
    assert _paces(AHEAD_S / 10, *[0.0] * 8).ahead("f") == AHEAD_MAX
    assert _paces(*[2 * AHEAD_S] * 8).ahead("f") == 0


def test_what_is_remembered_is_bounded() -> None:
    paces = Paces()
    for number in range(5000):
        paces.note(str(number), 0.0)
    assert len(paces._latest) <= 1024


def test_who_runs_several_side_by_side_may_have_so_many_times_more() -> None:
    paces = Paces(3)
    for _ in range(8):
        paces.note("f", AHEAD_S / 10)
    assert paces.ahead("f") == 33
    paces.note("f", 2.9 * AHEAD_S)
    assert paces.ahead("f") == 4
    paces.note("f", 3.1 * AHEAD_S)
    assert paces.ahead("f") == 0


def test_no_more_wait_than_two_messages_have() -> None:
    assert _paces(*[AHEAD_S / (AHEAD_MAX - 0.5)] * 8).ahead("f") == AHEAD_MAX
