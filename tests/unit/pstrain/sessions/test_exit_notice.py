"""The cases in which a program tells its servers that it has ended."""

from __future__ import annotations

import contextlib
import sys
import threading

import pytest

from pstrain.cluster import ClusterSpec, SimpleClusterResolver
from pstrain.errors import UnavailableError
from pstrain.sessions import exit_notice

SPEC = ClusterSpec({"worker": ["127.0.0.1:1", "127.0.0.1:2"], "ps": ["127.0.0.1:3"]})


class _RecordedNotice(exit_notice._ExitNotice):
    def __init__(self) -> None:
        super().__init__(SPEC, "token", None)
        self.told: list[str] = []

    def _notify_trainer(self, address: str) -> None:
        self.told.append(address)
        raise UnavailableError("it is gone")

    def _notify_server(self, address: str) -> None:
        self.told.append(address)


@pytest.fixture(autouse=True)
def program_that_has_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the wrapped `sys.exit` and the last error that earlier tests left in this process."""
    monkeypatch.setattr(sys, "exit", getattr(sys.exit, "__wrapped__", sys.exit))
    for name in ("last_exc", "last_value"):
        monkeypatch.delattr(sys, name, raising=False)


def test_exit_notice_reaches_all_servers_although_some_are_gone() -> None:
    notice = _RecordedNotice()
    notice.send()
    assert notice.told == ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"]


def test_exit_notice_is_not_sent_after_uncaught_exception(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "last_value", ValueError("so"), raising=False)
    notice = _RecordedNotice()
    notice.send()
    assert notice.told == []


@pytest.mark.parametrize(
    ("statuses", "is_told"),
    [([3], False), (["no such file"], False), ([0], True), ([None], True), ([3, 0], True)],
)
def test_exit_notice_is_sent_only_for_exit_status_of_success(
    statuses: list[object], is_told: bool
) -> None:
    exit_notice._record_exit_status()
    for status in statuses:
        with pytest.raises(SystemExit) as ended:
            sys.exit(status)  # type: ignore[arg-type]
        assert ended.value.code == status
    notice = _RecordedNotice()
    notice.send()
    assert bool(notice.told) is is_told


def test_sys_exit_in_thread_does_not_count_as_program_failure() -> None:
    exit_notice._record_exit_status()
    exit_notice._record_exit_status()

    def end() -> None:
        with contextlib.suppress(SystemExit):
            sys.exit(3)

    thread = threading.Thread(target=end)
    thread.start()
    thread.join(10.0)
    assert not exit_notice.has_program_failed()


def test_exit_notice_is_registered_for_newest_session_only(monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[exit_notice._ExitNotice] = []
    monkeypatch.setattr(exit_notice, "_exit_notices", {})
    monkeypatch.setattr(exit_notice, "end_with_program", lambda owner, _end: listed.append(owner))
    resolver = SimpleClusterResolver(SPEC)
    for session in ("session-1", "session-2"):
        exit_notice.notify_at_exit(resolver, session, None)
    assert [each.session for each in listed] == ["session-2"]
