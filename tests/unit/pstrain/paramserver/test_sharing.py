"""Work shared with idle cores: every row once, no wait for a helper that has not begun."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pstrain.paramserver import sharing
from pstrain.paramserver.sharing import Helpers, in_parts

DEADLINE_S = 60.0


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
