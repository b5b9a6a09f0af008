"""What a monitor answers to whom, without sockets."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from dataservice.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError
from dataservice.runtime.monitoring import monitor as monitor_module
from dataservice.runtime.monitoring.http_server import Request
from dataservice.runtime.monitoring.metrics import Metric, Sample
from dataservice.runtime.monitoring.monitor import HttpMonitor
from dataservice.runtime.monitoring.report import Block

BEARER = "Bearer secret"


class Subject:
    title = "subject"
    is_remote = True

    def __init__(self) -> None:
        self.asked = 0
        self.error: UnavailableError | None = None

    def status(self) -> dict[str, Any]:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return {"asked": self.asked}

    def report(self, status: dict[str, Any]) -> list[Block]:
        return [f"asked {status['asked']}"]

    def metrics(self, status: dict[str, Any] | None) -> list[Metric]:
        return [Metric("up", "gauge", "whether it answers", [Sample(float(status is not None))])]


class Clock:
    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(monitor_module, "time", clock)
    return clock


@pytest.fixture
def subject() -> Subject:
    return Subject()


@pytest.fixture
def monitor(subject: Subject, clock: Clock) -> HttpMonitor:  # noqa: ARG001
    return HttpMonitor(subject, token="secret", start=False)


def cookie_of(monitor: HttpMonitor, token: str) -> str:
    """Returns the name and the value of the cookie that the token is exchanged for."""
    answer = monitor.answer(Request(f"/?token={token}"))
    return dict(answer.headers)["Set-Cookie"].split(";")[0]


@pytest.mark.parametrize("path", ["/", "/status.json", "/metrics", "/nowhere"])
@pytest.mark.parametrize(
    ("authorization", "cookies"),
    [
        ("", ""),
        ("Bearer wrong", ""),
        ("Bearer ", ""),
        ("Basic secret", ""),
        ("", "{name}=secret"),
        ("", "{name}="),
        ("", "other=1; ]["),
    ],
)
def test_reader_without_token_is_told_how_to_give_it(
    monitor: HttpMonitor, subject: Subject, path: str, authorization: str, cookies: str
) -> None:
    name = cookie_of(monitor, "secret").partition("=")[0]
    answer = monitor.answer(Request(path, authorization, cookies.format(name=name)))
    assert answer.code == 401
    assert b"?token=" in answer.body
    assert b"secret" not in answer.body
    assert subject.asked == 0


def test_token_in_address_becomes_a_cookie_that_is_not_the_token(monitor: HttpMonitor) -> None:
    answer = monitor.answer(Request("/?token=secret"))
    headers = dict(answer.headers)
    assert (answer.code, headers["Location"]) == (303, "/")
    cookie, *attributes = headers["Set-Cookie"].split("; ")
    assert "secret" not in cookie
    assert {"HttpOnly", "SameSite=Strict"} <= set(attributes)
    assert monitor.answer(Request("/", "", cookie)).code == 200


@pytest.mark.parametrize("path", ["//evil.example/", "/\\evil.example/", "http://evil.example/x"])
def test_token_in_address_leads_to_no_other_host(monitor: HttpMonitor, path: str) -> None:
    answer = monitor.answer(Request(f"{path}?token=secret"))
    assert dict(answer.headers)["Location"] == "/"


@pytest.mark.parametrize("path", ["/", "/status.json", "/metrics"])
def test_token_in_address_leads_to_the_page_that_was_asked_for(
    monitor: HttpMonitor, path: str
) -> None:
    answer = monitor.answer(Request(f"{path}?token=secret"))
    assert dict(answer.headers)["Location"] == path


def test_cookie_stays_on_encrypted_connections(subject: Subject) -> None:
    tls = {"tls_cert_path": "cert.pem", "tls_key_path": "key.pem"}
    encrypted = HttpMonitor(subject, token="secret", start=False, **tls)
    plain = HttpMonitor(subject, token="secret", start=False)
    for monitor, is_secure in ((encrypted, True), (plain, False)):
        cookie = dict(monitor.answer(Request("/?token=secret")).headers)["Set-Cookie"]
        assert ("Secure" in cookie.split("; ")) == is_secure


def test_cookies_of_other_servers_of_the_host_do_not_matter(monitor: HttpMonitor) -> None:
    mine = cookie_of(monitor, "secret")
    stale = mine.partition("=")[0] + "=stale"
    cookies = f'theme={{"a": "b, c"}}; a b=1; {stale}; {mine}; last'
    assert monitor.answer(Request("/", "", cookies)).code == 200


def test_token_with_a_plus_may_be_written_as_it_is(subject: Subject) -> None:
    monitor = HttpMonitor(subject, token="a+b", start=False)
    assert {monitor.answer(Request(f"/?token={t}")).code for t in ("a+b", "a%2Bb")} == {303}


def test_address_that_is_none_is_refused(monitor: HttpMonitor) -> None:
    assert monitor.answer(Request("//[")).code == 400


def test_cookie_of_another_token_has_another_name_and_opens_nothing(
    monitor: HttpMonitor, subject: Subject
) -> None:
    mine = cookie_of(monitor, "secret").partition("=")[0]
    other = HttpMonitor(subject, token="other", start=False)
    name, _, value = cookie_of(other, "other").partition("=")
    assert name != mine
    assert monitor.answer(Request("/", "", f"{mine}={value}")).code == 401


def test_status_is_a_page_and_json_and_metrics(monitor: HttpMonitor) -> None:
    page, status, metrics = (
        monitor.answer(Request(p, BEARER)) for p in ("/", "/status.json", "/metrics")
    )
    assert {each.code for each in (page, status, metrics)} == {200}
    assert b"<h1>subject</h1>\n<p>asked 1</p>" in page.body
    assert json.loads(status.body) == {"asked": 1}
    assert metrics.body.endswith(b"\nup 1.0\n")


def test_unknown_page_names_the_pages(monitor: HttpMonitor) -> None:
    answer = monitor.answer(Request("/x", BEARER))
    assert answer.code == 404
    assert b"/status.json" in answer.body


def test_subject_is_asked_once_a_second_at_most(
    monitor: HttpMonitor, subject: Subject, clock: Clock
) -> None:
    for _ in range(3):
        monitor.answer(Request("/", BEARER))
    assert subject.asked == 1
    clock.now_s += 1.0
    monitor.answer(Request("/", BEARER))
    assert subject.asked == 2


def test_subject_without_status_is_shown_with_its_error(
    monitor: HttpMonitor, subject: Subject, clock: Clock
) -> None:
    subject.error = UnavailableError("nobody at host-7")
    page, status, metrics = (
        monitor.answer(Request(p, BEARER)) for p in ("/", "/status.json", "/metrics")
    )
    assert (page.code, status.code, metrics.code) == (503, 503, 200)
    assert b"nobody at host-7" in page.body
    assert json.loads(status.body) == {"error": "nobody at host-7"}
    assert metrics.body.endswith(b"\nup 0.0\n")
    assert subject.asked == 1
    subject.error, clock.now_s = None, clock.now_s + 1.0
    assert monitor.answer(Request("/", BEARER)).code == 200


def test_loss_of_the_subject_is_logged_once(
    monitor: HttpMonitor, subject: Subject, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for error in (UnavailableError("first"), UnavailableError("second"), None):
        subject.error, clock.now_s = error, clock.now_s + 1.0
        for page in ("/", "/metrics"):
            monitor.answer(Request(page, BEARER))
    assert [record.getMessage() for record in caplog.records] == ["subject gives no status: first"]


def test_health_needs_no_token_and_tells_no_names(monitor: HttpMonitor, subject: Subject) -> None:
    subject.error = UnavailableError("nobody at host-7")
    answer = monitor.answer(Request("/healthz"))
    assert (answer.code, answer.body) == (503, b"UnavailableError\n")


def test_health_of_answering_subject_is_ok(monitor: HttpMonitor) -> None:
    answer = monitor.answer(Request("/healthz"))
    assert (answer.code, answer.body) == (200, b"ok\n")


def test_health_of_what_lives_with_the_monitor_asks_nobody(
    monitor: HttpMonitor, subject: Subject
) -> None:
    subject.is_remote, subject.error = False, UnavailableError("no server answers")
    assert monitor.answer(Request("/healthz")).code == 200
    assert subject.asked == 0


def test_stopped_monitor_does_not_start_again(monitor: HttpMonitor) -> None:
    monitor.stop()
    with pytest.raises(FailedPreconditionError, match="make a new one"):
        monitor.start()


def test_host_that_the_network_reaches_needs_tls_or_consent(subject: Subject) -> None:
    with pytest.raises(InvalidArgumentError, match="insecure_network"):
        HttpMonitor(subject, token="secret", host="0.0.0.0", start=False)
    HttpMonitor(subject, token="secret", host="0.0.0.0", insecure_network=True, start=False)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"port": 70_000}, "port must be an integer from 0 to 65535, got 70000"),
        ({"port": "1"}, "port must be an integer from 0 to 65535, got '1'"),
        ({"host": ""}, "host must be a non-empty string"),
        ({"token": 5}, "token must be None or text, got int"),
        ({"tls_cert_path": "a.pem"}, "go together"),
        ({"insecure_network": "yes"}, "insecure_network"),
    ],
)
def test_wrong_setting_is_named(subject: Subject, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape(said)):
        HttpMonitor(subject, start=False, **settings)
