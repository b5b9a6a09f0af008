"""Errors on a worker: what readers are told of them, and what is not kept in memory with them."""

from __future__ import annotations

import contextlib
import gc
import traceback
import weakref
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dataservice.errors import UnavailableError, UserFunctionError
from dataservice.worker.failures import outcome_of, reportable
from dataservice.worker.flow_control import send_frames
from dataservice.worker.outgoing import FrameBuffer
from dataservice.worker.rebatch import Element


class Rows:
    """A stand-in for memory that must not be kept."""


@pytest.fixture(autouse=True)
def without_collector() -> Iterator[None]:
    """Turns the garbage collector off: what only it would free is kept for too long."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_successful_work_has_no_failure() -> None:
    done: list[int] = []
    assert outcome_of(lambda: done.append(1)) is None
    assert done == [1]


def test_kept_failure_frees_rows_and_keeps_traceback() -> None:
    alive: list[weakref.ref[Rows]] = []

    def rows() -> Iterator[Rows]:
        made = Rows()
        alive.append(weakref.ref(made))
        yield made

    def fail(_given: Rows) -> None:
        raise ValueError("no room")

    def work() -> None:
        for given in rows():
            fail(given)

    failure = outcome_of(work)
    assert isinstance(failure, ValueError)
    assert [ref() for ref in alive] == [None]
    assert "in fail" in "".join(traceback.format_exception(failure))


def test_cause_of_kept_failure_frees_its_rows() -> None:
    alive: list[weakref.ref[Rows]] = []

    def read() -> None:
        held = Rows()
        alive.append(weakref.ref(held))
        raise OSError("the disk")

    def work() -> None:
        try:
            read()
        except OSError as error:
            raise ValueError("unreadable") from error

    failure = outcome_of(work)
    assert isinstance(failure, ValueError)
    assert isinstance(failure.__cause__, OSError)
    assert [ref() for ref in alive] == [None]


def test_error_with_cyclic_causes_is_reportable() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert reportable(one) is one


@pytest.mark.parametrize("left", [SystemExit(3), KeyboardInterrupt()])
def test_program_exit_in_user_function_is_reported_as_its_error(left: BaseException) -> None:
    def work() -> None:
        raise left

    failure = outcome_of(work)
    assert isinstance(failure, UserFunctionError)
    assert type(left).__name__ in str(failure)
    assert failure.__cause__ is left


class Reader:
    """A reader that takes one frame, upon which the worker gives its stream up."""

    shares_memory = True

    def __init__(self, frames: FrameBuffer) -> None:
        self._frames = frames

    def send(self, _header: bytes, _body: Any = None) -> None:
        self._frames.discard()

    def recv(self) -> None:
        return None

    def cancelled(self) -> bool:
        return False


def test_discarded_stream_frees_its_last_frame() -> None:
    before = pa.total_allocated_bytes()
    frames = FrameBuffer(1 << 20, None)
    frames.put(Element(pa.record_batch({"x": pc.random(10_000)}), (), divisible=True))
    with contextlib.suppress(UnavailableError):
        send_frames(frames, Reader(frames), 4)
    assert pa.total_allocated_bytes() == before
    assert frames.size_bytes == 0
