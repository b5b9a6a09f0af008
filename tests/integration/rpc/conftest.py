"""Fixtures for tests of RPC calls: an echoing service, its server and a client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dataservice.runtime.rpc import RpcClient, RpcServer
from tests.integration.echo_service import EchoBox, connect, echo_box, serve


@pytest.fixture
def box() -> Iterator[EchoBox]:
    with echo_box() as box:
        yield box


@pytest.fixture
def server(box: EchoBox) -> Iterator[RpcServer]:
    with serve(box) as server:
        yield server


@pytest.fixture
def client(server: RpcServer) -> Iterator[RpcClient]:
    with connect(server.port) as client:
        yield client
