"""When a failed call is tried again, when it is given up, and what is logged meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from dataservice.errors import (
    CancelledError,
    DataServiceError,
    DeadlineExceededError,
    NotFoundError,
    UnavailableError,
)
from dataservice.runtime.retry import MAX_PAUSE_S, retry_until
from tests.unit.manual_clock import ManualClock


class Caller:
    """A caller of a peer that fails a given number of times, with a clock of its own."""

    def __init__(self, failures: int, error: DataServiceError, attempt_s: float = 0.0) -> None:
        self.clock = ManualClock()
        self.limits_s: list[float] = []
        self.started_s: list[float] = []
        self._failures = failures
        self._error = error
        self._attempt_s = attempt_s

    def attempt(self, limit_s: float) -> str:
        self.limits_s.append(limit_s)
        self.started_s.append(self.clock())
        if len(self.limits_s) <= self._failures:
            self.clock.advance(min(self._attempt_s, limit_s))
            raise self._error
        return "reply"

    def wait(self, seconds: float) -> bool:
        self.clock.advance(seconds)
        return False

    def run(self, wait: Callable[[float], bool] | None = None, **settings: Any) -> str:
        settings = {"timeout_s": 60.0, "attempt_timeout_s": 5.0, **settings}
        return retry_until(
            self.attempt,
            waiting_for="the dispatcher at host:1",
            wait=wait or self.wait,
            clock=self.clock,
            **settings,
        )


UNAVAILABLE = UnavailableError("connection refused")


@pytest.mark.parametrize("error", [UNAVAILABLE, DeadlineExceededError("no answer")])
def test_retry_continues_until_attempt_succeeds(error: DataServiceError) -> None:
    caller = Caller(7, error)
    assert caller.run() == "reply"
    assert len(caller.limits_s) == 8


def test_pauses_between_attempts_grow_to_limit() -> None:
    caller = Caller(30, UNAVAILABLE)
    caller.run()
    pauses_s = [b - a for a, b in zip(caller.started_s, caller.started_s[1:], strict=False)]
    assert pauses_s[0] <= 0.05
    assert all(MAX_PAUSE_S / 2 <= pause <= MAX_PAUSE_S + 1e-9 for pause in pauses_s[6:])


def test_retry_gives_up_at_deadline_naming_awaited_peer() -> None:
    caller = Caller(10_000, UNAVAILABLE)
    with pytest.raises(
        UnavailableError, match="the dispatcher at host:1 after 60 s: connection refused"
    ) as caught:
        caller.run()
    # No attempt begins if less time is left than one is worth.
    assert 59.99 <= caller.clock() <= 60.0 + 1e-9
    assert caught.value.__cause__ is UNAVAILABLE


def test_last_attempt_is_cut_short_at_deadline() -> None:
    caller = Caller(10_000, DeadlineExceededError("no answer"), attempt_s=5.0)
    with pytest.raises(DeadlineExceededError, match="gave up"):
        caller.run(timeout_s=12.0)
    assert caller.limits_s[0] == 5.0
    assert 11.99 <= caller.clock() <= 12.0 + 1e-9


def test_non_retryable_error_is_raised_at_once() -> None:
    caller = Caller(1, NotFoundError("no such job"))
    with pytest.raises(NotFoundError, match="no such job"):
        caller.run()
    assert len(caller.limits_s) == 1


def test_retry_warns_after_two_seconds_and_then_every_ten(caplog: pytest.LogCaptureFixture) -> None:
    caller = Caller(10_000, UNAVAILABLE)
    with caplog.at_level(logging.WARNING), pytest.raises(UnavailableError):
        caller.run(timeout_s=25.0)
    assert [record.getMessage().split(" (")[1][:12] for record in caplog.records] == [
        "2 s so far, ",
        "12 s so far,",
        "22 s so far,",
    ]
    assert "waiting for the dispatcher at host:1" in caplog.text
    assert "giving up after 25 s" in caplog.text


def test_short_retry_logs_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Caller(3, UNAVAILABLE).run()
    assert not caplog.records


def test_each_failed_attempt_is_reported_to_on_wait() -> None:
    waits_s: list[float] = []
    Caller(3, UNAVAILABLE).run(on_wait=waits_s.append)
    assert len(waits_s) == 3
    assert waits_s == sorted(waits_s)


def test_retry_ends_within_one_pause_of_stop_request() -> None:
    caller = Caller(10_000, UNAVAILABLE)
    with pytest.raises(CancelledError, match="the dispatcher at host:1"):
        caller.run(should_stop=lambda: caller.clock() >= 5.0)
    assert caller.clock() <= 5.2


def test_stop_request_before_first_attempt_prevents_it() -> None:
    caller = Caller(0, UNAVAILABLE)
    with pytest.raises(CancelledError):
        caller.run(should_stop=lambda: True)
    assert not caller.limits_s


def test_closing_during_pause_cancels_retry() -> None:
    with pytest.raises(CancelledError, match="closed"):
        Caller(10_000, UNAVAILABLE).run(wait=lambda _: True)


def test_last_answer_is_reported_rather_than_timed_out_last_attempt() -> None:
    clock = ManualClock()

    def attempt(limit_s: float) -> str:
        if limit_s == 1.0:
            raise UnavailableError("it is still read by others")
        clock.advance(limit_s)
        raise DeadlineExceededError(f"no answer within {limit_s} s")

    def wait(seconds: float) -> bool:
        clock.advance(seconds)
        return False

    with pytest.raises(UnavailableError, match=r"after 1\.5 s: it is still read by others"):
        retry_until(
            attempt,
            waiting_for="the dispatcher",
            timeout_s=1.5,
            attempt_timeout_s=1.0,
            wait=wait,
            clock=clock,
        )
