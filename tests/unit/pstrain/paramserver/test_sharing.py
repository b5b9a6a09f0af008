"""Work shared with idle cores: every row once, no wait for a helper that has not begun."""

from __future__ import annotations

import builtins
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataservice.runtime.exchanges.message import Message
from pstrain.paramserver import sharing
from pstrain.paramserver.server import ParameterServer
from pstrain.paramserver.sharing import Helpers, in_parts

DEADLINE_S = 60.0
READ_RUNNING = sharing._running


@pytest.fixture
def helpers() -> Iterator[Helpers]:
    made = Helpers(cores=2)
    yield made
    made.stop()


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(0, 70_000), cores=st.integers(0, 5), stopped=st.booleans())
def test_every_row_is_processed_once(rows: int, cores: int, stopped: bool) -> None:
    helpers, counts = Helpers(cores), np.zeros(rows, np.int64)

    def work(start: int, stop: int) -> None:
        counts[start:stop] += 1

    if stopped:
        helpers.stop()
    with helpers.working():
        in_parts(rows, work)
    helpers.stop()
    assert (counts == 1).all()


def test_running_threads_of_the_machine_are_known_or_none_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = READ_RUNNING()
    assert count >= (1 if sys.platform == "linux" else 0)

    def refuse(*_: object, **__: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(builtins, "open", refuse)
    assert READ_RUNNING() == 0


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "_running", lambda: 1)


def threads_of(rows: int) -> set[int]:
    """Returns the threads that work; the first parts of two threads wait for each other."""
    found, both = set(), threading.Barrier(2)

    def work(start: int, _stop: int) -> None:
        if threading.get_ident() not in found:
            found.add(threading.get_ident())
            if start < 2 * sharing._PART_ROWS:
                both.wait(DEADLINE_S)

    in_parts(rows, work)
    return found


def runs_alone(rows: int) -> bool:
    """True if this thread does all rows in a single call."""
    calls = []
    in_parts(rows, lambda start, stop: calls.append((start, stop, threading.get_ident())))
    return calls == [(0, rows, threading.get_ident())]


def test_idle_core_takes_part_of_the_rows(helpers: Helpers) -> None:
    with helpers.working():
        assert len(threads_of(60_000)) == 2
        assert len(threads_of(60_000)) == 2


def test_work_is_not_shared_during_other_requests_or_for_few_rows(helpers: Helpers) -> None:
    assert runs_alone(60_000)
    with helpers.working():
        assert runs_alone(1_000)
    inside, leave = threading.Event(), threading.Event()

    def serve() -> None:
        with helpers.working():
            inside.set()
            leave.wait(DEADLINE_S)

    other = threading.Thread(target=serve)
    other.start()
    try:
        assert inside.wait(DEADLINE_S)
        with helpers.working():
            assert runs_alone(60_000)
    finally:
        leave.set()
        other.join(DEADLINE_S)
    with helpers.working():
        assert len(threads_of(60_000)) == 2


def test_work_is_not_shared_while_other_programs_use_the_cores(
    helpers: Helpers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "_running", lambda: 2)
    with helpers.working():
        assert runs_alone(60_000)


def test_helper_that_has_not_begun_is_not_waited_for() -> None:
    helpers = Helpers(cores=2)
    busy, leave, mine = threading.Event(), threading.Event(), []

    def hold() -> None:
        busy.set()
        leave.wait(DEADLINE_S)

    held = helpers._threads.submit(hold)
    assert busy.wait(DEADLINE_S)
    with helpers.working():
        in_parts(60_000, lambda start, stop: mine.append(stop - start))
    assert sum(mine) == 60_000
    assert not held.done()
    leave.set()
    helpers.stop()


def test_error_in_helper_thread_is_raised(helpers: Helpers) -> None:
    def work(start: int, _stop: int) -> None:
        if start:
            raise MemoryError("no room")

    with helpers.working():
        with pytest.raises(MemoryError):
            in_parts(60_000, work)
        assert len(threads_of(60_000)) == 2


def test_request_ends_after_the_part_of_its_helper(helpers: Helpers) -> None:
    """Else the values would be sent, or the memory reused, while rows are still being copied."""
    requester, both, ended = threading.get_ident(), threading.Barrier(2), list[int]()

    def work(start: int, _stop: int) -> None:
        if start < 2 * sharing._PART_ROWS:
            both.wait(DEADLINE_S)  # so that each thread takes one
        if threading.get_ident() != requester:
            threading.Event().wait(0.05)  # the requester is through with its own parts by then
        ended.append(start)

    with helpers.working():
        in_parts(60_000, work)
        assert sorted(ended) == list(range(0, 60_000, sharing._PART_ROWS))


def test_error_of_the_helper_alone_is_raised(helpers: Helpers) -> None:
    requester, both = threading.get_ident(), threading.Barrier(2)

    def work(start: int, _stop: int) -> None:
        if start < 2 * sharing._PART_ROWS:
            both.wait(DEADLINE_S)
        if threading.get_ident() != requester:
            raise MemoryError("no room")

    with helpers.working(), pytest.raises(MemoryError):
        in_parts(60_000, work)


def test_requests_give_back_only_cores_that_they_took(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "_running", lambda: 0)  # else this thread alone would count
    helpers = Helpers(cores=1)
    with helpers.working(), helpers.working(), helpers.working():
        pass
    with helpers.working():
        assert runs_alone(60_000), "the only core is this request's"
    helpers.stop()


def test_stopped_helpers_help_no_more(helpers: Helpers) -> None:
    helpers.stop()
    with helpers.working():
        calls = set[int]()
        in_parts(60_000, lambda *_: calls.add(threading.get_ident()))
    assert calls == {threading.get_ident()}
    assert not any(thread.is_alive() for thread in helpers._threads._threads)


class Channel:
    """A channel on which one request arrives, through shared memory or over a network."""

    def __init__(self, *, shares_memory: bool) -> None:
        self.shares_memory = shares_memory

    def recv(self) -> Message:
        return Message(b"{}", None)


@pytest.mark.parametrize("shares_memory", [True, False])
def test_requests_are_helped_whichever_way_they_come(
    shares_memory: bool, helpers: Helpers, monkeypatch: pytest.MonkeyPatch
) -> None:
    server: Any = object.__new__(ParameterServer)
    helped_by: list[Helpers] = []
    monkeypatch.setattr(server, "_helpers", helpers, raising=False)
    monkeypatch.setattr(
        server, "_reply", lambda *_: helped_by.append(sharing._of_thread.helpers), raising=False
    )
    assert server._answer_one(Channel(shares_memory=shares_memory))
    assert helped_by == [helpers]
