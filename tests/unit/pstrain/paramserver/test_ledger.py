"""The ledger applies each change once, whatever the order and number of its messages."""

from __future__ import annotations

import itertools
import json

from hypothesis import given
from hypothesis import strategies as st

from pstrain.paramserver.ledger import Ledger


def test_each_change_is_applied_once() -> None:
    ledger = Ledger()
    assert ledger.add(5, 0)
    assert not ledger.add(5, 0)
    assert ledger.add(5, 1)
    assert ledger.add(4, 0)


def test_closures_below_low_water_mark_are_refused_and_forgotten() -> None:
    ledger = Ledger()
    for closure in range(2000):
        ledger.add(closure, 0)
    assert len(ledger) == 4
    ledger.advance(1800)
    assert len(ledger) == 1
    assert not ledger.add(3, 7)
    assert not ledger.add(1799, 7)
    assert not ledger.add(1800, 0)
    assert ledger.add(1800, 1)
    ledger.advance(2)
    assert not ledger.add(3, 7)


def test_restored_ledger_keeps_saved_and_own_pairs() -> None:
    old, new = Ledger(), Ledger()
    old.add(1, 0)
    old.add(9, 2)
    old.advance(1)
    new.add(9, 1)
    new.restore(json.loads(json.dumps(old.state())))
    assert not new.add(9, 2)
    assert not new.add(9, 1)
    assert not new.add(0, 0)
    assert new.add(9, 0)


_NUMBERS = (0, 1, 510, 511, 512, 513, 1024)
_SEQUENCES = (0, 1, 7, 8, 9)
_CLOSURES = st.sampled_from(_NUMBERS)
_STEPS = st.one_of(
    st.tuples(st.just("add"), _CLOSURES, st.sampled_from(_SEQUENCES)),
    st.tuples(st.just("advance"), _CLOSURES, st.just(0)),
    st.tuples(st.just("restart"), st.just(0), st.just(0)),
)


@given(steps=st.lists(_STEPS, max_size=40))
def test_ledger_matches_set_of_pairs_over_advances_and_restarts(
    steps: list[tuple[str, int, int]],
) -> None:
    ledger, added, mark = Ledger(), set(), 0
    for kind, first, second in steps:
        if kind == "add":
            expected = first >= mark and (first, second) not in added
            assert ledger.add(first, second) == expected
            added.add((first, second))
        elif kind == "advance":
            mark = max(mark, first)
            ledger.advance(first)
        else:
            state, ledger = ledger.state(), Ledger()
            ledger.restore(state)
    for each in itertools.product(_NUMBERS, _SEQUENCES):
        assert ledger.has(*each) == (each[0] < mark or each in added)
