"""Fixtures for tests of RPC calls: an echoing service, its server and a client."""

from __future__ import annotations

import select
import subprocess
import sys
from collections.abc import Iterator

import pytest

from dataservice.runtime.rpc import RpcClient, RpcServer
from tests.integration import echo_service
from tests.integration.echo_service import DEADLINE_S, EchoBox, connect, echo_box, serve


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


@pytest.fixture
def peer() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Yields a server in a process of its own, and its port."""
    process = subprocess.Popen(
        [sys.executable, echo_service.__file__, "serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            assert select.select([process.stdout], [], [], DEADLINE_S)[0], "the peer did not start"
            yield process, int(process.stdout.readline())
        finally:
            process.kill()
