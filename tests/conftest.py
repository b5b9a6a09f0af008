"""Rules for all tests: unit tests may not sleep, open sockets or start processes.

A unit test that needs any of these belongs in tests/integration. The user's own token, caches and
TF_CONFIG are out of the tests' reach.
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

from dataservice.runtime.process.children import without_collection

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Background jobs of a script ignore SIGINT; programs that tests interrupt would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("house", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("house")

_COLLECT_AFTER = 20_000

UNIT = pathlib.Path(__file__).parent / "unit"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Registers the options of tests/chaos: pytest needs them before it collects these tests."""
    group = parser.getgroup("chaos", "killing real processes by seeded schedules")
    group.addoption("--chaos-seeds", type=int, default=0, help="random schedules to play (0)")
    group.addoption("--chaos-first", type=int, default=0, help="the first seed of them (0)")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    """With `-n`, runs a file's tests in one process, as they share the file's clusters.

    Files start in the order of collection: chaos and integration, which wait for processes, come
    before the many short files of the rest, which fill the time that is left.
    """
    config.option.loadscopereorder = False
    return LoadFileScheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Collects tests without garbage collection, which would scan thousands of lasting objects."""
    with without_collection():
        collected = yield
    # Reference counts free nearly all that tests make; tests about garbage call the collector.
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
def _isolated_user_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
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
    """Gives the test's variables in this process ids of their own, and drops them at its end."""
    # Imported here: few tests need it, and the import takes longer than most other tests run.
    from pstrain.variables.scope import local_parameters

    with local_parameters():
        yield
