"""The recovery of a fit: when its loop is run again, when the fit ends, and when it fails."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pstrain.errors import AbortedError, DataServiceError, RolledBackError, ServerLostError
from pstrain.execution.resumption import Recovery, recovery


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


class Recorded:
    """The progress and the values of a fit with two checkpoint managers; notes what is called.

    ``lost``: at which calls of the loop a server is lost; ``lost_late``: at which ends of the fit.
    """

    is_behind = False

    def __init__(self, lost: tuple[int, ...] = (), lost_late: tuple[int, ...] = ()) -> None:
        self._lost, self._lost_late = lost, lost_late
        self.calls: list[str] = []

    def note(self, call: str) -> int:
        self.calls.append(call)
        return self.calls.count(call)

    def loop(self) -> None:
        if self.note("loop") in self._lost:
            raise ServerLostError("gone")

    def wait(self) -> None:
        self.note("wait for save")
        if "roll back" in self.calls and "go back" not in self.calls:
            raise OSError("the save needed the server that was lost")

    def check_intact(self) -> None:
        self.note("check")

    def end_restoring(self, _is_behind: Callable[[], bool]) -> bool:
        return self.note("end") not in self._lost_late

    def wait_rolled_back(self, _error: Exception) -> bool:
        return bool(self.note("roll back"))

    def go_back(self) -> None:
        self.note("go back")

    def train(self, managers: int) -> list[str]:
        this: Any = self
        Recovery(this, this, [this] * managers).train(self.loop)
        return self.calls


SAVES = ["wait for save"] * 2
ENDS = [*SAVES, "check", "end"]
# Another server may be lost while a save ends, so what is restored is waited for once more.
BACK = ["roll back", *SAVES, "roll back", "go back"]


def test_fit_ends_once_all_saves_are_complete_and_no_server_was_lost() -> None:
    assert Recorded().train(managers=2) == ["loop", *ENDS]


def test_fit_runs_again_after_a_restore_when_saves_that_were_given_up_have_ended() -> None:
    assert Recorded(lost=(1,)).train(managers=2) == ["loop", *BACK, "loop", *ENDS]


def test_fit_whose_server_is_lost_at_its_end_waits_for_the_restore() -> None:
    again = ["loop", *ENDS]
    assert Recorded(lost_late=(1,)).train(managers=2) == [*again, *BACK, *again]


def test_fit_without_checkpoint_asks_for_no_restore() -> None:
    assert Recorded().train(managers=0) == ["loop"]
    fit = Recorded(lost=(1,))
    with pytest.raises(ServerLostError):
        fit.train(managers=0)
    assert fit.calls == ["loop"]


class Coordinated:
    """A coordinator's values with a checkpoint manager, whose checkpoint has a fit's ``state``."""

    resumes = True

    def __init__(self, state: Any) -> None:
        self.recovery = self.checkpoint = self
        self.open: list[str] = []
        self._state = state

    def attach(self, name: str, _progress: Any) -> Any:
        self.open.append(name)
        return self._state

    def detach(self, name: str) -> None:
        self.open.remove(name)

    @contextlib.contextmanager
    def rolling_back(self, manager: Any) -> Iterator[None]:
        assert manager is self
        self.open.append("rolling back")
        try:
            yield
        finally:
            self.open.remove("rolling back")

    def give_up(self) -> None:
        self.open.append("given up")


def progress_noting(calls: list[Any]) -> Any:
    progress = SimpleNamespace(is_behind=False)

    def load(state: Any) -> None:
        progress.is_behind = True
        calls.append(state)

    def go_back() -> None:
        progress.is_behind = False
        calls.append("go back")

    progress.load_state_dict, progress.go_back = load, go_back
    return progress


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_fit_is_in_the_coordinators_checkpoint_only_while_it_runs(
    error: type[BaseException] | None,
) -> None:
    executor: Any = Coordinated(None)
    with contextlib.suppress(KeyboardInterrupt), recovery(executor, progress_noting([]), (), 0):
        assert executor.open == ["fit", "rolling back"]
        if error is not None:
            raise error
    assert executor.open == ["given up"] * (error is not None)


@pytest.mark.parametrize(
    ("state", "continues"),
    [
        (None, False),
        ({"is_over": True, "epoch": 3}, False),
        ({"is_over": False, "epoch": 0}, False),
        ({"is_over": False, "epoch": 1}, True),
    ],
)
def test_fit_goes_on_from_the_unfinished_one_that_the_coordinator_restored(
    state: Any, continues: bool
) -> None:
    calls: list[Any] = []
    executor: Any = Coordinated(state)
    with recovery(executor, progress_noting(calls), (), 1):
        assert calls == ([state, "go back"] if continues else [])
