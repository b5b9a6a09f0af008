"""A training cluster's status, for people and for monitoring systems."""

from __future__ import annotations

from typing import Any

import pytest

from dataservice.runtime.monitoring.report import as_text
from pstrain.coordinator.status import status_metrics, status_report
from pstrain.coordinator.trainer_stats import Load, Record, table

_RECORD = Record()
_RECORD.add_report(1.0, [0.25] * 10)
COUNTS = {
    "waiting": 1,
    "running": 2,
    "finished": 3_000,
    "failed": 4,
    "cancelled": 5,
    "trainers": 1,
    "retries": 6,
    "losses": 7,
    "rounds": 8,
    "dropped": 9,
    "restores": 10,
}
HOLDS = {
    "shards": 3,
    "size_bytes": 2_500_000,
    "snapshots": 1,
    "requests": {"pull": 5, "both": 1_000},
    "commits": {"held": 2, "aborted": 0, "decided": 4, "ledger_blocks": 1},
}
STATUS: dict[str, Any] = {
    "session": "session-1",
    "consistency": "async",
    "closures": COUNTS,
    "trainers": [each._asdict() for each in table({0: _RECORD}, {0: Load(2, 3)}, 2.0)]
    + [each._asdict() for each in table({1: Record()}, {}, 2.0)],
    "servers": [
        {"ps": 0, "address": "h:1", "holds": HOLDS, "error": None},
        {"ps": 1, "address": "h:2", "holds": None, "error": "parameter server 1 is gone"},
    ],
}


def test_report_has_closures_trainers_and_servers() -> None:
    assert as_text(status_report(STATUS)).splitlines() == [
        "session-1, consistency async",
        "closures: 1 waiting, 2 running, 3,000 finished, 4 failed, 5 cancelled",
        "6 lost runs, 7 losses of trainers, 10 restores",
        "",
        "trainer  finished  per s  running    median       p90  ahead  verdict",
        "      0        10    0.0        2  250.0 ms  250.0 ms      3",
        "      1         0    0.0        0    0.0 ms    0.0 ms      0  away",
        "",
        "server  address  shards   MB  requests  state",
        "     0  h:1           3  2.5     1,005  serves",
        "     1  h:2           -    -         -  parameter server 1 is gone",
    ]


def test_report_without_coordinator_says_so() -> None:
    report = as_text(status_report({**STATUS, "closures": None, "trainers": []}))
    assert "no coordinator yet" in report
    assert "trainer " not in report


def _figures(status: dict[str, Any]) -> dict[tuple[str, ...], float]:
    return {
        (metric.name.removeprefix("pstrain_"), *labels.values()): value
        for metric in status_metrics(status)
        for value, labels in metric.samples
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (("trainers",), 1.0),
        (("closures_waiting",), 1.0),
        (("closures_running",), 2.0),
        (("closures_finished_total",), 3_000.0),
        (("closures_failed_total",), 4.0),
        (("closures_cancelled_total",), 5.0),
        (("closure_retries_total",), 6.0),
        (("trainer_losses_total",), 7.0),
        (("rounds_total",), 8.0),
        (("restores_total",), 10.0),
        (("trainer_up", "0"), 1.0),
        (("trainer_up", "1"), 0.0),
        (("trainer_closures_running", "0"), 2.0),
        (("trainer_run_median_seconds", "0"), 0.25),
        (("trainer_run_p90_seconds", "0"), 0.25),
        (("trainer_silent_seconds", "0"), 1.0),
        (("trainer_staleness_closures", "0"), 3.0),
        (("trainer_runs_total", "0"), 10.0),
        (("ps_up", "0"), 1.0),
        (("ps_up", "1"), 0.0),
        (("ps_size_bytes", "0"), 2_500_000.0),
        (("ps_shards", "0"), 3.0),
        (("ps_snapshots", "0"), 1.0),
        (("ps_parts_held", "0"), 2.0),
        (("ps_requests_total", "0", "pull"), 5.0),
        (("ps_requests_total", "0", "both"), 1_000.0),
    ],
)
def test_status_is_told_in_figures(name: tuple[str, ...], value: float) -> None:
    assert _figures(STATUS)[name] == value


def test_server_without_answer_has_no_other_figure_than_that() -> None:
    assert [name for name in _figures(STATUS) if name[1:2] == ("1",) and name[0][:2] == "ps"] == [
        ("ps_up", "1")
    ]


def test_cluster_without_coordinator_tells_of_its_servers_only() -> None:
    names = {name[0] for name in _figures({**STATUS, "closures": None, "trainers": []})}
    assert {name.split("_")[0] for name in names} == {"ps"}


def test_counters_and_only_these_are_called_total() -> None:
    for metric in status_metrics(STATUS):
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
