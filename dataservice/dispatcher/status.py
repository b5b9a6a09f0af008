"""The dispatcher's state as JSON values, for people and for scripts.

Pure. Does not know how the values are sent or shown. Invariant: what is described does not change;
rates are as last reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from dataservice.dispatcher.autoscale import Estimate
from dataservice.dispatcher.events import WorkerRegistered
from dataservice.dispatcher.jobs import Iteration, Job
from dataservice.dispatcher.reports import ReaderReport, Reports, WorkerReport
from dataservice.dispatcher.saving import progress
from dataservice.dispatcher.state import DispatcherState
from dataservice.omissions import NOTHING, Omitted
from dataservice.vocabulary import ReaderId, WorkerId


def describe(
    state: DispatcherState,
    reports: Reports,
    now_s: float,
) -> dict[str, Any]:
    """Describes workers, the worker list, jobs with iterations and readers, snapshots and datasets.

    `now_s` is the time of day. Datasets are only counted.
    """
    return {
        "datasets": len(state.datasets),
        "workers_enough": _estimate(reports.autoscale.overall(len(state.workers))),
        "workers": _workers(state, reports),
        "worker_list": [
            {
                "configured": configured,
                "address": state.bound.get(index),
                "present": state.worker_at(index) is not None,
            }
            for index, configured in enumerate(state.worker_list)
        ],
        "jobs": describe_jobs(state, reports, now_s),
        "snapshots": [progress(snapshot) for snapshot in state.snapshots.by_id.values()],
    }


def _workers(state: DispatcherState, reports: Reports) -> list[dict[str, Any]]:
    leased: Counter[WorkerId] = Counter()
    for iteration in state.iterations.values():
        for worker_id, windows in iteration.windows.leases.items() if iteration.windows else ():
            leased[worker_id] += len(windows)
    return [
        _worker(worker, reports.workers.get(worker.worker_id, WorkerReport()), leased)
        for worker in state.workers.values()
    ]


def _worker(
    worker: WorkerRegistered, report: WorkerReport, leased: Counter[WorkerId]
) -> dict[str, Any]:
    return {
        "worker_id": worker.worker_id,
        "address": worker.address,
        "host": worker.host,
        "pid": worker.pid,
        "windows_leased": leased[worker.worker_id],
        "rows_sent": report.rows_sent,
        "rate_rows_per_s": report.rate_rows_per_s,
        "buffered_bytes": report.buffered_bytes,
        "busy_share": max((part.busy_share for part in report.production), default=0.0),
    }


def describe_job(
    state: DispatcherState,
    job: Job,
    reports: Reports,
    now_s: float,
) -> dict[str, Any]:
    """Describes a job with its iterations; retired repetitions are only counted."""
    idle_since_s = job.history.idle_since_s
    return {
        "job_id": job.job_id,
        "name": job.name,
        "state": "reading" if idle_since_s is None else "idle",
        "age_s": max(0.0, now_s - job.created_s),
        "idle_s": 0.0 if idle_since_s is None else max(0.0, now_s - idle_since_s),
        "repetitions_ended": job.history.count(),
        "dataset_id": job.dataset_id,
        "policy": job.policy.name,
        "delivery": job.delivery,
        "options": job.options.to_json(),
        "iterations": [
            _iteration(state.iterations[iteration_id], reports.readers)
            | {
                "skipped": _skipped(reports.omitted.get(iteration_id, {})),
                "workers_enough": _estimate(
                    reports.autoscale.of_iteration(iteration_id, len(state.workers))
                ),
            }
            for _, iteration_id in sorted(job.iterations.items())
        ],
    }


def _estimate(estimate: Estimate | None) -> dict[str, Any] | None:
    return None if estimate is None else estimate._asdict()


def _skipped(omitted: Mapping[ReaderId, Omitted]) -> dict[str, Any]:
    return sum(omitted.values(), NOTHING).to_json()


def _iteration(iteration: Iteration, readers: Mapping[ReaderId, ReaderReport]) -> dict[str, Any]:
    return {
        "iteration_id": iteration.iteration_id,
        "repetition": iteration.repetition,
        "finished": iteration.finished,
        "readers": [
            {
                "reader_id": reader_id,
                "host": reader.host,
                "pid": reader.pid,
                "rows_consumed": (report := readers.get(reader_id, ReaderReport())).rows_consumed,
                "wait_share": report.wait_share,
                "trainer_id": report.trainer_id,
                "elements_missed": report.elements_missed,
            }
            for reader_id, reader in iteration.readers.items()
        ],
        **_progress(iteration),
    }


def _progress(iteration: Iteration) -> dict[str, Any]:
    """Describes how far an iteration is, in rounds, tasks or windows."""
    rounds, table = iteration.rounds, iteration.windows
    if rounds is not None:
        return {
            "rounds": {
                "complete": rounds.complete,
                "consumed": list(rounds.consumed),
                "missing_consumers": list(rounds.missing()),
            }
        }
    if table is None:
        parts: Collection[bool] = iteration.shards or iteration.tasks.values()
        return {"tasks": {"all": len(parts), "finished": sum(parts)}}
    return {
        "windows": {
            "planned": table.planned,
            "done": table.done,
            "in_flight": len(table.records) - len(table.orphans),
            "pending": table.planned - table.cursor + len(table.orphans),
            "more_rounds": not table.is_exhausted,
            "suspected": len(table.suspicions.cases),
            "quarantined": [entry.what for entry in table.quarantined],
        },
        "rows_consumed": table.rows_consumed,
        "lost": {
            "windows": table.lost_windows,
            "rows_at_most": table.lost_rows,
            "windows_not_counted": table.lost_uncounted,
        },
    }


def describe_jobs(
    state: DispatcherState,
    reports: Reports,
    now_s: float,
) -> list[dict[str, Any]]:
    """Describes all jobs."""
    return [describe_job(state, job, reports, now_s) for job in state.jobs.values()]


def describe_datasets(state: DispatcherState) -> list[dict[str, Any]]:
    """Describes all datasets, without their plans."""
    return [
        {
            "dataset_id": dataset.dataset_id,
            "cardinality": dataset.cardinality,
            "compression": dataset.compression,
            "plan_bytes": len(dataset.plan),
        }
        for dataset in state.datasets.values()
    ]
