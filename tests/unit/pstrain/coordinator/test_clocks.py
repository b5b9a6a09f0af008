"""Clocks of live trainers: the least one while trainers join, work, leave and come back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pstrain.coordinator.clocks import Clocks

TRAINERS = st.integers(0, 4)
SETS = st.tuples(TRAINERS, st.integers(0, 5))


@given(st.lists(SETS | st.tuples(TRAINERS, st.none())), st.sets(TRAINERS))
def test_clocks_behave_like_a_dict(steps: list[tuple[int, int | None]], left_out: set[int]) -> None:
    """None: the trainer leaves, though it may not be there."""
    clocks, twin = Clocks(), dict[int, int]()
    for trainer, clock in steps:
        if clock is None:
            clocks.discard(trainer)
            twin.pop(trainer, None)
        else:
            clocks[trainer] = clock
            twin[trainer] = clock
        slowest = min(twin.values(), default=0)
        assert clocks.slowest == slowest
        others = [clock for trainer, clock in twin.items() if trainer not in left_out]
        assert clocks.slowest_but(left_out) == min(others, default=slowest)
        assert {t: clocks[t] for t in range(5) if t in clocks} == twin


def test_clock_counts_up() -> None:
    clocks = Clocks()
    for trainer in range(2):
        clocks[trainer] = clocks.slowest
    for trainer, slowest in ((0, 0), (0, 0), (1, 1), (1, 2)):
        clocks[trainer] += 1
        assert clocks.slowest == slowest
    assert clocks[0] == 2
