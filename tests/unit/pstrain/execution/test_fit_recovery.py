"""The recovery of a fit: when its loop is run again, when the fit ends, and when it fails."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pstrain.errors import AbortedError, DataServiceError, RolledBackError
from pstrain.execution.resumption import Recovery


class Fit:
    """The progress and the executor of a fit.

    ``ends_meanwhile``: whether a restore ends while the fit asks if there was one. ``late``: how
    often a server is lost after the executor was asked for the last time.
    """

    late = 0

    def __init__(self, *, ends_meanwhile: bool) -> None:
        self.is_behind = False
        self._ends_meanwhile = ends_meanwhile
        self.runs = 0

    def go_back(self) -> None:
        self.is_behind = False

    def check_intact(self) -> None:
        if self.runs == 1 and not self.late:
            raise AbortedError("session s1 is over")

    def end_restoring(self, is_behind: Callable[[], bool]) -> bool:
        self.late -= 1
        return self.late < 0 and not is_behind()

    def wait_rolled_back(self, error: Exception) -> bool:
        self.is_behind = self.is_behind or self._ends_meanwhile
        return isinstance(error, RolledBackError)

    def run(self) -> None:
        self.runs += 1

    def train(self) -> None:
        manager: Any = SimpleNamespace(wait=lambda: None)
        progress: Any = self
        Recovery(progress, progress, [manager]).train(self.run)


def test_fit_goes_back_when_request_was_overtaken_by_restore() -> None:
    fit = Fit(ends_meanwhile=True)
    fit.train()
    assert fit.runs == 2
    assert not fit.is_behind


def test_fit_does_not_end_during_restore() -> None:
    fit = Fit(ends_meanwhile=True)
    fit.late = 2
    fit.train()
    assert (fit.runs, fit.is_behind) == (3, False)


def test_fit_fails_when_another_coordinator_took_its_servers() -> None:
    fit = Fit(ends_meanwhile=False)
    with pytest.raises(DataServiceError, match="is over"):
        fit.train()
    assert fit.runs == 1
