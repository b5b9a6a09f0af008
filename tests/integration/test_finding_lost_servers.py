"""Real parameter servers that are killed, frozen and started anew are found as what they are."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from dataservice.runtime.process.children import ChildProcess
from pstrain.coordinator.lost_servers import LostServers
from pstrain.errors import AbortedError
from pstrain.strategy import ParameterServerStrategy
from tests.integration.parameter_servers import (
    DEADLINE_S,
    address_of,
    spawn_server,
    strategy_on,
)


@pytest.fixture
def processes() -> Iterator[list[ChildProcess]]:
    """Runs two servers; those that a test adds end with it, too."""
    running = [spawn_server() for _ in range(2)]
    with ExitStack() as ending:
        ending.callback(lambda: [each.terminate() for each in running])
        yield running


@pytest.fixture
def strategy(processes: list[ChildProcess]) -> ParameterServerStrategy:
    return strategy_on([address_of(each) for each in processes])


@pytest.fixture
def lost_servers(strategy: ParameterServerStrategy) -> Iterator[LostServers]:
    found = LostServers(strategy)
    yield found
    found.close()


def until_found(lost_servers: LostServers, what: str) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while what not in str(lost_servers.find(False)):
        assert time.monotonic() < deadline_s


def test_killed_server_is_gone_and_then_anew(
    processes: list[ChildProcess], strategy: ParameterServerStrategy, lost_servers: LostServers
) -> None:
    until_found(lost_servers, "None")
    processes[1].kill()
    until_found(lost_servers, "parameter server 1")
    assert "is gone" in str(lost_servers.find(False))
    port = int(strategy.parameters.addresses[1].rpartition(":")[2])
    processes.append(spawn_server(port))
    address_of(processes[-1])
    until_found(lost_servers, "was started anew")
    strategy.begin_anew()
    lost_servers.forget()
    until_found(lost_servers, "None")


def test_frozen_server_is_not_lost_and_hides_no_loss(
    processes: list[ChildProcess], lost_servers: LostServers
) -> None:
    assert lost_servers.find(False) is None
    processes[0].suspend()
    try:
        assert lost_servers.find(False) is None
        began_s = time.monotonic()
        assert lost_servers.find(False) is None
        assert time.monotonic() - began_s < 0.9, "the second look waits for nobody"
        processes[1].kill()
        until_found(lost_servers, "parameter server 1")
    finally:
        processes[0].resume()


def test_server_of_another_session_is_not_to_be_restored(
    strategy: ParameterServerStrategy, lost_servers: LostServers
) -> None:
    assert lost_servers.find(False) is None
    strategy_on(list(strategy.parameters.addresses))
    with pytest.raises(AbortedError, match="another coordinator has taken over"):
        until_found(lost_servers, "nothing")
