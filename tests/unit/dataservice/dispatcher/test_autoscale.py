"""The estimate of how many workers would be enough, from reported rates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataservice.dispatcher.autoscale import (
    MAX_WORKERS,
    Autoscale,
    Estimate,
    EstimateDebounce,
    Production,
    bounded,
    without_outliers,
)
from dataservice.worker.production import ProducerCounters, ProductionMeter


def recorded(
    readers: dict[str, tuple[float, float]],
    workers: dict[str, tuple[float, float]],
    *,
    seconds: int = 30,
    iteration: str = "i1",
    into: Autoscale | None = None,
    trainers: dict[str, str] | None = None,
) -> Autoscale:
    """Reports readers (rows per second, wait) and workers (rows per second, busy) every second."""
    autoscale = into or Autoscale()
    for second in range(seconds + 1):
        now_s = 100.0 + second
        for reader, (rate, wait) in readers.items():
            trainer = (trainers or {}).get(reader, "")
            autoscale.record_reader(iteration, reader, int(rate * second), wait, now_s, trainer)
        for worker, (rate, busy) in workers.items():
            autoscale.record_worker(worker, [Production(iteration, rate, busy)], now_s)
    return autoscale


def enough(autoscale: Autoscale, now: int, iteration: str = "i1") -> int | None:
    estimate = autoscale.of_iteration(iteration, now)
    return None if estimate is None else estimate.enough


def test_input_bound_readers_need_more_workers() -> None:
    # Each of two workers gives 1,000 rows/s at full load; the reader waits 75% of its time.
    autoscale = recorded({"r": (2_000, 0.75)}, {"a": (1_000, 1.0), "b": (1_000, 1.0)})
    estimate = autoscale.of_iteration("i1", 2)
    assert estimate is not None
    assert (estimate.now, estimate.enough) == (2, 8)
    assert estimate.reason == (
        "input-bound: readers wait 75% of their time, workers are busy 100% of theirs"
    )


def test_compute_bound_readers_need_fewer_workers() -> None:
    workers = dict.fromkeys("abcd", (500.0, 0.25))
    estimate = recorded({"r": (2_000, 0.0)}, workers).of_iteration("i1", 4)
    assert estimate is not None
    assert estimate.enough == 1
    assert estimate.reason.startswith("compute-bound: readers wait 0%")


def test_matched_readers_and_workers_are_estimated_balanced() -> None:
    estimate = recorded({"r": (2_000, 0.0)}, dict.fromkeys("ab", (1_000.0, 1.0))).overall(2)
    assert estimate is not None
    assert (estimate.enough, estimate.reason[:8]) == (2, "balanced")


def test_overall_estimate_is_that_of_most_demanding_job() -> None:
    autoscale = recorded({"r": (1_000, 0.0)}, {"a": (1_000, 1.0)})
    recorded({"s": (1_000, 0.6)}, {"b": (1_000, 1.0)}, iteration="i2", into=autoscale)
    overall = autoscale.overall(3)
    assert overall is not None
    assert overall.enough == enough(autoscale, 3, "i2") == 3
    autoscale.keep_iterations(["i1"])
    assert enough(autoscale, 3, "i2") is None
    assert enough(autoscale, 3) == 1


def test_demands_of_readers_add_up_except_with_shared_cache() -> None:
    readers = {"r": (1_000.0, 0.0), "s": (1_000.0, 0.0)}
    workers = {"a": (1_000.0, 1.0)}
    assert enough(recorded(readers, workers), 2) == 2
    trainers = {"r": "one", "s": "two"}
    assert enough(recorded(readers, workers, trainers=trainers), 2) == 1


def test_no_estimate_is_made_without_readers_workers_or_time() -> None:
    assert Autoscale().overall(3) is None
    assert recorded({}, {"a": (1_000, 1.0)}).overall(1) is None
    assert recorded({"r": (1_000, 0.5)}, {}).overall(1) is None
    assert recorded({"r": (1_000, 0.5)}, {"a": (1_000, 1.0)}, seconds=0).overall(1) is None


def test_departed_readers_and_workers_leave_the_estimate() -> None:
    autoscale = recorded({"r": (1_000, 0.0), "s": (3_000, 0.0)}, {"a": (1_000, 1.0)})
    assert enough(autoscale, 5) == 4
    autoscale.drop_reader("s")
    assert enough(autoscale, 5) == 1
    autoscale.drop_worker("a")
    assert enough(autoscale, 5) is None
    recorded({}, {"a": (1_000, 1.0)}, into=autoscale)
    autoscale.record_worker("a", [], 200.0)
    assert enough(autoscale, 5) is None, "it makes nothing of the iteration any more"


def test_single_slow_step_is_smoothed_and_lasting_pace_is_followed() -> None:
    autoscale = recorded({"r": (4_000, 0.0)}, {"a": (1_000, 1.0)})
    autoscale.record_reader("i1", "r", 4_000 * 30, 0.0, 131.0)
    assert enough(autoscale, 4) == 4
    for second in range(2, 60):
        autoscale.record_reader("i1", "r", 4_000 * 30 + 500 * second, 0.0, 130.0 + second)
    assert enough(autoscale, 4) == 1


@pytest.mark.parametrize(
    ("wanted", "now", "expected"),
    [(9, 2, 8), (1_000, 300, 800), (0, 3, 1), (7, 3, 7), (10**6, 99_900, MAX_WORKERS), (5, 0, 1)],
)
def test_estimate_is_bounded_as_in_tf_data(wanted: int, now: int, expected: int) -> None:
    assert bounded(wanted, now) == expected


def test_outlier_rates_are_replaced_by_median() -> None:
    assert without_outliers([10.0, 10.0, 11.0, 500.0]) == [10.0, 10.0, 11.0, 10.5]
    assert without_outliers([1.0, 3.0]) == [1.0, 3.0]


RATES = st.tuples(st.floats(0, 1e6), st.floats(0, 1))


@given(st.lists(RATES, max_size=4), st.lists(RATES, max_size=4), st.integers(0, 50))
def test_estimate_stays_within_its_bounds(
    readers: list[tuple[float, float]], workers: list[tuple[float, float]], now: int
) -> None:
    autoscale = recorded(
        {f"r{i}": rate for i, rate in enumerate(readers)},
        {f"w{i}": rate for i, rate in enumerate(workers)},
        seconds=3,
    )
    estimate = autoscale.overall(now)
    if estimate is not None:
        assert 1 <= estimate.enough <= max(1, 4 * now)


def estimate_of(enough: int, now: int = 2) -> Estimate:
    return Estimate(now, enough, 0.0, 1.0, "")


def test_only_lasting_change_of_estimate_is_reported_once() -> None:
    debounce = EstimateDebounce(5.0)
    told = [debounce.is_due(estimate_of(2), float(t)) for t in range(10)]
    told += [debounce.is_due(estimate_of(5), 10.0), debounce.is_due(estimate_of(2), 12.0)]
    assert not any(told)
    assert not debounce.is_due(estimate_of(5), 20.0)
    assert not debounce.is_due(estimate_of(6), 24.0)
    assert debounce.is_due(estimate_of(6), 25.0), "both differ from what there is"
    assert not any(debounce.is_due(estimate_of(6, now=6), 26.0 + t) for t in range(10))
    assert not debounce.is_due(estimate_of(2, now=6), 41.0)
    assert debounce.is_due(estimate_of(2, now=6), 46.0)


def test_producer_counts_as_busy_while_not_held_back() -> None:
    meter = ProductionMeter(0.0)
    first = [ProducerCounters("i1", 1, 100, 0.0), ProducerCounters("i1", 2, 0, 0.0)]
    assert meter.measure(first, 1.0) == [], "from when it was first seen"
    second = [ProducerCounters("i1", 1, 300, 1.5), ProducerCounters("i2", 3, 9, 0.0)]
    (part,) = meter.measure(second, 3.0)
    assert part == ("i1", 100.0, 0.25)
