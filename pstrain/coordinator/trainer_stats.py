"""How fast each trainer works, and which trainers are stragglers.

Pure: receives the time, knows no thread. Invariant: the memory for a trainer does not grow with the
number of its runs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

RUNS_REMEMBERED: Final = 256
SLOW_TIMES: Final = 1.5
"""A trainer whose runs take this many times as long as those of the others is a straggler."""
SILENT_TIMES: Final = 5.0
"""So is one that has been silent this many times as long as nine of ten runs take at most."""
_SILENT_MIN_S: Final = 1.0
_RUNS_MIN: Final = 8
_REPORTS_REMEMBERED: Final = 64


class TrainerStats(NamedTuple):
    """One trainer, as its coordinator sees it; times in seconds, over its latest 256 runs.

    ``silent_s``: how long it has reported no result although it had work. ``staleness``: by how
    many closures it is ahead of the slowest, which ``ssp`` bounds. ``verdict``: why it is a
    straggler; empty if it is none.
    """

    trainer: int
    is_live: bool
    running: int
    finished: int
    per_second: float
    mean_s: float
    median_s: float
    p90_s: float
    silent_s: float
    staleness: int
    verdict: str = ""

    @property
    def is_straggler(self) -> bool:
        """True if the trainer is slower, or longer silent, than the others: see ``verdict``."""
        return bool(self.verdict)


class TrainerTable(tuple[TrainerStats, ...]):
    """The statistics of all trainers, by index; prints as a table."""

    __slots__ = ()

    @property
    def stragglers(self) -> tuple[TrainerStats, ...]:
        return tuple(each for each in self if each.is_straggler)

    def __repr__(self) -> str:
        heads = ("trainer", "finished", "per s", "running", "median", "mean", "p90", "ahead")
        lines = ["".join(f"{head:>10}" for head in heads) + "  verdict"]
        lines += [_line(each) for each in self]
        return "\n".join(lines)


def _line(each: TrainerStats) -> str:
    times = "".join(f"{duration_text(s):>10}" for s in (each.median_s, each.mean_s, each.p90_s))
    verdict = each.verdict or ("" if each.is_live else "away")
    return (
        f"{each.trainer:>10}{each.finished:>10,}{each.per_second:>10.1f}{each.running:>10}"
        f"{times}{each.staleness:>10}  {verdict}"
    ).rstrip()


def duration_text(seconds: float) -> str:
    """Formats seconds for people, short ones in milliseconds."""
    return f"{seconds * 1e3:.1f} ms" if seconds < 1.0 else f"{seconds:.1f} s"


class Record:
    """The record of what one trainer has reported. Not thread-safe."""

    __slots__ = ("_busy_since_s", "_reports", "finished", "seconds")

    def __init__(self) -> None:
        self.finished = 0
        self.seconds: deque[float] = deque(maxlen=RUNS_REMEMBERED)
        self._reports: deque[tuple[float, int]] = deque(maxlen=_REPORTS_REMEMBERED)
        self._busy_since_s = 0.0

    def copy(self) -> Record:
        """Returns a record of its own that equals this one."""
        copied = Record()
        copied.finished, copied._busy_since_s = self.finished, self._busy_since_s
        copied.seconds, copied._reports = self.seconds.copy(), self._reports.copy()
        return copied

    def begin_work(self, now_s: float) -> None:
        """Notes that an idle trainer has got work."""
        self._busy_since_s = now_s

    def add_report(self, now_s: float, seconds: Sequence[float]) -> None:
        """Notes a report of runs that have ended, with how long each took."""
        self.finished += len(seconds)
        self.seconds.extend(seconds)
        self._reports.append((now_s, len(seconds)))

    def per_second(self, now_s: float) -> float:
        """Returns the rate of ended runs, over the latest reports and the time since."""
        if not self._reports or now_s <= self._reports[0][0]:
            return 0.0
        first_s, first = self._reports[0]
        return (sum(count for _, count in self._reports) - first) / (now_s - first_s)

    def silent_s(self, now_s: float) -> float:
        """Returns how long it has had work and reported nothing."""
        last_s = self._reports[-1][0] if self._reports else 0.0
        return now_s - max(self._busy_since_s, last_s)


class Load(NamedTuple):
    """The current load of a live trainer."""

    running: int
    staleness: int


def table(records: Mapping[int, Record], live: Mapping[int, Load], now_s: float) -> TrainerTable:
    """Returns the table of all trainers that have reported something or are live."""
    rows = [
        _stats(trainer, records.get(trainer) or Record(), live.get(trainer), now_s)
        for trainer in sorted({*records, *live})
    ]
    usual_s = _quantile((s for record in records.values() for s in record.seconds), 0.9)
    known = (row for row in rows if row.is_live and row.finished >= _RUNS_MIN)
    medians_s = sorted(row.median_s for row in known)
    return TrainerTable(row._replace(verdict=_verdict(row, medians_s, usual_s)) for row in rows)


def _stats(trainer: int, record: Record, load: Load | None, now_s: float) -> TrainerStats:
    seconds = record.seconds
    return TrainerStats(
        trainer,
        is_live=load is not None,
        running=0 if load is None else load.running,
        finished=record.finished,
        per_second=record.per_second(now_s),
        mean_s=sum(seconds) / len(seconds) if seconds else 0.0,
        median_s=median(seconds) if seconds else 0.0,
        p90_s=_quantile(seconds, 0.9),
        silent_s=record.silent_s(now_s) if load is not None and load.running else 0.0,
        staleness=0 if load is None else load.staleness,
    )


def _quantile(values: Iterable[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)] if ordered else 0.0


def _median_of_others(ordered: Sequence[float], mine: float) -> float | None:
    """Returns the median without one value of ``ordered``; None if there is no other."""
    mine_at, others = bisect_left(ordered, mine), len(ordered) - 1
    if others < 1:
        return None
    middle = ((others - 1) // 2, others // 2)
    low, high = (ordered[at + (at >= mine_at)] for at in middle)
    return (low + high) / 2


def _verdict(row: TrainerStats, medians_s: Sequence[float], usual_s: float) -> str:
    """Judges a trainer; ``medians_s`` are in order, of live trainers that have run enough."""
    if not row.is_live:
        return ""
    # Without a usual time there is nothing to compare with.
    if usual_s and row.silent_s > max(_SILENT_MIN_S, SILENT_TIMES * usual_s):
        return (
            f"silent for {duration_text(row.silent_s)} while it runs {row.running}; "
            f"nine of ten runs take {duration_text(usual_s)} at most"
        )
    others_s = None
    if row.finished >= _RUNS_MIN:
        others_s = _median_of_others(medians_s, row.median_s)
    if others_s is not None and row.median_s > SLOW_TIMES * others_s:
        times = row.median_s / others_s if others_s else float("inf")
        return f"slow: its runs take {times:.1f} times as long as the others'"
    return ""
