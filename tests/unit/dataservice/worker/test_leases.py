"""Leases that a stream holds ahead: the size of its store, and the requests for more."""

from __future__ import annotations

import threading
import time
from itertools import pairwise

import pytest

from dataservice.worker.leases import MAX_STORE, STORE_S, Grant, Lease, LeaseFeed, StoreSize

TIMEOUT_S = 10.0


def store_after(window_s: float, *, grants: int, least: int = 3) -> int:
    """Returns a store's size after so many grants, each requested when half of it is left.

    A window takes `window_s`.
    """
    store, now_s = StoreSize(least), 0.0
    for _ in range(grants):
        store.record_granted(now_s, held=store.count // 2)
        taken = max(1, store.count - store.count // 2)
        for _ in range(taken):
            store.record_taken()
        now_s += taken * window_s
    return store.count


def test_lease_store_grows_for_tiny_windows() -> None:
    assert store_after(0.0, grants=1) == 3
    assert store_after(0.0, grants=4) == 24
    assert store_after(0.0, grants=100) == MAX_STORE


@pytest.mark.parametrize("window_s", [0.0005, 0.002, 0.01])
def test_lease_store_is_sized_to_last_its_target_time(window_s: float) -> None:
    lasts_s = store_after(window_s, grants=50) * window_s
    assert STORE_S <= lasts_s <= 2 * STORE_S or lasts_s == MAX_STORE * window_s


def test_lease_store_stays_minimal_for_large_windows() -> None:
    assert store_after(1.0, grants=50) == 3


def test_lease_store_shrinks_when_windows_become_larger() -> None:
    store = StoreSize(3)
    store.count = MAX_STORE
    for grant in range(12):
        store.record_granted(grant * 1.0, held=1)
        store.record_taken()
    assert store.count == 3


def test_exhausted_lease_store_grows_however_slow_the_dispatcher() -> None:
    store = StoreSize(3)
    store.record_granted(0.0, held=0)
    for _ in range(3):
        store.record_taken()
    store.record_granted(5.0, held=0)
    assert store.count == 6


def test_lease_store_keeps_its_size_when_no_lease_is_taken() -> None:
    store = StoreSize(3)
    for grant in range(5):
        store.record_granted(grant * 100.0, held=0)
    assert store.count == 3


def test_many_tiny_windows_are_leased_in_few_calls() -> None:
    left = [Lease(index, 0, 0, 0, index, ()) for index in range(5_000)]
    asked: list[int] = []

    def ask(count: int, _wait_s: float) -> Grant:
        asked.append(count)
        granted, left[:] = left[:count], left[count:]
        return Grant(tuple(granted), not granted)

    feed = LeaseFeed(ask, lambda _leases: None, ahead=3, name="test")
    feed.start()
    got = []
    with feed.lock:
        while not feed.is_over_locked():
            lease = feed.take_locked()
            if lease is None:
                assert feed.changed.wait(TIMEOUT_S)
            else:
                got.append(lease.window)
    assert got == list(range(5_000))
    assert asked[0] == 3
    assert max(asked) <= MAX_STORE
    assert len(asked) < 100


def test_lease_feed_pauses_between_requests_as_told_by_dispatcher() -> None:
    pause_s, asked_s = 0.05, list[float]()

    def ask(_count: int, _wait_s: float) -> Grant:
        asked_s.append(time.monotonic())
        return Grant((), len(asked_s) == 4, pause_s)

    feed = LeaseFeed(ask, lambda _leases: None, ahead=3, name="test")
    feed.start()
    with feed.lock:
        assert feed.changed.wait_for(feed.is_over_locked, TIMEOUT_S)
    assert all(after - before >= pause_s for before, after in pairwise(asked_s))


def test_pausing_lease_feed_stops_at_once() -> None:
    paused = threading.Event()

    def ask(_count: int, _wait_s: float) -> Grant:
        paused.set()
        return Grant((), False, 3_600.0)

    feed = LeaseFeed(ask, lambda _leases: None, ahead=3, name="test")
    feed.start()
    assert paused.wait(TIMEOUT_S)
    feed.stop()
    with feed.lock:
        assert feed.changed.wait_for(feed.is_over_locked, TIMEOUT_S)
