"""The order of sessions: which of two programs that want one cluster has it."""

from __future__ import annotations

import itertools
import random

import pytest

from pstrain.errors import AbortedError
from pstrain.paramserver.server import Sessions
from pstrain.sessions.ids import is_older, new_session, renewed


def test_new_session_is_newer_than_sessions_of_servers_with_slow_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter([1_000, 900, 900])
    monkeypatch.setattr("time.time_ns", lambda: next(clock))
    first = new_session()
    second = new_session([None, first, "named by hand"])
    third = new_session([renewed(second), first], "-v1")
    assert is_older(first, second)
    assert is_older(second, third)


@pytest.mark.parametrize(
    "reported",
    [
        "v1-session-01790000000000000000-0123456789ab",
        "session-99999999999999999999-0123456789ab",
        "session-99999999999999999999",
        "session-1",
        f"session-{'9' * 5_000}-0123456789ab",
        "zzz",
        "\uffff",
        "session-",
        "",
    ],
)
def test_later_program_takes_over_any_session_a_server_reports(reported: str) -> None:
    server = Sessions()
    server.begin(reported)
    session = new_session([reported])
    later = new_session([renewed(session)])
    for each in (session, renewed(session), later, new_session([later], "-v1")):
        server.begin(each)
        assert server.is_current(each)


def test_sessions_are_totally_ordered() -> None:
    sessions = ["", "b", "session-00000000000000000009-a.2", "session-00000000000000000009-a.10"]
    sessions += [f"{sessions[-1]}0", "session-00000000000000000010-a", f"session-{10**20}-a"]
    for (i, one), (k, other) in itertools.product(enumerate(sessions), repeat=2):
        assert is_older(one, other) == (i < k)


def test_restored_session_stays_older_than_later_programs() -> None:
    first = new_session()
    later = new_session([first])
    restored = list(
        itertools.accumulate(range(12), lambda session, _: renewed(session), initial=first)
    )
    assert restored == sorted(restored)
    assert all(is_older(session, later) for session in restored)
    assert len(set(restored)) == len(restored)


@pytest.mark.parametrize("seed", range(200))
def test_one_of_two_concurrent_programs_gets_every_server(seed: int) -> None:
    rng = random.Random(seed)
    servers = [Sessions() for _ in range(rng.randint(1, 4))]
    if rng.random() < 0.5:
        for server in servers:
            server.begin("session-00000000000000000007-earlier")
    names = ["session-00000000000000000008-a", "session-00000000000000000009-b"]
    left = {name: list(servers) * 2 for name in names}
    failed = set()
    while any(left.values()):
        name = rng.choice([name for name in names if left[name]])
        try:
            left[name].pop(0).begin(name)
        except AbortedError:
            failed.add(name)
            left[name].clear()
    assert failed <= {names[0]}
    assert all(server.is_current(names[1]) for server in servers)
