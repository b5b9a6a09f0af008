"""Progress of join, table of trainers, and traces, as the scheduler reports them."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from typing import Any

import pytest

from pstrain.coordinator import scheduler, scheduler_stats, waits
from pstrain.coordinator.join_progress import JoinProgress, Meter
from pstrain.coordinator.orders import RunResult
from pstrain.coordinator.remote_value import fetched
from pstrain.errors import DeadlineExceededError, FailedPreconditionError
from tests.unit.pstrain.coordinator.scheduling_cases import Cluster


@pytest.fixture
def cluster() -> Any:
    made = Cluster()
    yield made
    made.scheduler.stop()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, cluster: Cluster) -> list[float]:
    """Replaces the clock: a wait moves it on at once and ends the next closure, if there is one."""
    now = [100.0]
    for module in (scheduler, waits, scheduler_stats):
        monkeypatch.setattr(module.time, "monotonic", lambda: now[0])

    def wait(seconds: float) -> None:
        now[0] += seconds
        if not cluster.outbox.empty():
            cluster.run()

    monkeypatch.setattr(cluster.core.changed, "wait", wait)
    return now


def test_rates_cover_time_since_previous_reading() -> None:
    counts = dict.fromkeys(("failed", "cancelled", "running", "waiting", "retries", "trainers"), 2)
    meter = Meter(10, 100.0)
    first = meter.read({**counts, "finished": 30}, 105.0)
    assert (first.finished, first.queued, first.per_second) == (30, 2, 4.0)
    assert meter.read({**counts, "finished": 30}, 105.0).per_second == 0.0
    assert (
        str(first) == "30 finished, 2 failed, 2 cancelled, 2 running, 2 queued; 4.0/s on 2 trainers"
    )
    with pytest.raises(AttributeError):
        first.finished = 3  # type: ignore[misc]


@pytest.mark.usefixtures("clock")
def test_join_reports_progress_until_all_closures_have_ended(cluster: Cluster) -> None:
    for _ in range(5):
        cluster.submit()
    told: list[JoinProgress] = []
    cluster.scheduler.wait_idle(60.0, told.append, 2.0)
    assert [each.finished for each in told] == [2, 4, 5]
    assert [each.per_second for each in told] == [1.0, 1.0, 1.0]
    assert (told[0].running, told[0].queued, told[0].trainers) == (1, 2, 1)


@pytest.mark.usefixtures("clock")
def test_error_in_progress_callback_ends_join_but_not_the_closures(cluster: Cluster) -> None:
    for _ in range(5):
        cluster.submit()

    def refuse(_progress: JoinProgress) -> None:
        raise KeyboardInterrupt("enough")

    with pytest.raises(KeyboardInterrupt, match="enough"):
        cluster.scheduler.wait_idle(None, refuse, 1.0)
    assert cluster.submit().fetch is not None
    cluster.scheduler.wait_idle(60.0)
    assert cluster.scheduler.counts()["finished"] == 6


@pytest.mark.usefixtures("clock")
def test_join_with_progress_callback_times_out(cluster: Cluster) -> None:
    cluster.submit()
    cluster.outbox.get_nowait()
    told: list[JoinProgress] = []
    with pytest.raises(DeadlineExceededError, match="scheduled closures to end"):
        cluster.scheduler.wait_idle(2.5, told.append, 1.0)
    assert len(told) == 2


def test_join_raises_errors_after_last_progress_report(cluster: Cluster) -> None:
    cluster.submit()
    cluster.run(KeyError("mine"))
    told: list[JoinProgress] = []
    with pytest.raises(KeyError, match="mine"):
        cluster.scheduler.wait_idle(None, told.append)
    assert [(each.finished, each.failed) for each in told] == [(0, 1)]


def test_fetched_waits_for_all_values_of_structure(cluster: Cluster) -> None:
    first, second = cluster.submit(), cluster.submit()
    cluster.run()
    assert fetched([first], 0.0) == [0]
    with pytest.raises(DeadlineExceededError, match=r"closure 1.*, after 0\.001 s$"):
        fetched({"a": [first], "b": (second,)}, 0.001)


@pytest.mark.parametrize("made", [OrderedDict(b=5), defaultdict(list, b=5), Counter(b=5)])
def test_fetched_mappings_keep_their_class(cluster: Cluster, made: Any) -> None:
    made["a"] = cluster.submit()
    cluster.run()
    found = fetched((made,))[0]
    assert type(found) is type(made)
    assert list(found.items()) == [("b", 5), ("a", 0)]


def test_trainer_table_shows_running_finished_and_silence(
    cluster: Cluster, clock: list[float]
) -> None:
    for _ in range(4):
        cluster.submit()
    clock[0] += 3.0
    (row,) = cluster.scheduler.trainer_table()
    assert (row.running, row.finished, row.silent_s) == (1, 0, 3.0)
    number = cluster.outbox.get_nowait().closure.id
    cluster.scheduler.trainers.results(0, [RunResult(number, 0, None, None, seconds=0.25)])
    clock[0] += 1.0
    (row,) = cluster.scheduler.trainer_table()
    assert (row.running, row.finished, row.median_s, row.silent_s) == (1, 1, 0.25, 1.0)


def test_second_trace_is_refused_while_first_is_under_way(cluster: Cluster) -> None:
    cluster.submit()
    cluster.submit()
    trace = cluster.scheduler.begin_trace(10)
    with pytest.raises(FailedPreconditionError, match="under way"):
        cluster.scheduler.begin_trace(10)
    cluster.run()
    cluster.run()
    cluster.scheduler.end_trace()
    cluster.submit()
    cluster.run()
    assert [(run.closure, run.name, run.end) for run in trace.runs] == [(1, "step", "finished")]
    cluster.scheduler.begin_trace(10)
