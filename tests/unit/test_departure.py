"""Which ends of a program its servers are told of."""

from __future__ import annotations

import sys

import pytest

from pstrain import departure
from pstrain.cluster import ClusterSpec, SimpleClusterResolver
from pstrain.errors import UnavailableError

SPEC = ClusterSpec({"worker": ["127.0.0.1:1", "127.0.0.1:2"], "ps": ["127.0.0.1:3"]})


class _Told(departure._Departure):
    def __init__(self) -> None:
        super().__init__(SPEC, "token", None)
        self.told: list[str] = []

    def _tell_trainer(self, address: str) -> None:
        self.told.append(address)
        raise UnavailableError("it is gone")

    def _tell_server(self, address: str) -> None:
        self.told.append(address)


def test_all_servers_are_told_although_some_are_gone() -> None:
    told = _Told()
    told.tell()
    assert told.told == ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"]


def test_nobody_is_told_where_an_exception_has_ended_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "last_value", ValueError("so"), raising=False)
    told = _Told()
    told.tell()
    assert told.told == []


def test_a_cluster_has_one_session_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[departure._Departure] = []
    monkeypatch.setattr(departure, "_departures", {})
    monkeypatch.setattr(departure, "end_with_program", lambda owner, _end: listed.append(owner))
    resolver = SimpleClusterResolver(SPEC, task_type="chief", task_id=0)
    for session in ("session-1", "session-2"):
        departure.tell_at_end(resolver, session, None)
    assert [each.session for each in listed] == ["session-2"]
