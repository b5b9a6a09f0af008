"""A training cluster's status, as its coordinator tells it, for people and for monitoring systems.

Pure. Knows only the JSON that `monitor` collects. Invariant: a server that does not answer is
shown with its error, never left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from dataservice.runtime.monitoring.metrics import Metric, Sample
from dataservice.runtime.monitoring.report import Block, Table
from pstrain.coordinator.trainer_stats import duration_text

Status: TypeAlias = Mapping[str, Any]

_PREFIX: Final = "pstrain_"
_COUNTS: Final = {
    "waiting": "closures that no trainer has yet",
    "running": "closures that trainers have",
}
_TOTALS: Final = {
    "finished": ("closures_finished_total", "closures that ended well"),
    "failed": ("closures_failed_total", "closures that raised"),
    "cancelled": ("closures_cancelled_total", "closures that were cancelled"),
    "retries": ("closure_retries_total", "runs that were lost, and made again"),
    "losses": ("trainer_losses_total", "times that a trainer was lost"),
    "rounds": ("rounds_total", 'rounds that were applied, under consistency "sync"'),
    "restores": ("restores_total", "returns to a checkpoint after the loss of a server"),
}


def status_report(status: Status) -> list[Block]:
    """Returns the status as lines and tables."""
    report: list[Block] = [_summary(status)]
    if status["trainers"]:
        report.append(_trainers_table(status["trainers"]))
    return [*report, _servers_table(status["servers"])]


def _summary(status: Status) -> str:
    lines = [f"{status['session']}, consistency {status['consistency']}"]
    closures = status["closures"]
    if closures is None:
        return "\n".join([*lines, "no coordinator yet"])
    ends = ("waiting", "running", "finished", "failed", "cancelled")
    lines.append("closures: " + ", ".join(f"{closures[key]:,} {key}" for key in ends))
    lost = {"retries": "lost runs", "losses": "losses of trainers", "restores": "restores"}
    lines.append(", ".join(f"{closures[key]:,} {meaning}" for key, meaning in lost.items()))
    return "\n".join(lines)


def _trainers_table(trainers: Iterable[Status]) -> Table:
    titles = ("trainer", "finished", "per s", "running", "median", "p90", "ahead", "verdict")
    return Table(
        titles,
        [
            (
                str(each["trainer"]),
                f"{each['finished']:,}",
                f"{each['per_second']:.1f}",
                str(each["running"]),
                duration_text(each["median_s"]),
                duration_text(each["p90_s"]),
                str(each["staleness"]),
                each["verdict"] or ("" if each["is_live"] else "away"),
            )
            for each in trainers
        ],
    )


def _servers_table(servers: Iterable[Status]) -> Table:
    titles = ("server", "address", "shards", "MB", "requests", "state")
    return Table(titles, [_server_row(each) for each in servers])


def _server_row(server: Status) -> tuple[str, ...]:
    name, holds = (str(server["ps"]), server["address"]), server["holds"]
    if holds is None:
        return (*name, "-", "-", "-", server["error"])
    return (
        *name,
        str(holds["shards"]),
        f"{holds['size_bytes'] / 1e6:,.1f}",
        f"{sum(holds['requests'].values()):,}",
        "serves",
    )


def status_metrics(status: Status) -> list[Metric]:
    """Returns the status as figures."""
    metrics = [*_closures(status["closures"]), *_trainers(status["trainers"])]
    metrics += _servers(status["servers"])
    return [metric for metric in metrics if metric.samples]


def _closures(counts: Mapping[str, int] | None) -> Iterator[Metric]:
    if counts is None:
        return
    live = [Sample(counts["trainers"])]
    yield Metric(_PREFIX + "trainers", "gauge", "trainers that are connected", live)
    for key, meaning in _COUNTS.items():
        yield Metric(f"{_PREFIX}closures_{key}", "gauge", meaning, [Sample(counts[key])])
    for key, (name, meaning) in _TOTALS.items():
        yield Metric(_PREFIX + name, "counter", meaning, [Sample(counts[key])])


def _trainers(trainers: Iterable[Status]) -> Iterator[Metric]:
    labelled = [({"trainer": str(each["trainer"])}, each) for each in trainers]
    for name, key, meaning in (
        ("trainer_up", "is_live", "1 if the trainer is connected, else 0"),
        ("trainer_closures_running", "running", "closures that the trainer has"),
        ("trainer_run_median_seconds", "median_s", "median of its latest 256 runs"),
        ("trainer_run_p90_seconds", "p90_s", "nine of ten of its latest 256 runs took at most"),
        ("trainer_silent_seconds", "silent_s", "time without a result although it has work"),
        ("trainer_staleness_closures", "staleness", "closures by which it leads the slowest"),
    ):
        samples = [Sample(float(each[key]), labels) for labels, each in labelled]
        yield Metric(_PREFIX + name, "gauge", meaning, samples)
    ended = [Sample(each["finished"], labels) for labels, each in labelled]
    yield Metric(_PREFIX + "trainer_runs_total", "counter", "runs that have ended", ended)


def _servers(servers: Iterable[Status]) -> Iterator[Metric]:
    labelled = [({"ps": str(each["ps"])}, each["holds"]) for each in servers]
    up = [Sample(float(holds is not None), labels) for labels, holds in labelled]
    yield Metric(_PREFIX + "ps_up", "gauge", "1 if the parameter server answers, else 0", up)
    answered = [(labels, holds) for labels, holds in labelled if holds is not None]
    gauges: tuple[tuple[str, str, Callable[[Status], float]], ...] = (
        ("ps_size_bytes", "rows with their optimizer slots", lambda holds: holds["size_bytes"]),
        ("ps_shards", "shards of variables", lambda holds: holds["shards"]),
        ("ps_snapshots", "snapshots that are being saved", lambda holds: holds["snapshots"]),
        (
            "ps_parts_held",
            "changes that are prepared and wait for their decision",
            lambda holds: holds["commits"]["held"],
        ),
    )
    for name, meaning, value_of in gauges:
        samples = [Sample(value_of(holds), labels) for labels, holds in answered]
        yield Metric(_PREFIX + name, "gauge", meaning, samples)
    requests = [
        Sample(count, {**labels, "kind": kind})
        for labels, holds in answered
        for kind, count in sorted(holds["requests"].items())
    ]
    yield Metric(_PREFIX + "ps_requests_total", "counter", "requests answered, by kind", requests)
