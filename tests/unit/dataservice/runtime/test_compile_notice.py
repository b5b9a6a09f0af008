"""The notice of kernel compilation: logged once when compiling takes long, else never."""

from __future__ import annotations

import logging

import pytest

from dataservice.runtime.compile_notice import CompileNotice


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def compile_one(notice: CompileNotice, clock: Clock, time_s: float) -> None:
    notice.begin()
    clock.now_s += time_s
    notice.end()


def test_compilation_that_is_long_in_total_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    notice = CompileNotice(clock)
    compile_one(notice, clock, 1.9)
    clock.now_s += 60.0  # between two compilations the program does other things
    assert not caplog.messages
    for _ in range(3):
        compile_one(notice, clock, 0.2)
    notice.tell()
    assert len(caplog.messages) == 1
    assert "compiling kernels" in caplog.messages[0]
    # Which is shown where nobody has set logging up.
    assert caplog.records[0].levelno == logging.WARNING


def test_nested_compilation_time_is_counted_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    notice = CompileNotice(clock)
    notice.begin()
    compile_one(notice, clock, 1.2)
    clock.now_s += 0.7
    notice.end()
    assert not caplog.messages
