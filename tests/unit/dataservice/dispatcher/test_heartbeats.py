"""Heartbeat intervals and time-outs of clients, by the size of the cluster."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataservice.client.pacing import Pacing
from dataservice.client.rounds import RoundPacing
from dataservice.config import HEARTBEATS_PER_S
from dataservice.dispatcher.liveness import Deadlines
from dataservice.dispatcher.presence import INTERVALS_PER_TIMEOUT, Presence, share_of
from dataservice.vocabulary import ReaderId, WorkerId


def presence_of(clients: int, now_s: float = 0.0) -> Presence:
    presence = Presence(10.0, 60.0, now_s)
    for number in range(clients):
        presence.renew_worker(WorkerId(f"w{number}"), now_s)
    return presence


def test_only_unrenewed_deadlines_expire() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for key in ("a", "b", "c"):
        deadlines.renew(key, 10.0)
    deadlines.renew("a", 18.0)
    deadlines.drop("b")
    assert len(deadlines) == 2
    assert deadlines.expired(10.0) == ["c"]
    assert deadlines.expired(17.9) == []
    assert deadlines.expired(18.0) == ["a"]
    assert len(deadlines) == 0


def test_dropped_deadline_can_be_renewed() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.renew("a", 10.0)
    deadlines.drop("a")
    assert len(deadlines) == 0
    deadlines.renew("a", 15.0)
    assert len(deadlines) == 1
    assert deadlines.expired(14.9) == []
    assert deadlines.expired(15.0) == ["a"]
    assert deadlines.expired(99.0) == []


def test_renew_all_postpones_remaining_deadlines_only() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.renew("a", 10.0)
    deadlines.renew("gone", 10.0)
    deadlines.drop("gone")
    deadlines.renew_all(110.0)
    assert deadlines.expired(109.0) == []
    assert deadlines.expired(110.0) == ["a"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"), st.sampled_from(["renew", "drop", "ask"]), st.floats(0, 9)
        )
    )
)
def test_deadlines_behave_like_plain_table(steps: list[tuple[str, str, float]]) -> None:
    deadlines: Deadlines[str] = Deadlines()
    now_s, table, promised = 0.0, dict[str, float](), dict[str, float]()
    for key, what, seconds in steps:
        if what == "renew":
            deadlines.renew(key, now_s + seconds)
            # A deadline that was promised to a key holds even if the key was dropped meanwhile.
            promised[key] = table[key] = max(promised.get(key, 0.0), now_s + seconds)
        elif what == "drop":
            deadlines.drop(key)
            table.pop(key, None)
        else:
            now_s += seconds
            gone = {each for each, deadline_s in table.items() if deadline_s <= now_s}
            assert set(deadlines.expired(now_s)) == gone
            table = {each: deadline_s for each, deadline_s in table.items() if each not in gone}
            promised = {each: d for each, d in promised.items() if d > now_s}
        assert len(deadlines) == len(table)


def test_small_cluster_keeps_configured_interval_and_timeouts() -> None:
    presence = presence_of(HEARTBEATS_PER_S)
    assert presence.interval_s == 1.0
    assert (presence.worker_timeout_s, presence.client_timeout_s) == (10.0, 60.0)


@pytest.mark.parametrize("clients", [600, 4_000, 50_000])
def test_heartbeat_rate_is_bounded_for_any_number_of_clients(clients: int) -> None:
    presence = presence_of(clients)
    assert clients / presence.interval_s == pytest.approx(HEARTBEATS_PER_S)
    assert presence.worker_timeout_s >= INTERVALS_PER_TIMEOUT * presence.interval_s
    assert presence.client_timeout_s >= INTERVALS_PER_TIMEOUT * presence.interval_s


def test_heartbeat_interval_follows_number_of_clients() -> None:
    presence = presence_of(4_000)
    assert presence.interval_s == pytest.approx(8.0)
    for number in range(3_000):
        presence.drop_worker(WorkerId(f"w{number}"))
    presence.renew_reader(ReaderId("r"), 0.0)
    assert presence.interval_s == pytest.approx(1_001 / HEARTBEATS_PER_S)


def test_granted_timeout_is_kept_when_cluster_shrinks() -> None:
    presence = presence_of(4_000)
    presence.renew_worker(WorkerId("w0"), 0.0)
    for number in range(1, 4_000):
        presence.drop_worker(WorkerId(f"w{number}"))
    presence.renew_worker(WorkerId("w0"), 1.0)
    assert presence.take_timed_out(1.0).workers == ()
    for now_s in range(2, 24):
        assert presence.take_timed_out(float(now_s)).workers == ()
    assert presence.take_timed_out(24.0).workers == ("w0",)


def test_restarted_dispatcher_keeps_interval_and_expires_no_worker_early() -> None:
    workers = [WorkerId(f"w{number}") for number in range(2_000)]
    readers = [ReaderId(f"r{number}") for number in range(2_000)]
    presence = Presence(10.0, 60.0, 0.0)
    presence.restore(workers, readers, 0.0)
    assert presence.interval_s == pytest.approx(8.0)
    for now_s in range(1, 24):
        assert presence.take_timed_out(float(now_s)).workers == ()
    assert len(presence.take_timed_out(24.0).workers) == 2_000


@pytest.mark.parametrize("joined_at_once", [True, False])
def test_heartbeats_of_clients_that_came_at_once_are_spread(joined_at_once: bool) -> None:
    presence = Presence(10.0, 60.0, 0.0)
    ids = [WorkerId(f"worker-{number:012x}") for number in range(4_000)]
    came_s = dict.fromkeys(ids, 100.0)
    if joined_at_once:
        for worker_id in ids:
            presence.renew_worker(worker_id, 100.0)
    else:
        presence.restore(ids, (), 99.0)
    for _ in range(2):
        told_s = [presence.least_silence_s(worker_id, came_s[worker_id]) for worker_id in ids]
        assert all(0.24 < each / presence.interval_s < 1.26 for each in told_s)
        came_s = {key: came_s[key] + each for key, each in zip(ids, told_s, strict=True)}
    first_s = min(came_s.values())
    by_second = [
        sum(first_s + second <= each < first_s + second + 1 for each in came_s.values())
        for second in range(8)
    ]
    assert sum(by_second) == 4_000
    assert max(by_second) < 1.25 * HEARTBEATS_PER_S


def test_punctual_client_is_told_exact_interval() -> None:
    presence = presence_of(4_000)
    now_s = 5.0
    now_s += presence.least_silence_s("w7", now_s)
    for _ in range(3):
        # Calls take time, and intervals are rounded; neither error accumulates.
        told_s = presence.least_silence_s("w7", now_s + 0.002)
        assert told_s == pytest.approx(presence.interval_s - 0.002)
        now_s += told_s + 0.002


def test_least_silence_without_clients_is_zero() -> None:
    assert Presence(10.0, 60.0, 0.0).least_silence_s("w0", 5.0) == 0.0


@given(st.text())
def test_share_of_client_lies_between_zero_and_one(client_id: str) -> None:
    assert 0.0 <= share_of(client_id) < 1.0


def test_no_client_times_out_after_dispatcher_stood_still() -> None:
    presence = presence_of(3)
    silent = presence.take_timed_out(100.0)
    assert silent == ((), (), 100.0)
    assert presence.take_timed_out(101.0).stood_still_s == 0.0


def test_no_client_times_out_by_repeated_short_stalls_of_dispatcher() -> None:
    presence = Presence(1.5, 60.0, 0.0, heartbeats_per_s=float("inf"))
    presence.renew_worker("w", 0.0)
    now_s = 0.0
    for _ in range(7):
        # The dispatcher runs for a tick, then stands still for longer than the lease.
        now_s += presence.tick_s + 1.6
        assert presence.take_timed_out(now_s) == ((), (), 0.0)
    gone: list[str] = []
    for _ in range(4):
        now_s += presence.tick_s
        gone.extend(presence.take_timed_out(now_s).workers)
    assert gone == ["w"]


def test_reader_follows_longer_interval_but_none_shorter_than_its_own() -> None:
    pacing = Pacing(1.0, 0.0)
    pacing.record_interval(8.0)
    assert pacing.due_s(urgent=False, idle=False, has_unreported=False) == 8.0
    assert pacing.due_s(urgent=False, idle=False, has_unreported=True) < 1.0
    assert pacing.due_s(urgent=True, idle=False, has_unreported=False) == 0.0
    pacing.record_interval(0.02)
    assert pacing.due_s(urgent=False, idle=False, has_unreported=False) == 1.0


def test_round_consumer_follows_longer_interval() -> None:
    pacing = RoundPacing(1.0, 0.0)
    pacing.record_call(0.0, progress=True)
    pacing.record_interval(8.0)
    assert pacing.due_s(urgent=False, waits=False, unreported=0, window=8) == 8.0
    assert pacing.due_s(urgent=False, waits=True, unreported=0, window=8) < 1.0


def test_readers_that_call_soon_after_nobody_was_heard_are_not_lost() -> None:
    presence = presence_of(1)
    for reader in ("back", "late", "gone"):
        presence.renew_reader(ReaderId(reader), 1.0)
    lost: list[str] = []
    for now_s in range(2, 301):
        timed_out = presence.take_timed_out(float(now_s))
        assert timed_out.readers == ()
        lost += timed_out.workers
    assert lost == ["w0"]
    presence.renew_worker(WorkerId("new"), 300.0)
    for now_s in range(301, 316):
        presence.renew_worker(WorkerId("new"), float(now_s))
        if now_s > 303:
            presence.renew_reader(ReaderId("back"), float(now_s))
        if now_s == 314:
            presence.renew_reader(ReaderId("late"), 314.0)
        lost += presence.take_timed_out(float(now_s)).readers
    assert lost == ["w0", "gone"]


@pytest.mark.parametrize("pause_s", [1, 25, 40, 55, 200])
def test_lost_reader_is_given_up_although_others_call_seldom(pause_s: int) -> None:
    presence = Presence(10.0, 60.0, 0.0)
    presence.renew_reader(ReaderId("gone"), 0.0)
    for now_s in range(1, 600):
        if now_s % pause_s == 0:
            presence.renew_worker(WorkerId("seldom"), float(now_s))
        if presence.take_timed_out(float(now_s)).readers:
            break
    assert 60 <= now_s <= 60 + max(pause_s, 16) + 16


def test_reader_is_silent_once_it_is_overdue_while_nobody_is_heard() -> None:
    presence = presence_of(1)
    for reader in ("gone", "back", "left"):
        presence.renew_reader(ReaderId(reader), 0.0)
    presence.drop_reader(ReaderId("left"))
    for now_s in range(1, 201):
        presence.take_timed_out(float(now_s))
        expected = set() if now_s < 60 else {"gone", "back"}
        assert presence.silent_readers(float(now_s)) == expected
    presence.renew_reader(ReaderId("back"), 201.0)
    assert presence.silent_readers(201.0) == {"gone"}


def test_call_of_one_who_is_no_client_yet_is_heard() -> None:
    presence = Presence(10.0, 60.0, 0.0)
    presence.renew_reader(ReaderId("gone"), 0.0)
    for now_s in range(1, 300):
        if now_s > 200:
            presence.hear(float(now_s))
        if presence.take_timed_out(float(now_s)).readers:
            break
    assert 200 < now_s <= 216
    assert presence.silent_readers(float(now_s)) == set()
