"""Prefetch: the same elements, positions untouched by read-ahead, no thread left behind."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import dataservice as ds
from dataservice.dataset.operators.prefetch import Prefetch
from dataservice.dataset.receipts import ReceiptSources
from dataservice.dataset.stream import BatchStream, RunContext, State
from dataservice.errors import CancelledError, UserFunctionError
from tests.unit.dataservice.dataset.checkpoint_checker import (
    check_positions,
    numbers,
    open_stream,
    run,
    values,
)

DEADLINE_S = 60.0


def prefetch_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if "prefetch" in t.name]


@pytest.fixture(autouse=True)
def _no_prefetch_thread_is_left() -> Iterator[None]:
    yield
    for thread in prefetch_threads():
        thread.join(DEADLINE_S)
    assert not prefetch_threads()


def test_prefetch_keeps_elements_and_positions_of_its_input() -> None:
    dataset = numbers(40).shuffle(6, seed=1).prefetch(3)
    assert values(run(dataset)) == values(run(numbers(40).shuffle(6, seed=1)))
    assert dataset.cardinality() == 40
    check_positions(dataset)
    check_positions(numbers(40).prefetch(1).batch(7).prefetch(2))


def test_prefetch_with_autotune_yields_all_rows() -> None:
    assert numbers(3).prefetch(0).to_table() == numbers(3).prefetch(None).to_table()
    dataset = numbers(20, [3, 4]).prefetch(ds.AUTOTUNE)
    assert values(run(dataset)) == list(range(20))
    check_positions(dataset)


def test_positions_of_concatenated_datasets_survive_prefetch() -> None:
    check_positions(numbers(9).concatenate(numbers(5)).prefetch(2))
    check_positions(numbers(9).batch(2).unbatch().concatenate(numbers(5)).prefetch(2))


def test_prefetch_after_restored_position_fills_no_partial_cache() -> None:
    dataset = numbers(40, [10, 10, 10]).cache().prefetch(1)
    with iter(dataset) as begun:
        next(begun)
        state = begun.state_dict()
    with iter(dataset) as resumed:
        resumed.load_state_dict(state)
        assert values(list(resumed)) == list(range(10, 40))
    assert values(list(dataset)) == list(range(40))
    assert values(list(dataset)) == list(range(40))


def test_prefetched_error_arrives_in_order_and_ends_stream() -> None:
    def fail(columns: dict[str, Any]) -> Any:
        assert columns["x"][0] < 4, "boom"
        return columns

    with open_stream(numbers(20).map(fail).prefetch(4)) as stream:
        assert len([next(stream), next(stream)]) == 2
        with pytest.raises(UserFunctionError, match="boom"):
            next(stream)
        with pytest.raises(StopIteration):
            next(stream)


def test_closing_stream_early_stops_prefetch_thread() -> None:
    stream = open_stream(numbers(20).repeat().prefetch(2))
    next(stream)
    assert prefetch_threads()
    stream.close()
    assert not prefetch_threads()
    stream.close()
    with pytest.raises(StopIteration):
        next(stream)


def test_dropped_stream_stops_its_prefetch_thread() -> None:
    stream = open_stream(numbers(20).repeat().prefetch(2))
    next(stream)
    del stream
    gc.collect()


def test_unread_prefetch_stream_can_be_closed() -> None:
    open_stream(numbers(20).prefetch(2)).close()
    assert not prefetch_threads()


def test_cancelled_run_cancels_prefetching_reader() -> None:
    cancelled = threading.Event()
    with open_stream(numbers(20).repeat().prefetch(1), cancelled=cancelled.is_set) as stream:
        next(stream)
        cancelled.set()
        with pytest.raises(CancelledError):
            list(stream)


def test_prefetch_reads_ahead_no_further_than_its_buffer_size() -> None:
    seen: list[int] = []
    reached = threading.Event()

    def note(columns: dict[str, Any]) -> Any:
        seen.append(int(columns["x"][0]))
        if len(seen) == 4:
            reached.set()
        return columns

    with open_stream(numbers(8, [1] * 7).map(note).prefetch(2)) as stream:
        next(stream)
        # One element was handed out, two are queued, one waits for room.
        assert reached.wait(DEADLINE_S)
        assert seen == [0, 1, 2, 3]


def test_prefetch_of_zero_reads_nothing_ahead() -> None:
    dataset = numbers(9).prefetch(0)
    with open_stream(dataset) as stream:
        next(stream)
        assert not prefetch_threads()
    check_positions(dataset)


class _Shared(BatchStream):
    """Rows of a job with other readers: ``given`` is what this one is given before each end."""

    def __init__(self, given: list[list[int]]) -> None:
        self.given = given
        self.ends = 0
        self.is_closed = False

    def __next__(self) -> pa.RecordBatch:
        if not self.given or not self.given[0]:
            self.ends += 1
            del self.given[:1]
            raise StopIteration
        return pa.record_batch({"x": [self.given[0].pop(0)]})

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None: ...

    def close(self) -> None:
        self.is_closed = True


def _prefetched(shared: _Shared, *, owned: bool) -> BatchStream:
    sources = ReceiptSources("trainer") if owned else None
    return Prefetch(numbers(1)._node, 9).attach(shared, RunContext(receipt_sources=sources))


def test_rows_that_a_lost_reader_had_follow_an_end_that_was_read_ahead() -> None:
    """As without prefetch: a reader that is asked again after its end may have rows again."""
    shared = _Shared([[0, 1], [2], [], [3]])
    with _prefetched(shared, owned=True) as stream:
        assert values([next(stream)]) == [0]
        for thread in prefetch_threads():
            thread.join(DEADLINE_S)
        assert shared.ends == 1
        assert values(list(stream)) == [1, 2]
        assert values(list(stream)) == [3]
        assert values(list(stream)) == []
        assert not shared.is_closed
    assert shared.is_closed


def test_end_is_final_for_rows_that_nobody_acknowledges() -> None:
    shared = _Shared([[0], [1]])
    stream = _prefetched(shared, owned=False)
    assert values(list(stream)) == [0]
    assert values(list(stream)) == []
    for thread in prefetch_threads():
        thread.join(DEADLINE_S)
    assert shared.is_closed
