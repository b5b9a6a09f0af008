"""Statistics of datasets: rows and times per operator, wait share, verdict."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

import pytest

from dataservice.dataset import timed_stream
from dataservice.dataset.statistics import DatasetStats, StatsCounter
from dataservice.dataset.timed_stream import timed
from dataservice.dataset.timing import OperatorTimes, WorkLog
from tests.unit.dataservice.dataset.checkpoint_checker import numbers, open_stream, values


def test_operator_rows_are_counted_over_all_passes() -> None:
    dataset = numbers(20).map(lambda c: c).batch(6)
    for _ in range(2):
        assert values(list(dataset)) == list(range(20))
    stats = dataset.stats()
    assert [operator.name for operator in stats.operators] == ["table", "map", "batch"]
    assert [operator.rows for operator in stats.operators] == [40, 40, 40]
    assert stats.operators[2].batches == 8 == stats.batches
    assert (stats.rows, stats.iterators) == (40, 2)
    iterator = iter(dataset)
    next(iterator)
    assert dataset.stats().operators[2].rows == 46
    iterator.close()
    assert dataset.stats().operators[2].rows == 46


def test_operators_with_several_inputs_and_threads_are_counted() -> None:
    other = numbers(20).rename({"x": "y"})
    dataset = (
        numbers(10).repeat(2).prefetch(2).zip(other).concatenate(numbers(5).zip(other)).cache()
    )
    assert len(values(list(dataset))) == 25
    rows = [(operator.name, operator.rows) for operator in dataset.stats().operators]
    assert ("prefetch", 20) in rows
    assert ("zip", 20) in rows
    assert ("zip", 5) in rows
    assert ("cache", 25) in rows


def test_operator_time_excludes_time_of_its_input(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(timed_stream.time, "perf_counter", lambda: float(next(ticks)))
    node = numbers(20, []).skip(1).node
    times = OperatorTimes(["table", "skip"], [id(node.inputs[0]), id(node)])
    with open_stream(node, times=times) as inner:
        stream = timed(inner, times, id(node))
        next(stream)
    # skip was asked once: two readings of the clock, around two readings for the table.
    assert [operator.time_s for operator in times.totals()] == [1.0, 2.0]


@pytest.mark.parametrize(
    ("wait_s", "compute_s", "batches", "share", "verdict"),
    [
        (3.0, 1.0, 9, 0.75, "input-bound"),
        (1.0, 3.0, 9, 0.25, "compute-bound"),
        (0.0, 0.0, 0, 0.0, "unknown"),
        (3.0, 0.0, 1, 1.0, "unknown"),
    ],
)
def test_verdict_follows_wait_share(
    wait_s: float, compute_s: float, batches: int, share: float, verdict: str
) -> None:
    stats = DatasetStats(wait_s=wait_s, compute_s=compute_s, batches=batches, rows=10)
    assert stats.wait_share == share
    assert stats.verdict == verdict
    assert verdict in str(stats)


def test_time_between_batches_counts_as_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def slow(columns: dict[str, Any]) -> dict[str, Any]:
        now[0] += 1
        return columns

    dataset = numbers(12, []).batch(4).map(slow, schema=numbers(1).schema)
    for _ in dataset:
        now[0] += 5
    stats = dataset.stats()
    assert (stats.wait_s, stats.compute_s) == (3.0, 10.0)
    assert stats.operators[-1].time_s == 3.0
    assert stats.verdict == "compute-bound"
    assert "map" in str(stats)


def test_retired_pass_is_counted_once() -> None:
    counter = StatsCounter()
    times, workers = OperatorTimes(["a"], [1]), WorkLog()
    workers.add([[0, 0, "range", 1, 10, 0.5]])
    counter.watch(times, workers)
    for _ in range(2):
        counter.retire(times, workers)
    assert [operator.name for operator in counter.total().operators] == ["a"]
    assert [operator.rows for operator in counter.total().worker_operators] == [10]
    counter.watch(times, workers)
    assert [operator.rows for operator in counter.total().worker_operators] == [20]
    assert "on data workers:\n  range " in str(counter.total())


def test_work_log_hands_over_new_counts_once_in_plan_order() -> None:
    worker, reader = WorkLog(), WorkLog()
    runs = [OperatorTimes(["range", "map"], [1, 2]) for _ in range(2)]
    tail = OperatorTimes(["batch_map"], [3])
    worker.watch(9, tail)
    tail.add_batch(3, 7, 0.25)
    for times in runs:
        worker.watch(0, times)
        times.add_batch(2, 10, 1.0)
        reader.add(json.loads(json.dumps(worker.take())))
    runs[0].add_batch(1, 4, 0.5)
    worker.retire(runs[0])
    worker.retire(runs[1])
    reader.add(worker.take())
    assert worker.take() == []
    assert [(s.name, s.batches, s.rows, s.time_s) for s in reader.totals()] == [
        ("range", 1, 4, 0.5),
        ("map", 2, 20, 2.0),
        ("batch_map", 1, 7, 0.25),
    ]
