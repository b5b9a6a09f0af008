"""Which functions count as quick."""

from __future__ import annotations

from pstrain.coordinator.paces import QUICK_S, Paces


def test_a_function_is_quick_after_short_runs_until_a_long_one() -> None:
    paces = Paces()
    for _ in range(7):
        paces.note("f", QUICK_S / 2)
    assert not paces.is_quick("f")
    paces.note("f", 0.0)
    assert paces.is_quick("f")
    assert not paces.is_quick("g")
    paces.note("f", QUICK_S)
    assert not paces.is_quick("f")


def test_functions_without_end_take_bounded_memory() -> None:
    paces = Paces()
    for number in range(5000):
        paces.note(str(number), 0.0)
    assert len(paces._short) <= 1024
