"""When a server is over: its clients have left for a while, or the program has ended."""

from __future__ import annotations

import pytest

from pstrain.errors import InvalidArgumentError
from pstrain.server import Server
from pstrain.sessions.presence import Presence


def test_presence_is_over_after_all_clients_left_for_grace_period() -> None:
    now_s = 100.0
    presence = Presence(clock=lambda: now_s)
    assert not presence.is_over(0)
    with presence:
        with presence:
            assert not presence.is_over(0)
        now_s = 200.0
        assert not presence.is_over(0)
    assert not presence.is_over(5)
    now_s = 205.0
    assert presence.is_over(5)
    with presence:
        assert not presence.is_over(5)
    assert not presence.is_over(5)


def test_presence_is_over_at_once_when_program_has_ended() -> None:
    presence = Presence()
    with presence:
        presence.record_program_end()
        assert presence.is_over(60)


def test_negative_grace_period_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="seconds"):
        Server({"ps": ["127.0.0.1:0"]}, exit_with_coordinator=-1.0, start=False)
