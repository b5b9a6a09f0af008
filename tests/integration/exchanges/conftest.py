"""Fixtures for tests of exchanges: a server and a client, over each transport."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration import exchange_ends
from tests.integration.exchange_ends import ENDS, TIMEOUT_S, Ends


@pytest.fixture(params=sorted(ENDS))
def ends(request: pytest.FixtureRequest) -> Ends:
    return ENDS[request.param]


@pytest.fixture
def server(ends: Ends) -> Iterator[Any]:
    running = ends.serve()
    yield running
    running.stop()


@pytest.fixture
def client(ends: Ends, server: Any) -> Iterator[Any]:
    with ends.connect(server.address) as connected:
        yield connected


@pytest.fixture
def peer(ends: Ends) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yields a server process and its address."""
    process = subprocess.Popen(
        [sys.executable, exchange_ends.__file__, "serve", ends.name],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    yield process, process.stdout.readline().strip()
    process.kill()
    process.wait(TIMEOUT_S)
    process.stdout.close()
    process.stdin.close()
