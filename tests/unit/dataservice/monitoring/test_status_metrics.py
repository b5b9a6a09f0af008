"""A dispatcher's status as figures for monitoring systems."""

from __future__ import annotations

from typing import Any

from dataservice.monitoring.status_metrics import status_metrics

SKIPPED = {"function_rows": 0, "source_rows": 0, "splits": 0, "files": [], "messages": []}
READER = {"rows_consumed": 5, "wait_share": 0.25}
DYNAMIC = {
    "repetition": 2,
    "readers": [READER, {**READER, "wait_share": 0.75}],
    "skipped": {**SKIPPED, "function_rows": 3, "source_rows": 4},
    "windows": {
        "planned": 9,
        "done": 4,
        "in_flight": 2,
        "pending": 3,
        "more_rounds": False,
        "suspected": 0,
        "quarantined": ["part-0, rows 0 to 9"],
    },
    "rows_consumed": 77,
    "lost": {"windows": 1, "rows_at_most": 10, "windows_not_counted": 0},
}
STATIC = {
    "repetition": 0,
    "readers": [READER, READER],
    "skipped": SKIPPED,
    "tasks": {"all": 2, "finished": 1},
}
STATUS: dict[str, Any] = {
    "datasets": 3,
    "workers_enough": None,
    "workers": [
        {
            "address": "h:1",
            "rows_sent": 40,
            "busy_share": 0.5,
            "buffered_bytes": 8,
            "windows_leased": 2,
        }
    ],
    "worker_list": [],
    "heartbeats": {"clients": 4},
    "jobs": [
        {"name": "train", "job_id": "j1", "iterations": [DYNAMIC]},
        {"name": None, "job_id": "j2", "iterations": [STATIC]},
    ],
    "snapshots": [],
}


def _figures(status: dict[str, Any] | None) -> dict[tuple[str, ...], float]:
    return {
        (metric.name, *labels.values()): value
        for metric in status_metrics(status)
        for value, labels in metric.samples
    }


def test_dispatcher_without_answer_is_down_and_tells_nothing_else() -> None:
    assert _figures(None) == {("dataservice_dispatcher_up",): 0.0}


def test_status_is_told_in_totals_by_worker_and_by_repetition_of_a_job() -> None:
    train, unnamed = ("j1", "train", "2"), ("j2", "", "0")
    figures = {name.removeprefix("dataservice_"): value for name, value in _by_name().items()}
    assert figures == {
        "dispatcher_up": {(): 1.0},
        "workers": {(): 1.0},
        "clients": {(): 4.0},
        "datasets": {(): 3.0},
        "jobs": {(): 2.0},
        "worker_busy_ratio": {("h:1",): 0.5},
        "worker_buffered_bytes": {("h:1",): 8.0},
        "worker_windows_leased": {("h:1",): 2.0},
        "worker_rows_sent_total": {("h:1",): 40.0},
        "job_readers": {train: 2.0, unnamed: 2.0},
        "job_wait_ratio": {train: 0.75, unnamed: 0.25},
        "job_windows_planned": {train: 9.0},
        "job_windows_pending": {train: 3.0},
        "job_windows_in_flight": {train: 2.0},
        "job_windows_quarantined": {train: 1.0},
        "job_windows_done_total": {train: 4.0},
        "job_windows_lost_total": {train: 1.0},
        "job_rows_consumed_total": {train: 77.0},
        "job_rows_skipped_total": {train: 7.0, unnamed: 0.0},
    }


def _by_name() -> dict[str, dict[tuple[str, ...], float]]:
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for (name, *labels), value in _figures(STATUS).items():
        found.setdefault(name, {})[tuple(labels)] = value
    return found


def test_number_of_workers_that_would_be_enough_is_told_once_it_is_known() -> None:
    figures = _figures({**STATUS, "workers_enough": {"enough": 5, "now": 1, "reason": ""}})
    assert figures["dataservice_workers_enough",] == 5.0


def test_missing_workers_of_a_fixed_list_are_counted() -> None:
    listed = [{"present": True}, {"present": False}, {"present": False}]
    assert _figures({**STATUS, "worker_list": listed})["dataservice_workers_missing",] == 2.0


def test_snapshots_are_told_in_the_state_that_they_are_in() -> None:
    saved = {"snapshot_id": "s1", "state": "done", "rows": 6, "size_bytes": 7, "windows_done": 8}
    figures = _figures({**STATUS, "snapshots": [saved]})
    assert figures["dataservice_snapshot_rows", "s1"] == 6.0
    assert figures["dataservice_snapshot_size_bytes", "s1"] == 7.0
    assert figures["dataservice_snapshot_windows_done", "s1"] == 8.0
    assert figures["dataservice_snapshot_state", "s1", "done"] == 1.0


def test_counters_and_only_these_are_called_total() -> None:
    for metric in status_metrics(STATUS):
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name


def test_job_named_like_the_id_of_another_has_series_of_its_own() -> None:
    jobs = [{**job, "name": name} for job, name in zip(STATUS["jobs"], ("j2", ""), strict=True)]
    (readers,) = (m for m in status_metrics({**STATUS, "jobs": jobs}) if "job_readers" in m.name)
    assert len({tuple(each.labels.values()) for each in readers.samples}) == 2


def test_no_label_takes_a_name_of_prometheus() -> None:
    labels = {name for m in status_metrics(STATUS) for s in m.samples for name in s.labels}
    assert not labels & {"job", "instance"}
