"""Clocks of live trainers: the least one while trainers join, work, leave and come back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pstrain.coordinator.clocks import Clocks

TRAINERS = st.integers(0, 4)
STEPS = st.tuples(st.sampled_from(["set", "discard", "leave out", "count"]), TRAINERS)


@given(st.lists(st.tuples(STEPS, st.integers(0, 5))))
def test_clocks_behave_like_a_dict(steps: list[tuple[tuple[str, int], int]]) -> None:
    """Steps may name trainers that are not there, or are left out already."""
    clocks, twin, left_out, most = Clocks(), dict[int, int](), set[int](), 0
    for (step, trainer), clock in steps:
        slowest = clocks.slowest
        match step:
            case "set":
                clocks[trainer] = twin[trainer] = clock
                most = max(most, clock)
            case "discard":
                clocks.discard(trainer)
                twin.pop(trainer, None)
                left_out.discard(trainer)
            case "leave out":
                clocks.leave_out(trainer)
                left_out |= {trainer} & twin.keys()
            case "count":
                clocks.count(trainer)
                if trainer in left_out:
                    twin[trainer] = max(twin[trainer], slowest)
                    left_out.discard(trainer)
        counted = {t: clock for t, clock in twin.items() if t not in left_out}
        assert clocks.slowest == min(counted.values(), default=most if twin else 0)
        for each in twin:
            others = [clock for t, clock in counted.items() if t != each]
            least = clocks.slowest if each in left_out else twin[each]
            own = max(twin[each], least)
            assert clocks[each] == own
            assert clocks.slowest_but(each) == min(others, default=own)
        assert {t for t in range(5) if t in clocks} == twin.keys()


def test_trainer_that_was_left_out_is_not_behind_the_others_once_it_is_counted() -> None:
    clocks = Clocks()
    for trainer, clock in enumerate((3, 5, 9)):
        clocks[trainer] = clock
    for trainer in (0, 2):
        clocks.leave_out(trainer)
    assert clocks.slowest == 5
    assert clocks[0] == 5
    clocks.count_all()
    assert [clocks[trainer] for trainer in range(3)] == [5, 5, 9]


def test_trainers_begin_together_after_all_were_left_out() -> None:
    clocks = Clocks()
    clocks[0], clocks[1] = 7, 2
    for trainer in (0, 1):
        clocks.leave_out(trainer)
    assert clocks.slowest == 7
    clocks.count_all()
    assert [clocks[0], clocks[1]] == [7, 7]


def test_clock_counts_up() -> None:
    clocks = Clocks()
    for trainer in range(2):
        clocks[trainer] = clocks.slowest
    for trainer, slowest in ((0, 0), (0, 0), (1, 1), (1, 2)):
        clocks[trainer] += 1
        assert clocks.slowest == slowest
    assert clocks[0] == 2
