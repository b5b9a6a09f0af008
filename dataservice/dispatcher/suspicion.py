"""Suspects among windows: those under way in workers that died, and those that are given up.

Pure. A window is accused when its stream breaks, and charged with a death when that worker is
lost; a worker that is heard of again acquits it, also of its death where it was silent for so long
that it was taken for lost. Windows that ran together are charged together, and suspects are run
alone. Invariant: a window is given up after `MAX_DEATHS` of which it met one alone; where other
streams of the worker never leave it alone, after twice as many.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dataservice.sharding import Split, Window, total_rows
from dataservice.vocabulary import WorkerId

# One death is no pattern. Suspects slow an epoch down, and a lost worker leaves many windows.
SUSPECT_AFTER: Final = 2
MAX_DEATHS: Final = 3
_SPLITS_NAMED: Final = 5


class Quarantined(NamedTuple):
    """A window that was given up; `rows` of its source are known or None."""

    window: int
    what: str
    path: str | None
    rows: int | None


@dataclass(slots=True)
class Case:
    """What is held against a window: deaths of workers, and others not heard of since.

    `deaths`: whether it was with that worker as a suspect, and alone. `accused`: whether it was a
    suspect already when that worker's stream broke.
    """

    deaths: dict[WorkerId, bool] = field(default_factory=dict)
    accused: dict[WorkerId, bool] = field(default_factory=dict)

    @property
    def weight(self) -> int:
        return len(self.deaths) + len(self.accused)

    @property
    def limit(self) -> int:
        is_clear = any(self.deaths.values()) or len(self.deaths) < MAX_DEATHS
        return MAX_DEATHS if is_clear else 2 * MAX_DEATHS


@dataclass(slots=True)
class Suspicions:
    """The cases of an iteration's open windows."""

    cases: dict[int, Case] = field(default_factory=dict)

    def is_suspect(self, window: int) -> bool:
        """Whether it must not be run beside other windows of its stream."""
        case = self.cases.get(window)
        return case is not None and case.weight >= SUSPECT_AFTER

    def must_wait(self, window: int) -> bool:
        """Whether it may have killed enough workers, and that will be known soon."""
        case = self.cases.get(window)
        return case is not None and bool(case.accused) and case.weight >= case.limit

    def is_guilty(self, window: int) -> bool:
        """Whether it is to be given up."""
        case = self.cases.get(window)
        return case is not None and len(case.deaths) >= case.limit

    def accuse(self, worker: WorkerId, windows: Iterable[int]) -> None:
        """The windows were with a worker that may be gone."""
        for window in windows:
            case = self.cases.setdefault(window, Case())
            case.accused.setdefault(worker, case.weight >= SUSPECT_AFTER)

    def accused(self) -> set[WorkerId]:
        """Workers that a window may have killed."""
        return {worker for case in self.cases.values() for worker in case.accused}

    def accused_of(self, worker: WorkerId) -> list[int]:
        """Windows that may have killed the worker."""
        return [window for window, case in self.cases.items() if worker in case.accused]

    def charge(self, worker: WorkerId, *, alone: bool) -> list[int]:
        """The worker is lost; the windows that are charged with it."""
        charged = self.accused_of(worker)
        for window in charged:
            case = self.cases[window]
            case.deaths[worker] = case.accused.pop(worker) and alone
        return charged

    def acquit(self, worker: WorkerId) -> None:
        """The worker lives, or left of its own accord."""
        for window in self.accused_of(worker):
            case = self.cases[window]
            del case.accused[worker]
            if not case.weight:
                del self.cases[window]

    def absolve(self, worker: WorkerId) -> None:
        """The worker was taken for lost, and lives."""
        for window, case in tuple(self.cases.items()):
            case.deaths.pop(worker, None)
            if not case.weight:
                del self.cases[window]


def describe_window(index: int, window: Window, consumed_row: int) -> Quarantined:
    """Names the files, row groups and rows of a window that is given up."""
    named = [_describe(split) for split in window.splits[:_SPLITS_NAMED]]
    if len(window.splits) > _SPLITS_NAMED:
        named.append(f"{len(window.splits) - _SPLITS_NAMED} more")
    what = ", ".join(named)
    if consumed_row:
        what += f", all but the first {consumed_row} rows of what becomes of them"
    paths = {split.path for split in window.splits}
    path = paths.pop() if len(paths) == 1 else None
    return Quarantined(index, what, path, total_rows(window.splits))


def _describe(split: Split) -> str:
    rows = f"rows {split.start}..{split.stop - 1}"
    if split.path is None:
        return rows
    if split.row_groups is None:
        return repr(split.path) if split.rows is None else f"{split.path!r} {rows}"
    groups = ", ".join(map(str, split.row_groups))
    return f"{split.path!r} row group {groups} {rows}"
