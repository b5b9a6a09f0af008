"""When workers without a coordinator may train: the stages that the chief announces."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from pstrain.config import ParameterConfig
from pstrain.errors import AbortedError, DeadlineExceededError, NotFoundError
from pstrain.paramserver.server import Sessions
from pstrain.trainer.client import RemoteParameters
from pstrain.v1.membership import Membership


class Servers:
    """Two parameter servers; the variables of the current session are on the first."""

    def __init__(self) -> None:
        self.each = [Sessions(), Sessions()]
        self.values: dict[tuple[str, int], np.ndarray] = {}


class Parameters:
    """The requests of one task to the servers."""

    addresses = ("ps0", "ps1")
    session = ""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    def change_session(self, session: str) -> None:
        self.session = session

    def status(self, ps: int, *, timeout_s: float) -> dict[str, Any]:  # noqa: ARG002
        return self._servers.each[ps].status()

    def sessions(self, *, timeout_s: float) -> list[Any]:  # noqa: ARG002
        return [each.status()["session"] for each in self._servers.each]

    def begin_session(self, ps: int, *conditions: str) -> None:
        self._servers.each[ps].begin(self.session, *conditions)

    def create(self, spec: Any) -> None:
        self._servers.values[self.session, spec.id] = np.zeros(spec.shape, np.int64)

    def read(self, spec: Any) -> np.ndarray:
        if self._servers.each[0].status()["session"] != self.session:
            raise AbortedError("another session has begun")
        if (self.session, spec.id) not in self._servers.values:
            raise NotFoundError(f"no variable {spec.name}")
        return self._servers.values[self.session, spec.id]

    def assign(self, spec: Any, _op: str, value: np.ndarray, start: int = 0) -> None:
        self.read(spec)[start : start + len(value)] = value


def task(servers: Servers, number: int, start_timeout_s: float = 0.01) -> Membership:
    parameters = cast("RemoteParameters", Parameters(servers))
    config = ParameterConfig(start_timeout_s=start_timeout_s)
    return Membership(parameters, is_chief=number == 0, workers=2, config=config)


def begun() -> tuple[Servers, Membership, Membership]:
    servers = Servers()
    chief, worker = task(servers, 0), task(servers, 1)
    chief.enter()
    worker.enter()
    return servers, chief, worker


def test_workers_begin_once_the_chief_has_given_the_variables_their_values() -> None:
    _, chief, worker = begun()
    with pytest.raises(DeadlineExceededError, match="initialise the variables"):
        worker.await_next(1)
    assert not chief.others_train
    chief.publish_ready()
    assert chief.others_train
    worker.await_next(1)
    assert worker.is_intact()
    assert not worker.has_ended()


def test_training_ends_when_the_chief_says_so_after_all_reports() -> None:
    _, chief, worker = begun()
    chief.publish_ready()
    worker.await_next(1)
    assert chief.missing() == [0, 1]
    worker.report_done(1)
    assert chief.missing() == [0]
    chief.report_done(0)
    assert chief.missing() == []
    for _ in range(2):
        chief.publish_end()
        assert worker.has_ended()


def test_each_training_of_a_session_is_entered_once() -> None:
    _, chief, worker = begun()
    for _ in range(3):
        chief.publish_ready()
        worker.await_next(1)
        assert not worker.has_ended()
        assert chief.missing() == [0, 1], "reports are of the training before"
        with pytest.raises(DeadlineExceededError, match="its next training to begin"):
            worker.await_next(1)
        worker.report_done(1)
        chief.publish_end()
        with pytest.raises(DeadlineExceededError):
            worker.await_next(1)


def test_training_that_begins_before_the_last_one_has_ended_is_another_one() -> None:
    _, chief, worker = begun()
    chief.publish_ready()
    worker.await_next(1)
    chief.publish_ready()
    assert worker.has_ended()
    worker.await_next(1)
    assert not worker.has_ended()


def test_worker_that_is_started_again_joins_and_takes_its_report_back() -> None:
    servers, chief, worker = begun()
    chief.publish_ready()
    worker.await_next(1)
    worker.report_done(1)
    again = task(servers, 1)
    again.enter()
    again.await_next(1)
    assert chief.missing() == [0, 1]


def test_session_that_has_ended_is_left_to_those_who_were_in_it() -> None:
    servers, chief, _ = begun()
    chief.publish_ready()
    task(servers, 1).enter()
    chief.publish_end()
    late = task(servers, 1)
    with pytest.raises(DeadlineExceededError, match="to begin a session"):
        late.enter()
    task(servers, 0).enter()
    late.enter()


def test_workers_follow_the_chief_into_the_session_that_it_begins_after_a_loss() -> None:
    servers, chief, worker = begun()
    chief.publish_ready()
    worker.await_next(1)
    servers.each[1] = Sessions()
    assert not worker.is_intact()
    assert not chief.was_replaced()
    with pytest.raises(DeadlineExceededError):
        worker.enter()
    chief.enter()
    assert not chief.others_train
    worker.enter()
    with pytest.raises(DeadlineExceededError):
        worker.await_ready()
    chief.publish_ready()
    for _ in range(2):
        worker.await_ready()
    assert worker.is_intact()
    assert not worker.has_ended()


def test_session_of_a_coordinator_or_without_variables_is_not_entered() -> None:
    servers, _, worker = begun()
    variables = list(servers.values.items())
    for later, kind, has_variables in ((1, "", True), (2, "-v1", False)):
        session = f"session-9999999999999999999{later}{kind}-x"
        for each in servers.each:
            each.begin(session)
        if has_variables:
            servers.values |= {(session, number): value for (_, number), value in variables}
        with pytest.raises(DeadlineExceededError):
            worker.enter()
