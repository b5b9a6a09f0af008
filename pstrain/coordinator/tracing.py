"""A trace of closures: when each waited, ran and committed, and on which trainer.

Pure except for the file that it writes, which Perfetto (ui.perfetto.dev) and chrome://tracing open.
Receives events with their times; without a trace nothing is recorded. Invariant: a trace holds at
most as many runs as it was asked for, the latest ones.
"""

from __future__ import annotations

import json
import os
import pathlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from dataservice.runtime.identity import new_id
from pstrain.coordinator import events as ev

RUNS_MAX: Final = 100_000
_QUEUE = 0  # the "process" of waiting closures; that of a trainer is its index plus 1
_COMMITS = 1_000  # "threads" of commits have numbers from here on


class TracedRun(NamedTuple):
    """One run of a closure, with times in seconds of one clock. ``end``: how the run ended."""

    closure: int
    attempt: int
    trainer: int
    name: str
    queued_s: float
    sent_s: float
    begun_s: float
    ran_s: float
    ended_s: float
    end: str


class Trace:
    """A trace of the runs that end from now on. Not thread-safe.

    ``name_of`` returns the name of a closure's function.
    """

    def __init__(self, name_of: Callable[[int], str], began_s: float, runs_max: int) -> None:
        self._name_of = name_of
        self._began_s = began_s
        self._queued_s: dict[int, float] = {}
        self._sent: dict[int, tuple[float, int, int]] = {}
        self._times: dict[int, tuple[float, float, float]] = {}
        self.runs: deque[TracedRun] = deque(maxlen=runs_max)
        self.count = 0

    def note_times(self, closure: int, run_s: float, commit_s: float, now_s: float) -> None:
        """Notes how long a closure ran and committed, as reported; its end may come later."""
        self._times[closure] = (run_s, commit_s, now_s)

    def note(self, event: ev.Event, now_s: float) -> None:
        """Notes an event that is about to be applied."""
        match event:
            case ev.ClosureQueued():
                self._queued_s[event.closure] = now_s
            case ev.ClosureStarted():
                self._sent[event.closure] = (now_s, event.trainer, event.attempt)
            case ev.ClosureFinished():
                self._end(event.closure, "finished", now_s)
            case ev.ClosureFailed():
                self._end(event.closure, "failed", now_s)
            case ev.ClosureCancelled():
                self._end(event.closure, "cancelled", now_s)
            case ev.ClosureReturned():
                self._end(event.closure, "lost with its trainer", now_s)
                self._queued_s[event.closure] = now_s
            case ev.ClosureDropped():
                self._end(event.closure, "late for its round", now_s)
                self._queued_s[event.closure] = now_s
            case ev.EndMet():
                self._end(event.closure, "at the end of its trainer's data", now_s)
                self._queued_s[event.closure] = now_s

    def _end(self, closure: int, end: str, now_s: float) -> None:
        queued_s = self._queued_s.pop(closure, self._began_s)
        run_s, commit_s, told_s = self._times.pop(closure, (0.0, 0.0, now_s))
        sent = self._sent.pop(closure, None)
        if sent is None:
            return
        sent_s, trainer, attempt = sent
        ran_s = max(told_s - commit_s, sent_s)
        begun_s = max(ran_s - run_s, sent_s) if run_s else sent_s
        name = self._name_of(closure) or "closure"
        self.count += 1
        self.runs.append(
            TracedRun(closure, attempt, trainer, name, queued_s, sent_s, begun_s, ran_s, now_s, end)
        )

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes the trace; the file is replaced as a whole, or left as it was."""
        target = pathlib.Path(path)
        draft = target.with_name(f"{target.name}.{new_id('draft')}")
        try:
            with draft.open("w", encoding="utf-8") as file:
                file.write('{"displayTimeUnit": "ms", "otherData": ')
                dropped = self.count - len(self.runs)
                json.dump({"runs": len(self.runs), "runs left out": dropped}, file)
                file.write(', "traceEvents": [\n')
                file.write(",\n".join(map(json.dumps, chrome_events(self.runs, self._began_s))))
                file.write("\n]}\n")
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)


def chrome_events(runs: Iterable[TracedRun], zero_s: float) -> Iterator[dict[str, Any]]:
    """Yields events in the trace-event format, with times in microseconds since ``zero_s``."""
    runs = sorted(runs, key=lambda run: run.begun_s)
    yield _called(_QUEUE, "queue of the coordinator")
    for trainer in sorted({run.trainer for run in runs}):
        yield _called(trainer + 1, f"trainer {trainer}")
    running, committing = _Lanes(), _Lanes()
    for run in runs:
        about = {"closure": run.closure, "attempt": run.attempt, "end": run.end}
        key = f"{run.closure}.{run.attempt}"
        for pid, kind, from_s, to_s in (
            (_QUEUE, "queued", run.queued_s, run.sent_s),
            (run.trainer + 1, "waiting at the trainer", run.sent_s, run.begun_s),
        ):
            common = {"cat": kind, "id": key, "name": run.name, "pid": pid, "tid": 0}
            yield {**common, "ph": "b", "ts": _us(from_s, zero_s), "args": about}
            yield {**common, "ph": "e", "ts": _us(to_s, zero_s)}
        lane = running.free(run.trainer, run.begun_s, run.ran_s)
        yield _span(run, "running", lane, run.begun_s, run.ran_s, zero_s, about)
    for run in sorted(runs, key=lambda run: run.ran_s):
        about = {"closure": run.closure, "attempt": run.attempt}
        lane = _COMMITS + committing.free(run.trainer, run.ran_s, run.ended_s)
        yield _span(run, "committing", lane, run.ran_s, run.ended_s, zero_s, about)


def _called(pid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}


def _span(
    run: TracedRun,
    kind: str,
    lane: int,
    from_s: float,
    to_s: float,
    zero_s: float,
    about: dict[str, Any],
) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": kind,
        "name": run.name if kind == "running" else f"commit {run.name}",
        "pid": run.trainer + 1,
        "tid": lane,
        "ts": _us(from_s, zero_s),
        "dur": _us(to_s, from_s),
        "args": about,
    }


def _us(time_s: float, zero_s: float) -> float:
    return round((time_s - zero_s) * 1e6, 1)


class _Lanes:
    """Assigns rows to overlapping spans, because viewers need those of a row not to overlap."""

    def __init__(self) -> None:
        self._ends_s: dict[int, list[float]] = {}

    def free(self, trainer: int, from_s: float, to_s: float) -> int:
        """Takes the first row that is free at ``from_s``; callers pass spans in order of start."""
        ends_s = self._ends_s.setdefault(trainer, [])
        for lane, end_s in enumerate(ends_s):
            if end_s <= from_s:
                ends_s[lane] = to_s
                return lane + 1
        ends_s.append(to_s)
        return len(ends_s)
