"""The contents of a trace of closures, and the bound of its size."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from pstrain.coordinator import events as ev
from pstrain.coordinator.tracing import Trace, chrome_events


def traced(runs_max: int = 100) -> Trace:
    return Trace(lambda closure: f"step{closure}", 10.0, runs_max)


def run(trace: Trace, closure: int, sent_s: float, ended_s: float, trainer: int = 0) -> None:
    """Traces a closure that is queued at 10 s, runs half of its time and commits for a quarter."""
    passed_s = ended_s - sent_s
    trace.note(ev.ClosureQueued(closure=closure), 10.0)
    trace.note(ev.ClosureStarted(closure=closure, trainer=trainer, attempt=0), sent_s)
    trace.note_times(closure, passed_s / 2, passed_s / 4, ended_s)
    trace.note(ev.ClosureFinished(closure=closure), ended_s)


def events(trace: Trace, phase: str) -> list[dict[str, Any]]:
    return [event for event in chrome_events(trace.runs, 10.0) if event["ph"] == phase]


def test_run_is_traced_as_queued_waiting_running_and_committing() -> None:
    trace = traced()
    run(trace, 7, 11.0, 15.0, trainer=3)
    begun, ended = events(trace, "b"), events(trace, "e")
    assert [(e["cat"], e["pid"], e["ts"]) for e in begun] == [
        ("queued", 0, 0.0),
        ("waiting at the trainer", 4, 1e6),
    ]
    assert [e["ts"] for e in ended] == [1e6, 2e6]
    spans = [(e["cat"], e["name"], e["pid"], e["ts"], e["dur"]) for e in events(trace, "X")]
    assert spans == [
        ("running", "step7", 4, 2e6, 2e6),
        ("committing", "commit step7", 4, 4e6, 1e6),
    ]
    assert [e["args"]["name"] for e in events(trace, "M")] == [
        "queue of the coordinator",
        "trainer 3",
    ]


def test_spans_in_same_trace_row_do_not_overlap() -> None:
    trace = traced()
    for closure in range(30):
        run(trace, closure, 11.0 + closure % 7, 13.0 + closure % 5 + closure % 7, closure % 2)
    rows: dict[tuple[int, int], float] = {}
    for event in sorted(events(trace, "X"), key=lambda event: event["ts"]):
        row = event["pid"], event["tid"]
        assert event["ts"] >= rows.get(row, 0.0)
        rows[row] = event["ts"] + event["dur"]


def test_each_run_of_closure_is_traced_with_how_it_ended() -> None:
    trace = traced()
    trace.note(ev.ClosureQueued(closure=1), 10.0)
    for attempt, event in enumerate(
        (
            ev.ClosureReturned(closure=1),
            ev.ClosureDropped(closure=1, trainer=0, attempt=1),
            ev.ClosureFailed(closure=1),
        )
    ):
        trace.note(ev.ClosureStarted(closure=1, trainer=0, attempt=attempt), 11.0 + attempt)
        trace.note(event, 11.5 + attempt)
    trace.note(ev.ClosureQueued(closure=2), 12.0)
    trace.note(ev.ClosureCancelled(closure=2), 13.0)
    found = [(each.attempt, each.queued_s, each.end) for each in trace.runs]
    assert found == [
        (0, 10.0, "lost with its trainer"),
        (1, 11.5, "late for its round"),
        (2, 12.5, "failed"),
    ]
    assert not trace._queued_s
    assert not trace._sent


def test_trace_keeps_and_writes_latest_runs(tmp_path: pathlib.Path) -> None:
    trace = traced(runs_max=3)
    for closure in range(10):
        run(trace, closure, 11.0, 12.0)
    assert (len(trace.runs), trace.count, len(trace._times)) == (3, 10, 0)
    trace.write(tmp_path / "trace.json")
    found = json.loads((tmp_path / "trace.json").read_text())
    assert found["otherData"] == {"runs": 3, "runs left out": 7}
    assert {e["args"]["closure"] for e in found["traceEvents"] if e["ph"] == "X"} == {7, 8, 9}
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]


def test_failed_trace_write_leaves_no_file(tmp_path: pathlib.Path) -> None:
    trace = traced()
    with pytest.raises(FileNotFoundError):
        trace.write(tmp_path / "away" / "trace.json")
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="taken"):
        trace.write(tmp_path / "taken")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
