"""A dealt pass: every element is dealt once, also across saved positions and lost trainers."""

from __future__ import annotations

import json
import random
import sys
import threading
from typing import Any

import pytest

import dataservice as ds
from pstrain.errors import InvalidArgumentError
from pstrain.execution import element_ranges
from pstrain.execution.dealing import DealtDataset, DealtPass, Range
from pstrain.execution.element_ranges import Bookmark, RangeReader

DATA = ds.Dataset.range(1_000).batch(4)


class Trainers:
    """The part of a coordinator that manages iterators on its trainers."""

    num_trainers = 2

    def __init__(self) -> None:
        self.open: dict[str, tuple[Any, ...]] = {}

    def define_resource(self, resource_id: str, source: tuple[Any, ...]) -> None:
        self.open[resource_id] = source

    def drop_resource(self, resource_id: str) -> None:
        self.open.pop(resource_id, None)

    def note_iterator(self, iterator: object) -> None: ...

    def positions(self, resource_id: str) -> Any:
        raise NotImplementedError


class Closure:
    has_value = False


def new_pass(data: ds.Dataset = DATA) -> DealtPass:
    return iter(DealtDataset(data, Trainers()))


def resumed(state: dict[str, Any], data: ds.Dataset = DATA) -> DealtPass:
    later = new_pass(data)
    later.load_state_dict(json.loads(json.dumps(state)))
    return later


def test_dealt_ranges_are_consecutive() -> None:
    elements = new_pass()
    assert [elements.deal(most) for most in (8, 3, 8)] == [(0, 8), (8, 3), (11, 8)]


def test_each_iter_starts_next_epoch_even_after_loading_position() -> None:
    data = DealtDataset(DATA, Trainers())
    assert [iter(data).epoch for _ in range(2)] == [0, 1]
    elements = iter(data)
    elements.load_state_dict({"epoch": 5})
    assert [elements.epoch, elements.readers.epoch, iter(data).epoch] == [5, 5, 6]
    assert iter(DealtDataset(DATA, Trainers(), 3)).epoch == 3


def test_ranges_in_flight_are_dealt_first_after_resume_and_ended_ones_not_again() -> None:
    elements = new_pass()
    closures = [Closure() for _ in range(4)]
    for closure in closures:
        elements.note_scheduled(elements.deal(8), closure)
    elements.note_done(Range(0, 8))
    closures[2].has_value = True  # its report has not been read yet
    elements.deal(8)  # no closure has this range yet
    later = resumed(elements.state_dict())
    assert later.has_returned
    assert [later.deal(8) for _ in range(4)] == [(8, 8), (24, 8), (32, 8), (40, 8)]
    assert not later.has_returned


def test_returned_range_is_split_when_fewer_elements_are_requested() -> None:
    elements = new_pass()
    elements.deal(8)
    later = resumed(elements.state_dict())
    assert [later.deal(3) for _ in range(4)] == [(0, 3), (3, 3), (6, 2), (8, 3)]


def test_position_restores_drawn_shuffle_seed() -> None:
    first, later = (ds.Dataset.range(100).shuffle(100).batch(100) for _ in range(2))
    elements = resumed(new_pass(first).state_dict(), later)
    source: Any = elements.readers._source
    (found,) = source.iterator(elements.epoch).read(0, 1)
    assert found.equals(next(first.iterator(0)))
    assert not found.equals(next(later.iterator(0)))


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ({"epoch": 0, "next": 4, "again": [], "data": {"plan": "x"}}, "another dataset"),
        ({"epoch": 0, "reader": {"row": 7}}, "one process or another version"),
        ({"epoch": 0, "trainers": {}, "trainers_count": 2}, "resume=False"),
        ({"next": 4}, "not a position"),
        ({"epoch": -1}, "not a position"),
    ],
)
def test_position_of_another_dataset_or_version_is_refused(
    state: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=told):
        resumed(state)


def test_position_is_refused_when_batch_size_differs() -> None:
    state = new_pass().state_dict()
    with pytest.raises(InvalidArgumentError, match="another dataset"):
        resumed(state, ds.Dataset.range(1_000).batch(5))


def test_rewind_restarts_pass_and_close_drops_readers_on_trainers() -> None:
    trainers = Trainers()
    elements = iter(DealtDataset(DATA, trainers))
    elements.note_scheduled(elements.deal(4), Closure())
    elements.rewind()
    assert len(trainers.open) == 1
    assert {"next": 0, "again": []}.items() <= elements.state_dict().items()
    elements.close()
    assert not trainers.open


@pytest.mark.parametrize("seed", range(20))
def test_each_element_is_processed_once_over_any_number_of_resumes(seed: int) -> None:
    choose = random.Random(seed)
    elements, done, size = new_pass(), [], 200
    out: dict[Range, Closure] = {}
    while len(done) < size:
        event = choose.random()
        running = [dealt for dealt, closure in out.items() if not closure.has_value]
        if event < 0.5 or not running:
            dealt = elements.deal(choose.randint(1, 9))
            if choose.random() < 0.1:
                elements, out = resumed(elements.state_dict()), {}
                continue
            out[dealt] = Closure()
            elements.note_scheduled(dealt, out[dealt])
        elif event < 0.8:
            dealt = choose.choice(running)
            out[dealt].has_value = True
            done += range(dealt.start, min(sum(dealt), size))
            # Some reports have not been read when the position is asked for.
            if choose.random() < 0.7:
                del out[dealt]
                elements.note_done(dealt)
        elif event < 0.85:
            elements, out = resumed(elements.state_dict()), {}
    assert sorted(done) == list(range(size))


def test_range_gets_nearest_earlier_bookmark_and_position_saves_needed_bookmarks() -> None:
    elements = new_pass()
    ranges = [elements.deal(8) for _ in range(4)]
    for dealt in ranges:
        elements.note_scheduled(dealt, Closure())
    assert elements.bookmark_before(ranges[3]) is None
    for at in (24, 8, 12, 30, 12):
        elements.note_bookmark({"bookmark": Bookmark(at, str(at))})
    elements.note_bookmark({"bookmark": Bookmark(24, "another")})
    elements.note_bookmark({"bookmark": None})
    assert elements.bookmark_before(ranges[2]) == (12, "12")
    elements.note_done(ranges[0])
    elements.note_done(ranges[1])
    state = elements.state_dict()
    assert state["bookmarks"] == [[12, "12"], [24, "24"], [30, "30"]]
    later = resumed(state)
    dealt = [later.deal(8) for _ in range(3)]
    assert [later.bookmark_before(each) for each in dealt] == [(12, "12"), (24, "24"), (30, "30")]
    del state["bookmarks"]  # as in a position of an earlier version
    assert resumed(state).bookmark_before(Range(16, 8)) is None


@pytest.mark.parametrize("seed", range(6))
def test_each_element_is_read_once_while_readers_are_replaced(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trainers are lost and others read their ranges; passes are resumed from positions."""
    monkeypatch.setattr(element_ranges, "_BOOKMARK_EVERY_S", 0.0)
    monkeypatch.setattr(element_ranges, "_KEPT_BYTES", 8 << 10)
    monkeypatch.setattr(element_ranges._Pace, "is_far", lambda _, elements: elements > 40)
    choose = random.Random(seed)
    data = ds.Dataset.range(1_200).shuffle(90, seed=seed).batch(4)
    elements, size = new_pass(data), 300
    readers = [RangeReader(data) for _ in range(3)]
    out: list[tuple[Range, Bookmark | None]] = []
    found: list[int] = []
    while len(found) < 1_200:
        event = choose.random()
        if event < 0.04:
            readers[choose.randrange(3)] = RangeReader(data)
        elif event < 0.06:
            elements, out = resumed(elements.state_dict(), data), []
        elif len(out) < 12 and (event < 0.5 or not out):
            dealt = elements.deal(choose.randint(1, 9))
            if dealt.start < size:
                out.append((dealt, elements.bookmark_before(dealt)))
            else:
                elements.note_done(dealt)
        else:
            dealt, near = out.pop(choose.randrange(len(out)))
            reader = choose.choice(readers)
            found += [i for batch in reader.read(*dealt, near) for i in batch["id"].to_pylist()]
            elements.note_bookmark({"bookmark": reader.bookmark})
            elements.note_done(dealt)
    assert sorted(found) == list(range(1_200))


def test_state_dict_is_consistent_when_called_by_another_thread() -> None:
    elements = new_pass()
    states: list[dict[str, Any]] = []
    is_over = threading.Event()

    def ask() -> None:
        while not is_over.is_set():
            states.append(elements.state_dict())

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=ask)
    thread.start()
    try:
        for _ in range(2_000):
            dealt = elements.deal(1)
            elements.note_scheduled(dealt, Closure())
            if dealt.start >= 8:
                elements.note_done(Range(dealt.start - 8, 1))
    finally:
        is_over.set()
        thread.join(30)
        sys.setswitchinterval(interval_s)
    assert states
    for state in states:
        named = [first for first, _ in state["again"]]
        assert named == list(range(named[0], state["next"])) if named else state["next"] == 0
