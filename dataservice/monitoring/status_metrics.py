"""Turns a dispatcher's status, from the JSON that it answers, into figures for monitoring systems.

Pure. Invariants: the number of figures does not grow with the number of readers, only with that of
workers, repetitions that are under way, and snapshots; no two figures have the same name and
labels; no label is called ``job`` or ``instance``, which Prometheus keeps for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from dataservice.runtime.monitoring.metrics import Metric, Sample

Status: TypeAlias = Mapping[str, Any]

_PREFIX: Final = "dataservice_"


def status_metrics(status: Status | None) -> list[Metric]:
    """Returns the figures; None: the dispatcher did not answer, which is a figure too."""
    up = "1 if the dispatcher answers, else 0"
    metrics = [_gauge("dispatcher_up", up, [Sample(float(status is not None))])]
    if status is not None:
        metrics += [*_totals(status), *_workers(status["workers"]), *_jobs(status["jobs"])]
        metrics += _snapshots(status["snapshots"])
    return [metric for metric in metrics if metric.samples]


def _totals(status: Status) -> Iterator[Metric]:
    workers, clients = len(status["workers"]), status["heartbeats"]["clients"]
    yield _gauge("workers", "registered data workers", [Sample(workers)])
    yield _gauge("clients", "workers and readers that send heartbeats", [Sample(clients)])
    yield _gauge("datasets", "registered datasets", [Sample(status["datasets"])])
    yield _gauge("jobs", "jobs, idle ones too", [Sample(len(status["jobs"]))])
    enough = status["workers_enough"]
    if enough is not None:
        meaning = "data workers that would be enough for the readers"
        yield _gauge("workers_enough", meaning, [Sample(enough["enough"])])
    missing = [entry for entry in status["worker_list"] if not entry["present"]]
    if status["worker_list"]:
        meaning = "workers of the fixed list that have not registered"
        yield _gauge("workers_missing", meaning, [Sample(len(missing))])


def _workers(workers: Iterable[Status]) -> Iterator[Metric]:
    labelled = [({"worker": worker["address"]}, worker) for worker in workers]
    for key, name, meaning in (
        ("busy_share", "worker_busy_ratio", "share of time that its busiest pipeline computes"),
        ("buffered_bytes", "worker_buffered_bytes", "elements that wait for readers"),
        ("windows_leased", "worker_windows_leased", "windows that it has leased"),
    ):
        yield _gauge(name, meaning, [Sample(worker[key], labels) for labels, worker in labelled])
    sent = [Sample(worker["rows_sent"], labels) for labels, worker in labelled]
    yield _counter("worker_rows_sent_total", "rows sent to readers", sent)


def _jobs(jobs: Iterable[Status]) -> Iterator[Metric]:
    under_way = [
        (
            {
                "job_id": job["job_id"],
                "job_name": job["name"] or "",
                "repetition": str(part["repetition"]),
            },
            part,
        )
        for job in jobs
        for part in job["iterations"]
    ]
    for name, meaning, value_of in _GAUGES:
        yield _gauge(name, meaning, _samples(under_way, value_of))
    for name, meaning, value_of in _COUNTERS:
        yield _counter(name, meaning, _samples(under_way, value_of))


def _samples(
    under_way: Iterable[tuple[dict[str, str], Status]], value_of: Callable[[Status], float | None]
) -> list[Sample]:
    values = ((labels, value_of(iteration)) for labels, iteration in under_way)
    return [Sample(value, labels) for labels, value in values if value is not None]


def _in_windows(key: str) -> Callable[[Status], float | None]:
    def value(iteration: Status) -> float | None:
        found = iteration.get("windows")
        if found is None:
            return None
        return len(found[key]) if isinstance(found[key], list) else float(found[key])

    return value


def _wait_share(iteration: Status) -> float:
    return max((reader["wait_share"] for reader in iteration["readers"]), default=0.0)


def _rows(iteration: Status) -> float | None:
    # Not the sum over the readers, which goes down when one leaves.
    return iteration.get("rows_consumed")


_GAUGES: Final[tuple[tuple[str, str, Callable[[Status], float | None]], ...]] = (
    ("job_readers", "readers of a repetition of a job", lambda part: len(part["readers"])),
    ("job_wait_ratio", "share of time for which its slowest reader waits for data", _wait_share),
    ("job_windows_planned", "windows that are planned so far", _in_windows("planned")),
    ("job_windows_pending", "windows that nobody has leased yet", _in_windows("pending")),
    ("job_windows_in_flight", "windows that workers have leased", _in_windows("in_flight")),
    ("job_windows_quarantined", "windows that killed workers", _in_windows("quarantined")),
)
_COUNTERS: Final[tuple[tuple[str, str, Callable[[Status], float | None]], ...]] = (
    ("job_rows_consumed_total", "rows that readers have consumed, under DYNAMIC", _rows),
    ("job_windows_done_total", "windows that were consumed whole", _in_windows("done")),
    (
        "job_rows_skipped_total",
        'rows that failed and were left out, under on_error="skip"',
        lambda part: part["skipped"]["function_rows"] + part["skipped"]["source_rows"],
    ),
    (
        "job_windows_lost_total",
        "windows in flight on lost workers, under at-most-once delivery",
        lambda part: part["lost"]["windows"] if "lost" in part else None,
    ),
)


def _snapshots(snapshots: Iterable[Status]) -> Iterator[Metric]:
    labelled = [({"snapshot_id": each["snapshot_id"]}, each) for each in snapshots]
    states = [Sample(1.0, {**labels, "state": each["state"]}) for labels, each in labelled]
    yield _gauge("snapshot_state", "1 for the state in which the snapshot is", states)
    for key, name, meaning in (
        ("rows", "snapshot_rows", "rows written"),
        ("size_bytes", "snapshot_size_bytes", "bytes written"),
        ("windows_done", "snapshot_windows_done", "windows written"),
    ):
        yield _gauge(name, meaning, [Sample(each[key], labels) for labels, each in labelled])


def _gauge(name: str, meaning: str, samples: list[Sample]) -> Metric:
    return Metric(_PREFIX + name, "gauge", meaning, samples)


def _counter(name: str, meaning: str, samples: list[Sample]) -> Metric:
    return Metric(_PREFIX + name, "counter", meaning, samples)
