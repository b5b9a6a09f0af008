"""What a program, and a link to a trainer, make of errors that come of a lost parameter server."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from pstrain.coordinator.link import TrainerLink
from pstrain.coordinator.orders import Ended
from pstrain.coordinator.restoring import RecoverySwitch, Restorer
from pstrain.errors import AbortedError, DataServiceError, RolledBackError, ServerLostError
from pstrain.resumption import Recovery


class Link(TrainerLink):
    """Its trainer's messages are given."""

    def __init__(self, replies: list[list[Ended]], losses: list[Exception]) -> None:
        self.heard: list[int] = []
        self.index = 0
        self._slots = 1
        self._stopping = threading.Event()
        self._configuration: Any = SimpleNamespace(session="s", incarnation=1)
        self._servers: Any = SimpleNamespace(session="s")
        self._recovery: Any = SimpleNamespace(is_restoring=False, notice=losses.__contains__)
        self._scheduler: Any = SimpleNamespace(
            trainer_joined=lambda *_: None,
            reads_services=lambda _: (frozenset(), ()),
            results=lambda _, ended: self.heard.extend(end.closure for end in ended),
        )
        self._replies = [SimpleNamespace(services=(), results=r, positions=()) for r in replies]
        self.address = "trainer:1"

    def serve(self) -> None:
        self._serve(SimpleNamespace(stream=lambda *_: self._replies))  # type: ignore[arg-type]

    def _ended(self, result: Any) -> Ended:
        return result  # type: ignore[no-any-return]


def ended(closure: int, error: Exception | None = None) -> Ended:
    return Ended(closure, 0, None, error)


def test_nothing_counts_that_a_trainer_says_together_with_a_lost_server() -> None:
    """The marks of the other closure cover the row of the one that changed nothing."""
    lost = ServerLostError("gone")
    link = Link([[ended(1)], [ended(2, lost), ended(3)], [ended(4)]], losses=[lost])
    with pytest.raises(ServerLostError):
        link.serve()
    assert link.heard == [1]


def test_a_closure_that_failed_for_other_reasons_is_heard() -> None:
    link = Link([[ended(1, ValueError("x")), ended(2)]], losses=[])
    link.serve()
    assert link.heard == [1, 2]


class OpenLater:
    """A restorer that is restoring until somebody waits for it."""

    is_restoring = True

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def wait_open(self) -> None:
        self.is_restoring = False

    def outlast(self, _error: Exception) -> bool:
        return False


def test_who_is_rolled_back_waits_until_all_the_rest_is_back() -> None:
    switch, restorer = RecoverySwitch(), OpenLater()
    switch.use(restorer)  # type: ignore[arg-type]
    assert switch.outlast(RolledBackError("back"))
    assert not restorer.is_restoring
    assert not switch.outlast(AbortedError("another coordinator"))


def test_nobody_goes_back_after_the_restorer_was_stopped() -> None:
    """Who waited for it must not take what is lost for restored."""
    parts: Any = SimpleNamespace(checkpoint=SimpleNamespace(followers=[]))
    restorer = Restorer(parts, parts, parts, parts, leave=lambda: None)
    restorer.stop()
    assert not restorer.wait_restoring(60.0)


class Fit:
    """Progress and executor of a fit; ``ends_meanwhile``: a restore does while it is asked for."""

    def __init__(self, *, ends_meanwhile: bool) -> None:
        self.is_behind = False
        self._ends_meanwhile = ends_meanwhile
        self.runs = 0

    def go_back(self) -> None:
        self.is_behind = False

    def confirm(self) -> None:
        if self.runs == 1:
            raise AbortedError("session s1 is over")

    def went_back(self, error: Exception) -> bool:
        self.is_behind = self.is_behind or self._ends_meanwhile
        return isinstance(error, RolledBackError)

    def run(self) -> None:
        self.runs += 1

    def train(self) -> None:
        manager: Any = SimpleNamespace(wait=lambda: None)
        progress: Any = self
        Recovery(progress, progress, [manager]).train(self.run)


def test_a_request_that_a_restore_overtook_takes_the_fit_back() -> None:
    fit = Fit(ends_meanwhile=True)
    fit.train()
    assert fit.runs == 2
    assert not fit.is_behind


def test_a_fit_whose_servers_another_coordinator_took_fails() -> None:
    fit = Fit(ends_meanwhile=False)
    with pytest.raises(DataServiceError, match="is over"):
        fit.train()
    assert fit.runs == 1
