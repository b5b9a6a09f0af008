"""A range holds the same elements, whatever the order in which ranges are read."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

import dataservice as ds
from pstrain.errors import CancelledError
from pstrain.execution import element_ranges
from pstrain.execution.element_ranges import Bookmark, RangeReader, RangeSource
from pstrain.trainer.context import InputContext
from pstrain.trainer.resources import open_dataset


class CountingDataset:
    """A dataset of ten elements that counts how often a pass over it begins."""

    def __init__(self) -> None:
        self.opened = 0

    def __iter__(self) -> Iterator[int]:
        self.opened += 1
        return iter(range(10))


class LargeDataset(CountingDataset):
    """A dataset of a hundred elements of 1 MiB each."""

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        self.opened += 1
        values = pa.array(np.zeros(1 << 17))
        return iter([pa.RecordBatch.from_arrays([values], [str(n)]) for n in range(100)])


class DatasetWithPositions:
    """A dataset of 1,000 elements that records those read; its positions contain ``padding``."""

    def __init__(self, padding: str = "") -> None:
        self.taken: list[int] = []
        self._padding = padding

    def iterator(self, epoch: int) -> DatasetWithPositions:
        assert epoch == 0
        self._next = 0
        return self

    def __iter__(self) -> DatasetWithPositions:
        return self

    def __next__(self) -> int:
        if self._next == 1_000:
            raise StopIteration
        self.taken.append(self._next)
        self._next += 1
        return self.taken[-1]

    def state_dict(self) -> dict[str, object]:
        return {"next": self._next, "padding": self._padding}

    def load_state_dict(self, state: dict[str, object]) -> None:
        assert isinstance(state["next"], int)
        self._next = state["next"]


def test_consecutive_ranges_are_read_in_one_pass() -> None:
    data = CountingDataset()
    reader = RangeReader(data)
    found = [reader.read(start, 4) for start in (0, 4, 8, 12)]
    assert found == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], []]
    assert data.opened == 1


def test_neighbouring_ranges_out_of_order_are_read_in_one_pass() -> None:
    data = CountingDataset()
    reader = RangeReader(data)
    assert [reader.read(start, 1) for start in (2, 0, 3, 1, 6, 4)] == [[2], [0], [3], [1], [6], [4]]
    assert data.opened == 1


@pytest.mark.parametrize("seed", range(5))
def test_ranges_hold_same_elements_in_any_reading_order(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(element_ranges, "_KEPT_BYTES", 4 << 10)
    choose = random.Random(seed)
    reader = RangeReader(CountingDataset())
    for _ in range(40):
        start, count = choose.randrange(12), choose.randint(1, 5)
        assert reader.read(start, count) == list(range(10))[start : start + count]


def test_kept_elements_are_bounded_and_older_ranges_start_new_pass() -> None:
    data = LargeDataset()
    reader = RangeReader(data)
    reader.read(98, 2)
    assert [batch.schema.names for batch in reader.read(60, 2)] == [["60"], ["61"]]
    assert data.opened == 1
    assert [batch.schema.names for batch in reader.read(10, 1)] == [["10"]]
    assert data.opened == 2
    assert len(reader.read(0, 100)) == 100  # a range may be larger than what is kept
    assert reader._kept_bytes == 100 << 20


def test_closed_reader_refuses_reads_and_opens_nothing() -> None:
    data = CountingDataset()
    reader = RangeReader(data)
    reader.read(0, 2)
    reader.close()
    reader.close()
    with pytest.raises(CancelledError, match="any longer"):
        reader.read(0, 2)
    assert data.opened == 1


def test_reader_closed_during_read_closes_its_source_afterwards() -> None:
    class Slow(CountingDataset):
        closed = 0

        def __iter__(self) -> Iterator[int]:
            self.opened += 1
            try:
                yield from range(10)
            finally:
                self.closed += 1

        def pass_by(self, at: int) -> int:
            if at == 1:
                reader.close()
            return at

    data = Slow()

    class Passing:
        def __iter__(self) -> Iterator[int]:
            source = iter(data)
            try:
                yield from (data.pass_by(n) for n in source)
            finally:
                source.close()

    reader = RangeReader(Passing())
    assert reader.read(0, 3) == [0, 1, 2]
    assert data.closed == 1
    with pytest.raises(CancelledError):
        reader.read(3, 1)


def test_reader_closed_just_as_read_ends_closes_its_source() -> None:
    ended = []

    class Ending:
        def __iter__(self) -> Iterator[int]:
            try:
                yield from range(10)
            finally:
                ended.append(True)

    class ClosingLock:
        """A lock that closes the reader after its read, just before the release."""

        def __init__(self) -> None:
            self._lock = threading.Lock()
            self.acquire, self.release = self._lock.acquire, self._lock.release

        def __enter__(self) -> None:
            self.acquire()

        def __exit__(self, *_: object) -> None:
            reader.close()
            self.release()

    reader = RangeReader(Ending())
    reader._lock = ClosingLock()  # type: ignore[assignment]
    assert reader.read(0, 3) == [0, 1, 2]
    assert (ended, reader._elements) == ([True], None)


def test_failed_pass_is_restarted_by_next_read() -> None:
    class Failing(CountingDataset):
        def __iter__(self) -> Iterator[int]:
            self.opened += 1
            for n in range(10):
                if n == 5 and self.opened == 1:
                    raise ValueError("once")
                yield n

    data = Failing()
    reader = RangeReader(data)
    with pytest.raises(ValueError, match="once"):
        reader.read(4, 3)
    assert reader.read(4, 3) == [4, 5, 6]
    assert data.opened == 2


def test_range_source_yields_one_reader_per_process_and_epoch() -> None:
    data = ds.Dataset.range(1_000).shuffle(1_000, seed=3).batch(2)
    readers = [iter(open_dataset(RangeSource(data), epoch, InputContext())) for epoch in (0, 1, 1)]
    first = next(readers[0])
    assert next(readers[0]) is first
    found = [[b["id"].to_pylist() for b in next(each).read(1, 2)] for each in readers]
    assert found[0] != found[1] == found[2]
    for each in readers:
        each.close()
        each.close()


def test_reader_starts_at_bookmark_of_another_reader() -> None:
    first = RangeReader(DatasetWithPositions())
    first.read(640, 8)
    data = DatasetWithPositions()
    assert RangeReader(data).read(656, 4, first.bookmark) == [656, 657, 658, 659]
    assert data.taken == list(range(648, 660))


def test_range_before_kept_elements_is_read_from_bookmark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(element_ranges, "_KEPT_BYTES", 4 << 10)
    data = DatasetWithPositions()
    reader = RangeReader(data)
    reader.read(0, 100)
    bookmark = reader.bookmark
    reader.read(900, 4)
    data.taken.clear()
    assert reader.read(104, 2, bookmark) == [104, 105]
    assert data.taken == list(range(100, 106))


def test_reader_jumps_to_far_bookmark_but_reads_on_to_near_bookmark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(element_ranges._Pace, "is_far", lambda _, elements: elements > 100)
    data = DatasetWithPositions()
    reader = RangeReader(data)
    reader.read(0, 10)
    assert reader.read(100, 2, Bookmark(90, '{"next": 90}')) == [100, 101]
    assert data.taken == list(range(102))
    assert reader.read(600, 2, Bookmark(590, '{"next": 590}')) == [600, 601]
    assert data.taken[102:] == list(range(590, 602))


def test_pace_is_far_when_skipping_takes_longer_than_opening() -> None:
    pace = element_ranges._Pace()
    pace.record(1, 3.0)  # opening takes this long; the pace of elements is not known yet
    assert not pace.is_far(1_000_000)
    pace.record(10, 0.1)
    assert [pace.is_far(elements) for elements in (-5, 299, 301)] == [False, False, True]


def test_no_bookmark_is_made_of_large_positions_or_cached_data() -> None:
    large = RangeReader(DatasetWithPositions(padding="x" * (16 << 10)))
    assert (large.read(0, 2), large.bookmark) == ([0, 1], None)
    cached = RangeReader(ds.Dataset.range(10).cache().batch(2))
    cached.read(0, 2)
    assert cached.bookmark is None


def test_next_bookmark_is_made_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(element_ranges, "_BOOKMARK_EVERY_S", 3600.0)
    reader = RangeReader(DatasetWithPositions())
    for start in (0, 2, 4):
        reader.read(start, 2)
    assert reader.bookmark == Bookmark(2, '{"next": 2, "padding": ""}')


@pytest.mark.parametrize("seed", range(4))
def test_ranges_hold_same_elements_from_any_bookmark(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(element_ranges, "_BOOKMARK_EVERY_S", 0.0)
    monkeypatch.setattr(element_ranges, "_BOOKMARK_SHARE", 0)
    choose = random.Random(seed)
    data = ds.Dataset.range(3_000).filter(ds.col("id") % 7 != 3).shuffle(70, seed=seed)
    data = data.map(lambda columns: {"id": columns["id"] * 2}).batch(9).shuffle(5, seed=1)
    expected = [batch["id"].to_pylist() for batch in data.iterator(1)]
    bookmarks: list[Bookmark] = []
    for _ in range(25):
        reader = RangeReader(data, epoch=1)
        for _ in range(choose.randint(1, 3)):
            start, count = choose.randrange(len(expected)), choose.randint(1, 8)
            before = [bookmark for bookmark in bookmarks if bookmark.at <= start]
            found = reader.read(start, count, choose.choice([None, *before]))
            assert [batch["id"].to_pylist() for batch in found] == expected[start : start + count]
            bookmarks += [reader.bookmark] if reader.bookmark is not None else []
        reader.close()
    assert len({bookmark.at for bookmark in bookmarks}) > 20
