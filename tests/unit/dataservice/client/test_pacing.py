"""Pacing of a reader's calls to the dispatcher: heartbeats, grouped reports, and idle back-off."""

from __future__ import annotations

import pytest

from dataservice.client.pacing import AGAIN_S, GROUP_S, IDLE_MAX_S, Pacing
from dataservice.config import HEARTBEATS_PER_S


def test_reader_without_news_calls_at_heartbeat_interval() -> None:
    assert Pacing(1.0, 10.0).due_s(urgent=False, idle=False, has_unreported=False) == 11.0


def test_consumed_rows_are_reported_in_groups() -> None:
    assert Pacing(1.0, 10.0).due_s(urgent=False, idle=False, has_unreported=True) == 10.0 + GROUP_S


def test_broken_stream_is_reported_at_once() -> None:
    assert Pacing(1.0, 10.0).due_s(urgent=True, idle=False, has_unreported=False) == 10.0


@pytest.mark.parametrize("asked_s", [None, 0.0])
def test_idle_reader_calls_at_once_then_backs_off(asked_s: float | None) -> None:
    pacing, now_s, gaps = Pacing(1.0, 0.0), 0.0, []
    if asked_s is not None:  # by a dispatcher that has few clients
        pacing.record_interval(asked_s)
    assert pacing.due_s(urgent=False, idle=True, has_unreported=True) == 0.0
    for _ in range(12):
        pacing.record_call(now_s, idle=True)
        due_s = pacing.due_s(urgent=False, idle=True, has_unreported=False)
        gaps.append(due_s - now_s)
        now_s = due_s
    assert 0 < gaps[0] < 0.01
    assert gaps == pytest.approx(sorted(gaps))
    assert gaps[-1] == pytest.approx(IDLE_MAX_S)


def test_reader_that_a_stream_will_wake_calls_once_and_then_at_heartbeat_interval() -> None:
    pacing = Pacing(1.0, 0.0)
    assert pacing.due_s(urgent=False, idle=True, has_unreported=False, patient=True) == 0.0
    pacing.record_call(5.0, idle=True)
    assert pacing.due_s(urgent=False, idle=True, has_unreported=False, patient=True) == 6.0
    assert pacing.due_s(urgent=False, idle=True, has_unreported=False) < 5.01
    reports_s = pacing.due_s(urgent=False, idle=True, has_unreported=True, patient=True)
    assert reports_s == pacing.report_s == 5.0 + GROUP_S


@pytest.mark.parametrize("asked_s", [0.0, 0.01])
def test_idle_reader_told_of_end_calls_again_soon(asked_s: float) -> None:
    pacing = Pacing(1.0, 0.0)
    pacing.record_interval(asked_s)
    pacing.record_call(0.0, idle=True)
    first_s = pacing.due_s(urgent=False, idle=True, has_unreported=False)
    pacing.record_end()
    assert pacing.due_s(urgent=False, idle=True, has_unreported=False) == first_s < AGAIN_S
    for _ in range(12):
        pacing.record_call(0.0, idle=True)
    pacing.record_end()
    assert pacing.due_s(urgent=False, idle=True, has_unreported=False) == AGAIN_S


@pytest.mark.parametrize("asks_again", [False, True])
@pytest.mark.parametrize("clients", [500, 2_000, 4_000])
def test_simultaneously_idle_readers_do_not_overload_dispatcher(
    clients: int, asks_again: bool
) -> None:
    """Half of the clients are readers, all of them idle from the same moment on."""
    interval_s = clients / HEARTBEATS_PER_S
    pacing, now_s, calls_s = Pacing(1.0, 0.0), 0.0, []
    pacing.record_interval(interval_s)
    for _ in range(30):
        now_s = pacing.due_s(urgent=False, idle=True, has_unreported=False)
        pacing.record_call(now_s, idle=True)
        if asks_again:
            pacing.record_end()
        calls_s.append(now_s)
    within_s = 4 * interval_s
    calls = clients / 2 * sum(call_s <= within_s for call_s in calls_s)
    assert calls / within_s <= 900, "it answers about 1,600"


@pytest.mark.parametrize("news", ["rows arrive", "a call finds it reading"])
def test_received_data_reset_backoff_of_idle_reader(news: str) -> None:
    pacing = Pacing(1.0, 0.0)
    pacing.record_interval(0.0)
    for _ in range(8):
        pacing.record_call(5.0, idle=True)
    if news == "rows arrive":
        pacing.record_arrival()
    else:
        pacing.record_call(5.0, idle=False)
    assert pacing.due_s(urgent=False, idle=True, has_unreported=False) == 5.0
    pacing.record_call(5.0, idle=True)
    assert 5.0 < pacing.due_s(urgent=False, idle=True, has_unreported=False) < 5.01
