"""A pass that is dealt: every element is named once, also over positions and losses."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from pstrain.execution.dealing import DealtPass, Range


class Readers:
    """What a coordinator has of the iterators on its trainers."""

    def __init__(self) -> None:
        self.epoch = 0
        self.begun = 0

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch = state["epoch"]

    def rewind(self) -> None:
        self.begun += 1


class Closure:
    has_value = False


def new_pass() -> DealtPass:
    return DealtPass(Readers())  # type: ignore[arg-type]


def resumed(state: dict[str, Any]) -> DealtPass:
    later = new_pass()
    later.load_state_dict(json.loads(json.dumps(state)))
    return later


def test_ranges_follow_each_other() -> None:
    elements = new_pass()
    assert [elements.deal(count) for count in (8, 3, 8)] == [(0, 8), (8, 3), (11, 8)]


def test_what_was_out_comes_first_after_a_resume_and_what_had_ended_does_not() -> None:
    elements = new_pass()
    closures = [Closure() for _ in range(4)]
    for closure in closures:
        elements.note_out(elements.deal(8), closure)
    elements.note_done(Range(0, 8))
    closures[2].has_value = True  # its report was not heard yet
    later = resumed(elements.state_dict())
    assert later.has_returned
    assert [later.deal(8) for _ in range(3)] == [(8, 8), (24, 8), (32, 8)]
    assert not later.has_returned


def test_a_returned_range_is_dealt_in_parts_where_less_is_asked_for() -> None:
    later = resumed({"epoch": 2, "next": 40, "again": [[8, 8]]})
    assert later.epoch == 2
    assert [later.deal(3) for _ in range(4)] == [(8, 3), (11, 3), (14, 2), (40, 3)]


def test_a_position_of_other_data_begins_the_epoch() -> None:
    later = resumed({"epoch": 3, "reader": {"row": 7}})
    assert (later.epoch, later.deal(4)) == (3, (0, 4))


def test_rewound_it_begins_again() -> None:
    elements = new_pass()
    elements.note_out(elements.deal(4), Closure())
    elements.rewind()
    assert elements.state_dict() == {"epoch": 0, "next": 0, "again": []}
    assert elements.readers.begun == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", range(20))
def test_each_element_is_done_once_over_any_number_of_resumes(seed: int) -> None:
    choose = random.Random(seed)
    elements, done, size = new_pass(), [], 200
    out: dict[Range, Closure] = {}
    while len(done) < size:
        event = choose.random()
        running = [dealt for dealt, closure in out.items() if not closure.has_value]
        if event < 0.5 or not running:
            dealt = elements.deal(choose.randint(1, 9))
            out[dealt] = Closure()
            elements.note_out(dealt, out[dealt])
        elif event < 0.8:
            dealt = choose.choice(running)
            out[dealt].has_value = True
            done += range(dealt.start, min(sum(dealt), size))
            # The report of some is not heard before the position is asked for.
            if choose.random() < 0.7:
                del out[dealt]
                elements.note_done(dealt)
        elif event < 0.85:
            elements, out = resumed(elements.state_dict()), {}
    assert sorted(done) == list(range(size))
