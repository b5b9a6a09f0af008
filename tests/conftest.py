"""What all tests share: unit tests may neither sleep nor open sockets, and nothing may be left.

A unit test that needs either belongs in tests/integration.
"""

from __future__ import annotations

import gc
import os
import pathlib
import signal
import socket
import subprocess
import time
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

from dataservice.runtime.process import without_collection

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So it is in the background of a script, and would be for the programs that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("house", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("house")

_COLLECT_AFTER = 20_000

UNIT = pathlib.Path(__file__).parent / "unit"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options must be known before the tests that they are for."""
    group = parser.getgroup("chaos", "killing real processes by seeded schedules")
    group.addoption("--chaos-seeds", type=int, default=0, help="random schedules to play (0)")
    group.addoption("--chaos-first", type=int, default=0, help="the first seed of them (0)")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    """With `-n`, a file stays in one process, for the clusters that its tests share.

    Files begin in the order of collection: chaos and integration, which wait for processes, come
    before the many short files of the rest, which fill what time is left.
    """
    config.option.loadscopereorder = False
    return LoadFileScheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Thousands of tests are objects that stay: a garbage collection need not look through them."""
    with without_collection():
        collected = yield
    # Nearly all that tests make goes without it, and those that are about garbage collect it.
    gc.set_threshold(_COLLECT_AFTER)
    return collected


def _is_unit(item: pytest.Item | pytest.FixtureRequest) -> bool:
    return UNIT in pathlib.Path(str(item.path)).parents


@pytest.fixture(autouse=True)
def _unit_tests_are_pure(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes sleeping, sockets and child processes fail in tests/unit."""
    if not _is_unit(request):
        return

    def refuse(what: str) -> object:
        def refused(*_args: object, **_kwargs: object) -> None:
            pytest.fail(f"a unit test may not use {what}: move it to tests/integration")

        return refused

    monkeypatch.setattr(time, "sleep", refuse("time.sleep"))
    monkeypatch.setattr(socket.socket, "connect", refuse("sockets"))
    monkeypatch.setattr(socket.socket, "bind", refuse("sockets"))
    monkeypatch.setattr(subprocess, "Popen", refuse("child processes"))


@pytest.fixture(autouse=True, scope="session")
def _own_token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps the user's own token and caches out of the tests, and the tests' out of the user's."""
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    patch.delenv("DATASERVICE_TOKEN", raising=False)
    patch.delenv("DATASERVICE_TOKEN_FILE", raising=False)
    patch.delenv("TF_CONFIG", raising=False)
    yield
    patch.undo()


@pytest.fixture
def own_parameters() -> Iterator[None]:
    """Variables that the test makes in this process have ids of their own, and end with it."""
    # What few tests need takes longer to import than most of the others run.
    from pstrain.variables.scope import local_parameters

    with local_parameters():
        yield
