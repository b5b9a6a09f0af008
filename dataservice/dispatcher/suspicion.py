"""Suspicions against windows: which ones may have killed workers, and which ones are given up.

Pure. A window is accused when its stream breaks, and charged with a death when that worker is lost.
A worker that is heard of again acquits the window; if it had been taken for lost after a long
silence, the charge of its death is withdrawn. Windows that ran together are charged together, and
suspects are run alone. Invariant: a window is given up after `MAX_DEATHS` deaths if it was alone in
one of them; if other streams of its workers never leave it alone, after twice as many.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dataservice.sharding import Split, Window, bytes_of_lines, total_rows
from dataservice.vocabulary import WorkerId

# One death is no pattern: a lost worker leaves many windows, and suspects slow an epoch down.
SUSPECT_AFTER: Final = 2
MAX_DEATHS: Final = 3
_SPLITS_NAMED: Final = 5


class Quarantined(NamedTuple):
    """A window that was given up; `rows` counts the rows of its source, None if not known."""

    window: int
    what: str
    path: str | None
    rows: int | None


@dataclass(slots=True)
class Case:
    """The evidence against a window, by worker.

    `deaths` has the lost workers, each with whether the window was its only accused one and a
    suspect already. `accused` has the workers not heard of since their stream broke, each with
    whether the window was a suspect already at that time.
    """

    deaths: dict[WorkerId, bool] = field(default_factory=dict)
    accused: dict[WorkerId, bool] = field(default_factory=dict)

    @property
    def weight(self) -> int:
        return len(self.deaths) + len(self.accused)

    def named(self) -> set[WorkerId]:
        """Returns the workers that the case is about."""
        return self.deaths.keys() | self.accused.keys()

    @property
    def limit(self) -> int:
        is_clear = any(self.deaths.values()) or len(self.deaths) < MAX_DEATHS
        return MAX_DEATHS if is_clear else 2 * MAX_DEATHS


@dataclass(slots=True)
class Suspicions:
    """The cases of an iteration's open windows.

    `windows_of` has the windows whose cases name a worker, as a lost rack leaves thousands of
    cases.
    """

    cases: dict[int, Case] = field(default_factory=dict)
    windows_of: dict[WorkerId, set[int]] = field(default_factory=dict, compare=False)

    def restore(self, window: int, case: Case) -> None:
        """Adds a case as it was before."""
        self.cases[window] = case
        for worker in case.named():
            self.windows_of.setdefault(worker, set()).add(window)

    def drop(self, window: int) -> None:
        """Forgets the case against a window that is done, if there is one."""
        case = self.cases.pop(window, None)
        for worker in () if case is None else case.named():
            self._unlink(worker, window)

    def _unlink(self, worker: WorkerId, window: int) -> None:
        self.windows_of[worker].discard(window)
        if not self.windows_of[worker]:
            del self.windows_of[worker]

    def is_suspect(self, window: int) -> bool:
        """True if the window must not run beside other windows of its stream."""
        case = self.cases.get(window)
        return case is not None and case.weight >= SUSPECT_AFTER

    def must_wait(self, window: int) -> bool:
        """True if the window is guilty should its pending accusations hold, which is known soon."""
        case = self.cases.get(window)
        return case is not None and bool(case.accused) and case.weight >= case.limit

    def is_guilty(self, window: int) -> bool:
        """True if the window is to be given up."""
        case = self.cases.get(window)
        return case is not None and len(case.deaths) >= case.limit

    def accuse(self, worker: WorkerId, windows: Iterable[int]) -> None:
        """Accuses the windows that were leased to a worker which may be gone."""
        for window in windows:
            case = self.cases.setdefault(window, Case())
            case.accused.setdefault(worker, case.weight >= SUSPECT_AFTER)
            self.windows_of.setdefault(worker, set()).add(window)

    def accused(self) -> set[WorkerId]:
        """Returns the workers that some window is accused of having killed."""
        return {worker for case in self.cases.values() for worker in case.accused}

    def accused_of(self, worker: WorkerId) -> list[int]:
        """Returns the windows that are accused of having killed the worker."""
        named = sorted(self.windows_of.get(worker, ()))
        return [window for window in named if worker in self.cases[window].accused]

    def charge(self, worker: WorkerId, *, alone: bool) -> list[int]:
        """Turns the accusations about a lost worker into charges; returns the charged windows.

        `alone`: only one window is accused of this worker's death.
        """
        charged = self.accused_of(worker)
        for window in charged:
            case = self.cases[window]
            case.deaths[worker] = case.accused.pop(worker) and alone
        return charged

    def acquit(self, worker: WorkerId) -> None:
        """Drops the accusations about a worker that lives or left by itself."""
        for window in self.accused_of(worker):
            del self.cases[window].accused[worker]
            self._close(worker, window)

    def absolve(self, worker: WorkerId) -> None:
        """Drops the charges about a worker that was taken for lost and lives."""
        for window in tuple(self.windows_of.get(worker, ())):
            self.cases[window].deaths.pop(worker, None)
            self._close(worker, window)

    def _close(self, worker: WorkerId, window: int) -> None:
        """Ends what a case has about a worker, and the case if nothing is left of it."""
        case = self.cases[window]
        if worker not in case.named():
            self._unlink(worker, window)
        if not case.weight:
            del self.cases[window]


def describe_window(index: int, window: Window, consumed_row: int) -> Quarantined:
    """Describes a window that is given up by its files, row groups and rows."""
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
    if split.row_groups is None and split.rows is None:
        return repr(split.path) + bytes_of_lines(split)
    if split.row_groups is None:
        return f"{split.path!r} {rows}"
    groups = ", ".join(map(str, split.row_groups))
    return f"{split.path!r} row group {groups} {rows}"
