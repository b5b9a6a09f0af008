"""For how many periods the rows of keys were not used."""

from __future__ import annotations

import numpy as np

from pstrain.paramserver.key_uses import KeyUses
from tests.unit.pstrain.paramserver.shard_cases import ids


def test_rows_are_idle_since_the_last_period_in_which_they_were_noted() -> None:
    uses, rows = KeyUses(3), np.arange(3)
    uses.note(ids(0))
    assert uses.idle(rows).tolist() == [0, 0, 0]
    uses.begin(1)
    uses.note(ids(1))
    uses.begin(2)
    uses.note(ids(2))
    assert uses.idle(rows).tolist() == [2, 1, 0]
    assert uses.idle(ids(2, 0)).tolist() == [0, 2]


def test_repeated_begin_of_a_period_is_ignored() -> None:
    uses = KeyUses(1)
    for _ in range(3):
        uses.begin(1)
    assert uses.period == 1
    assert uses.idle(ids(0)).tolist() == [1]


def test_forgotten_uses_count_as_present() -> None:
    uses = KeyUses(2)
    uses.begin(1)
    uses.forget()
    assert uses.idle(ids(0, 1)).tolist() == [0, 0]
    uses.begin(2)
    uses.note(ids(1))
    assert uses.idle(ids(0, 1)).tolist() == [1, 0]


def test_rows_are_unused_since_periods_after_their_last_use() -> None:
    uses, rows = KeyUses(3), ids(0, 1)
    assert uses.unused_since(rows, 0).tolist() == [False, False]
    assert uses.unused_since(rows, 1).tolist() == [True, True]
    uses.begin(1)
    uses.note(ids(1))
    assert uses.unused_since(rows, 1).tolist() == [True, False]
    assert uses.unused_since(rows, 2).tolist() == [True, True]
    uses.begin(2)
    assert uses.unused_since(rows, 1).tolist() == [False, False]
    uses.forget()
    assert uses.unused_since(rows, 2).tolist() == [False, False]
