"""Sets of windows as ranges, compared with plain sets; consumed rows, compared with a model."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataservice.errors import InvalidArgumentError
from dataservice.ranges import Consumed, Ranges

CHANGES = st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(0, 8)), max_size=25)
NOTES = st.lists(
    st.tuples(
        st.sampled_from(["record", "finish", "rewind"]), st.integers(0, 9), st.integers(0, 6)
    ),
    max_size=20,
)
ALL = 99


@given(CHANGES)
def test_ranges_behave_like_sets(changes: list[tuple[bool, int, int]]) -> None:
    ranges, model = Ranges(), set()
    for adds, first, count in changes:
        if adds:
            ranges.add(first, first + count)
            model |= set(range(first, first + count))
        else:
            ranges.discard(first, first + count)
            model -= set(range(first, first + count))
        assert set(ranges) == model
        pairs = ranges.pairs()
        assert all(a < b for a, b in pairs)
        assert all(left[1] < right[0] for left, right in itertools.pairwise(pairs))
        assert [index for index in range(50) if index in ranges] == sorted(model)
        assert len(ranges) == len(model)
        assert list(ranges.gaps(40)) == [index for index in range(40) if index not in model]
        assert ranges.end() == max(model, default=-1) + 1
        lacking = [row for low, high in ranges.missing(5, 25) for row in range(low, high)]
        assert lacking == [index for index in range(5, 25) if index not in model]
        assert Ranges(pairs) == ranges == ranges.copy()


def applied(notes: list[tuple[str, int, int]]) -> tuple[Consumed, dict[int, int]]:
    """Applies notes to a `Consumed` and to a model: consumed rows by window, ALL if done."""
    consumed, model = Consumed(), dict.fromkeys(range(10), 0)
    for what, window, row in notes:
        if what == "record":
            consumed.record(window, row)
            model[window] = max(model[window], row)
        elif what == "finish":
            consumed.finish(window, window + 1)
            model[window] = ALL
        else:
            consumed.rewind(window, row)
            model[window] = min(model[window], row)
    return consumed, model


def rows_of(consumed: Consumed) -> dict[int, int]:
    assert not set(consumed.done) & set(consumed.rows)
    assert all(consumed.rows.values())
    return {w: ALL if w in consumed.done else consumed.rows.get(w, 0) for w in range(10)}


@given(NOTES, NOTES)
def test_consumed_rows_match_model_when_recorded_merged_and_rewound(
    mine: list[tuple[str, int, int]], theirs: list[tuple[str, int, int]]
) -> None:
    consumed, model = applied(mine)
    assert rows_of(consumed) == model
    assert Consumed.from_json(json.loads(json.dumps(consumed.to_json()))) == consumed
    other, other_model = applied(theirs)
    merged = consumed.copy()
    merged.merge(other)
    assert rows_of(merged) == {w: max(model[w], other_model[w]) for w in model}
    assert rows_of(consumed) == model, "a copy shares nothing"


@pytest.mark.parametrize(
    "encoded",
    [
        {},
        {"done": 3, "rows": []},
        {"done": [[2, 1]], "rows": []},
        {"done": [[-1, 1]], "rows": []},
        {"done": [[0, True]], "rows": []},
        {"done": [], "rows": [[0, 0]]},
        {"done": [], "rows": [["a", 1]]},
        {"done": [[0]], "rows": []},
    ],
)
def test_malformed_consumed_position_is_refused(encoded: object) -> None:
    with pytest.raises(InvalidArgumentError, match="malformed position"):
        Consumed.from_json(encoded)  # type: ignore[arg-type]
