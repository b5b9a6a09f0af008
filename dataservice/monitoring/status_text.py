"""Tells a dispatcher's status, from the JSON that it answers, to people: as a report or as text.

Pure. Does not know where a report is shown. Invariant: nothing is shown that is not in the JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from dataservice.omissions import Omitted
from dataservice.runtime.monitoring.report import Block, Table, as_text, counted, visible
from dataservice.vocabulary import INFINITE_CARDINALITY

_READERS_SHOWN: Final = 20


def status_text(encoded: str) -> str:
    """Formats workers and whether they are enough, jobs, waiting readers, and snapshots."""
    return as_text(status_report(json.loads(encoded)))


def status_report(status: dict[str, Any]) -> list[Block]:
    """Returns what :func:`status_text` formats."""
    workers, jobs = status["workers"], status["jobs"]
    report: list[Block] = [_summary(status)]
    if workers:
        titles = ("worker", "rows sent", "rows/s", "busy", "windows", "buffered")
        report.append(Table(titles, _rows(workers)))
    if jobs:
        report.append(_jobs_table(jobs))
    if any(iteration["readers"] for job in jobs for iteration in job["iterations"]):
        report.extend(_readers_report(jobs))
    report.extend(_omissions(jobs))
    if status["snapshots"]:
        report.append(_snapshots_table(status["snapshots"]))
    return report


def _summary(status: dict[str, Any]) -> str:
    counts = {
        "worker": len(status["workers"]),
        "job": len(status["jobs"]),
        "dataset": status["datasets"],
    }
    beats = status["heartbeats"]
    lines = [
        ", ".join(counted(count, noun) for noun, count in counts.items()),
        f"{counted(beats['clients'], 'client')}; a heartbeat of each is due every "
        f"{beats['interval_s']:.3g} s; a silent worker counts as lost after "
        f"{beats['worker_timeout_s']:.3g} s, a silent reader after "
        f"{beats['client_timeout_s']:.3g} s",
    ]
    enough = status["workers_enough"]
    if enough is not None:
        lines.append(f"{counted(enough['enough'], 'worker')} would be enough ({enough['reason']})")
    return "\n".join(lines)


def jobs_text(encoded: str) -> str:
    """Formats one line per iteration of each job, and one for its ended repetitions."""
    jobs = json.loads(encoded)
    return as_text([_jobs_table(jobs), *_omissions(jobs)]) if jobs else "no jobs"


def datasets_text(encoded: str) -> str:
    """Formats one line per dataset."""
    datasets = json.loads(encoded)
    if not datasets:
        return "no datasets"
    titles = ("dataset", "elements", "compression", "plan bytes")
    rows = [
        (
            dataset["dataset_id"],
            _elements(dataset["cardinality"]),
            dataset["compression"],
            f"{dataset['plan_bytes']:,}",
        )
        for dataset in datasets
    ]
    return as_text([Table(titles, rows)])


def _elements(cardinality: int) -> str:
    if cardinality == INFINITE_CARDINALITY:
        return "endless"
    return f"{cardinality:,}" if cardinality >= 0 else "-"


def snapshots_text(encoded: str) -> str:
    """Formats one line per snapshot."""
    snapshots = json.loads(encoded)
    return as_text([_snapshots_table(snapshots)]) if snapshots else "no snapshots"


def _snapshots_table(snapshots: Sequence[dict[str, Any]]) -> Table:
    titles = ("snapshot", "state", "windows", "rows", "MiB", "workers", "path")
    rows = [
        (
            snapshot["snapshot_id"],
            snapshot["state"],
            f"{snapshot['windows_done']}/{snapshot['windows']}"
            + ("+" if snapshot["more_rounds"] else ""),
            f"{snapshot['rows']:,}",
            f"{snapshot['size_bytes'] / 2**20:,.1f}",
            str(snapshot["workers"]),
            snapshot["path"],
        )
        for snapshot in snapshots
    ]
    return Table(titles, rows)


def _rows(workers: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    return [
        (
            worker["address"],
            f"{worker['rows_sent']:,}",
            f"{worker['rate_rows_per_s']:,.0f}",
            f"{worker['busy_share']:.0%}",
            str(worker["windows_leased"]),
            f"{worker['buffered_bytes'] / 2**20:.1f} MiB",
        )
        for worker in workers
    ]


def _jobs_table(jobs: Sequence[dict[str, Any]]) -> Table:
    titles = ("job", "state", "age", "dataset", "policy", "epoch", "progress", "rows", "readers")
    rows = []
    for job in jobs:
        known = (
            job["name"] or job["job_id"],
            _state(job),
            _duration(job["age_s"]),
            job["dataset_id"],
            job["policy"],
        )
        if job["repetitions_ended"] or not job["iterations"]:
            rows.append((*known, "-", f"{job['repetitions_ended']} ended", "-", "-", "-", "-"))
        rows.extend(
            (
                *known,
                str(iteration["repetition"]),
                _progress(iteration),
                f"{_rows_read(iteration):,}",
                str(len(iteration["readers"])),
                _waiting(iteration["readers"]),
                _enough(iteration["workers_enough"]),
            )
            for iteration in job["iterations"]
        )
    return Table((*titles, "waiting", "enough"), rows)


def _enough(estimate: dict[str, Any] | None) -> str:
    """Formats how many workers would be enough for this epoch alone."""
    return "-" if estimate is None else str(estimate["enough"])


def _readers_report(jobs: Sequence[dict[str, Any]]) -> Iterator[Block]:
    """Yields a table of the readers that wait most, in that order; the others are only counted."""
    readers = [
        (
            f"process {reader['pid']} on {reader['host']}"
            + (f" ({reader['trainer_id']})" if reader["trainer_id"] else ""),
            job["name"] or job["job_id"],
            str(iteration["repetition"]),
            f"{reader['rows_consumed']:,}",
            f"{reader['wait_share']:.0%}",
            f"{reader['elements_missed']:,}",
        )
        for job in jobs
        for iteration in job["iterations"]
        for reader in iteration["readers"]
    ]
    readers.sort(key=lambda row: -int(row[4].removesuffix("%")))
    titles = ("reader", "job", "epoch", "rows", "waiting", "missed")
    yield Table(titles, readers[:_READERS_SHOWN])
    if len(readers) > _READERS_SHOWN:
        yield f"... and {len(readers) - _READERS_SHOWN} that wait less"


def _state(job: dict[str, Any]) -> str:
    """Formats whether a job is being read, or how long it has been idle."""
    return job["state"] if job["state"] == "reading" else f"idle {_duration(job['idle_s'])}"


def _duration(seconds: float) -> str:
    """Formats a duration, rounded, in seconds, minutes, hours or days."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _omissions(jobs: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yields paragraphs about each epoch of which rows were left out, quarantined or lost."""
    for job in jobs:
        for iteration in job["iterations"]:
            title = f"job {visible(job['name'] or job['job_id'])}, epoch {iteration['repetition']}"
            omitted = Omitted.from_json(iteration["skipped"])
            if omitted:
                yield _paragraph(f"{title} leaves out {omitted}:", omitted.messages)
            quarantined = (iteration.get("windows") or {}).get("quarantined")
            if quarantined:
                yield _paragraph(
                    f"{title}: windows in quarantine, because they killed workers:", quarantined
                )
            lost = _lost(iteration)
            if lost:
                yield f"{title}, delivered at most once: rows in flight were lost in {lost}"


def _lost(iteration: dict[str, Any]) -> str:
    """Formats the windows that were lost under at-most-once delivery; "" if there are none."""
    lost = iteration.get("lost")
    if not lost or not lost["windows"]:
        return ""
    uncounted = lost["windows_not_counted"]
    rows = f"up to {lost['rows_at_most']:,} rows of the sources"
    if uncounted == lost["windows"]:
        rows = "of an unknown number of rows"
    elif uncounted:
        rows += f", and {counted(uncounted, 'window')} of an unknown number of rows"
    return f"{counted(lost['windows'], 'window')}, {rows}"


def _progress(iteration: dict[str, Any]) -> str:
    if iteration["finished"]:
        return "finished"
    if "rounds" in iteration:
        missing = ", ".join(map(str, iteration["rounds"]["missing_consumers"]))
        waits = f", waits for consumer_index {missing}" if missing else ""
        return f"{iteration['rounds']['complete']} rounds{waits}"
    windows = iteration.get("windows")
    if windows is None:
        return f"{iteration['tasks']['finished']}/{iteration['tasks']['all']} tasks"
    more = "+" if windows["more_rounds"] else ""
    return f"{windows['done']}/{windows['planned']}{more} windows"


def _rows_read(iteration: dict[str, Any]) -> int:
    known = iteration.get("rows_consumed")
    if known is None:
        known = sum(reader["rows_consumed"] for reader in iteration["readers"])
    return int(known)


def _waiting(readers: Sequence[dict[str, Any]]) -> str:
    """Formats the largest share of time that a reader waits for data; near 0 %, workers keep up."""
    if not readers:
        return "-"
    return f"{max(reader['wait_share'] for reader in readers):.0%}"


def _paragraph(title: str, messages: Iterable[str]) -> str:
    lines = (line for message in messages for line in message.split("\n"))
    return "\n  ".join((title, *lines))
