"""Run as a script, this file is a peer process: ``serve`` answers until killed, ``fork`` forks."""

from __future__ import annotations

import contextlib
import gc
import os
import pathlib
import queue
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
import trustme
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message_factory import GetMessageClass

from dataservice import errors
from dataservice.errors import (
    AddressInUseError,
    CancelledError,
    DataServiceError,
    DeadlineExceededError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    ResourceExhaustedError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
    UserFunctionError,
)
from dataservice.runtime import retry
from dataservice.runtime.auth import TOKEN_METADATA_KEY, TlsConfig, tokens_equal
from dataservice.runtime.rpc import RpcClient, RpcServer
from dataservice.runtime.tls_probe import _speaks_tls
from tests.ports import free_port

TOKEN = "the-token"
DEADLINE_S = 60.0
AT_MOST_S = 30.0
"""Less than what is not to be waited for would take."""


def _pool(methods: dict[str, tuple[bool, bool]]) -> descriptor_pool.DescriptorPool:
    """A file with one service ``EchoBox``; methods map to (streams requests, streams replies)."""
    file = descriptor_pb2.FileDescriptorProto(name="echo.proto", package="echo", syntax="proto3")
    field = descriptor_pb2.FieldDescriptorProto
    for name in ("Text", "Other"):
        file.message_type.add(name=name).field.add(
            name="text", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL
        )
    service = file.service.add(name="EchoBox")
    for name, (requests, replies) in methods.items():
        service.method.add(
            name=name,
            input_type=".echo.Text",
            output_type=".echo.Text",
            client_streaming=requests,
            server_streaming=replies,
        )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


POOL = _pool(
    {
        "SayBack": (False, False),
        "SayTogether": (True, False),
        "SpellOut": (False, True),
        "ChatOn": (True, True),
        "HoldOn": (False, False),
    }
)
SERVICE = POOL.FindServiceByName("echo.EchoBox")
Text = GetMessageClass(POOL.FindMessageTypeByName("echo.Text"))
Other = GetMessageClass(POOL.FindMessageTypeByName("echo.Other"))


class EchoBox:
    """Answers with what it is told, raises ``error`` if set, holds calls until ``release``."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.calls = 0
        self.holding = threading.Semaphore(0)
        self.release = threading.Event()
        self.chat_ended = threading.Event()

    def say_back(self, request: Any) -> Any:
        self.calls += 1
        if self.error is not None:
            raise self.error
        return Other(text="other") if request.text == "other" else Text(text=request.text)

    def say_together(self, requests: Iterator[Any]) -> Any:
        return Text(text="".join(request.text for request in requests))

    def spell_out(self, request: Any) -> Iterator[Any]:
        for letter in request.text:
            yield Text(text=letter)
        if self.error is not None:
            raise self.error

    def chat_on(self, requests: Iterator[Any]) -> Iterator[Any]:
        try:
            for request in requests:
                yield Text(text=request.text.upper())
        finally:
            self.chat_ended.set()

    def hold_on(self, request: Any) -> Any:
        self.holding.release()
        self.release.wait(DEADLINE_S)
        return Text(text=request.text)


@pytest.fixture
def box() -> Iterator[EchoBox]:
    box = EchoBox()
    yield box
    box.release.set()


def serve(box: EchoBox, port: int = 0, **settings: Any) -> RpcServer:
    server = RpcServer("127.0.0.1", port, **{"token": TOKEN, **settings})
    server.add_service(SERVICE, box)
    return server


@pytest.fixture
def server(box: EchoBox) -> Iterator[RpcServer]:
    with serve(box) as server:
        yield server


def connect(port: int, **settings: Any) -> RpcClient:
    return RpcClient(f"127.0.0.1:{port}", SERVICE, **{"token": TOKEN, **settings})


@pytest.fixture
def client(server: RpcServer) -> Iterator[RpcClient]:
    with connect(server.port) as client:
        yield client


def texts(replies: Any) -> list[str]:
    return [reply.text for reply in replies]


class Questions:
    """Requests put in one by one; ends when told."""

    def __init__(self) -> None:
        self._queue: queue.Queue[Any] = queue.Queue()

    def ask(self, text: str) -> None:
        self._queue.put(Text(text=text))

    def end(self) -> None:
        self._queue.put(None)

    def __iter__(self) -> Iterator[Any]:
        return iter(lambda: self._queue.get(timeout=DEADLINE_S), None)


# Calls of every kind


def test_calls_of_all_four_kinds(client: RpcClient) -> None:
    assert client.call("SayBack", Text(text="héllo")).text == "héllo"
    assert client.call("SayTogether", iter([Text(text="a"), Text(text="b")])).text == "ab"
    assert texts(client.stream("SpellOut", Text(text="abc"))) == ["a", "b", "c"]
    assert texts(client.stream("ChatOn", iter([Text(text="x"), Text(text="y")]))) == ["X", "Y"]


def test_a_conversation_takes_turns(client: RpcClient) -> None:
    questions = Questions()
    replies = client.stream("ChatOn", questions)
    for text in ("one", "two", "three"):
        questions.ask(text)
        assert next(replies).text == text.upper()
    questions.end()
    assert texts(replies) == []


def test_cancelling_ends_both_sides_of_a_stream(client: RpcClient, box: EchoBox) -> None:
    questions = Questions()
    replies = client.stream("ChatOn", questions)
    questions.ask("one")
    assert next(replies).text == "ONE"
    with ThreadPoolExecutor(1) as pool:
        blocked = pool.submit(next, replies)
        replies.cancel()
        with pytest.raises(CancelledError):
            blocked.result(DEADLINE_S)
    assert box.chat_ended.wait(DEADLINE_S)
    questions.end()


def test_wrong_use_is_told_before_anything_is_sent(client: RpcClient, box: EchoBox) -> None:
    with pytest.raises(InvalidArgumentError, match=r"'Shout'.*SayBack"):
        client.call("Shout", Text())
    with pytest.raises(InvalidArgumentError, match="not a single-reply method"):
        client.call("SpellOut", Text())
    with pytest.raises(InvalidArgumentError, match="not a streaming method"):
        client.stream("SayBack", Text())
    with pytest.raises(InvalidArgumentError, match="takes a Text, got a Other"):
        client.call("SayBack", Other())
    assert box.calls == 0


def test_an_implementation_must_have_every_method() -> None:
    with pytest.raises(InvalidArgumentError, match=r"object lacks .* echo\.EchoBox: chat_on, hold"):
        RpcServer("127.0.0.1", 0, token=TOKEN).add_service(SERVICE, object())


def test_a_method_that_the_server_does_not_know(server: RpcServer) -> None:
    newer = _pool({"Whistle": (False, False)}).FindServiceByName("echo.EchoBox")
    with RpcClient(f"127.0.0.1:{server.port}", newer, token=TOKEN) as client:
        request = GetMessageClass(newer.methods[0].input_type)()
        with pytest.raises(UnimplementedError, match=r"Whistle.*same version"):
            client.call("Whistle", request)


def test_many_calls_are_held_at_once(client: RpcClient, box: EchoBox) -> None:
    with ThreadPoolExecutor(40) as pool:
        replies = [pool.submit(client.call, "HoldOn", Text(text=str(i))) for i in range(40)]
        for _ in range(40):
            assert box.holding.acquire(timeout=DEADLINE_S)
        assert client.call("SayBack", Text(text="still alive")).text == "still alive"
        box.release.set()
        assert [reply.result(DEADLINE_S).text for reply in replies] == [str(i) for i in range(40)]


def test_calls_over_the_limit_are_refused(box: EchoBox) -> None:
    with (
        serve(box, max_threads=2) as server,
        connect(server.port) as client,
        ThreadPoolExecutor(2) as pool,
    ):
        held = [pool.submit(client.call, "HoldOn", Text()) for _ in range(2)]
        for _ in held:
            assert box.holding.acquire(timeout=DEADLINE_S)
        with pytest.raises(UnavailableError, match="refused SayBack: as many calls run"):
            client.call("SayBack", Text())
        # One that may be repeated gets through once there is room.
        reply = client.call_retrying(
            "SayBack",
            Text(text="late"),
            timeout_s=DEADLINE_S,
            on_wait=lambda _waited_s: box.release.set(),
        )
        assert reply.text == "late"
        for call in held:
            call.result(DEADLINE_S)


def test_a_burst_that_nobody_looked_at_yet_is_answered_or_refused_by_name(
    server: RpcServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking = threading.Event()

    def look_late(*tokens: Any) -> bool:
        return looking.wait(DEADLINE_S) and tokens_equal(*tokens)

    monkeypatch.setattr("dataservice.runtime.rpc.server.tokens_equal", look_late)
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        say_back = channel.unary_unary("/echo.EchoBox/SayBack")
        metadata = ((TOKEN_METADATA_KEY, TOKEN),)
        calls = [say_back.future(b"", timeout=DEADLINE_S, metadata=metadata) for _ in range(3_000)]
        # Time for most of them to arrive; nothing is asserted of how many did.
        threading.Timer(1.0, looking.set).start()
        codes = {call.code() for call in calls}
    assert codes <= {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}


# Errors


@pytest.mark.parametrize("cls", sorted(errors._classes_by_code.values(), key=lambda c: c.code))
def test_the_class_of_an_error_survives(
    client: RpcClient, box: EchoBox, cls: type[DataServiceError]
) -> None:
    box.error = cls("the file 'é' has 3 rows")
    with pytest.raises(DataServiceError, match="the file 'é' has 3 rows") as caught:
        client.call("SayBack", Text())
    assert type(caught.value) is cls


def test_details_survive_and_are_cut_to_fit(client: RpcClient, box: EchoBox) -> None:
    box.error = UserFunctionError(
        "é" * 100_000, user_traceback="first" + "\x00" * 500_000 + "last", source="a rows 0..9"
    )
    with pytest.raises(UserFunctionError, match=r"left out\]") as caught:
        client.call("SayBack", Text())
    error = caught.value
    assert error.user_traceback.startswith("first")
    assert error.user_traceback.endswith("last")
    assert error.source == "a rows 0..9"


def test_an_error_ends_a_stream_after_its_replies(client: RpcClient, box: EchoBox) -> None:
    box.error = errors.SchemaError("no column 'x'")
    replies = client.stream("SpellOut", Text(text="ab"))
    assert [next(replies).text, next(replies).text] == ["a", "b"]
    with pytest.raises(errors.SchemaError, match="no column 'x'"):
        next(replies)


def test_a_defect_is_reported_with_its_class_and_logged(
    client: RpcClient, box: EchoBox, caplog: pytest.LogCaptureFixture
) -> None:
    box.error = ZeroDivisionError("division by zero")
    with pytest.raises(InternalError, match="ZeroDivisionError: division by zero"):
        client.call("SayBack", Text())
    assert "echo.EchoBox.SayBack failed" in caplog.text
    assert "Traceback" in caplog.text
    box.error = None
    assert client.call("SayBack", Text(text="next")).text == "next"


def test_a_reply_of_the_wrong_type_is_a_defect(client: RpcClient) -> None:
    with pytest.raises(InternalError, match="gave a Other, not a Text"):
        client.call("SayBack", Text(text="other"))


def test_no_answer_in_time(client: RpcClient) -> None:
    with pytest.raises(DeadlineExceededError, match=r"did not answer HoldOn within 0\.2 s"):
        client.call("HoldOn", Text(), timeout_s=0.2)


def test_a_message_over_the_limit_is_refused(client: RpcClient) -> None:
    with pytest.raises(ResourceExhaustedError, match="SayBack"):
        client.call("SayBack", Text(text="x" * (65 << 20)))


# Tokens and TLS


@pytest.mark.parametrize("token", ["the-toke", "the-token-", "other"])
def test_a_wrong_token_is_refused(server: RpcServer, box: EchoBox, token: str) -> None:
    with connect(server.port, token=token) as client:
        with pytest.raises(UnauthenticatedError, match=rf"127.0.0.1:{server.port}.*DATASERVICE_"):
            client.call("SayBack", Text())
        with pytest.raises(UnauthenticatedError, match="token"):
            client.call("SayTogether", iter([Text()]))
        with pytest.raises(UnauthenticatedError, match="token"):
            next(client.stream("SpellOut", Text(text="a")))
        questions = Questions()
        with pytest.raises(UnauthenticatedError, match="token"):
            next(client.stream("ChatOn", questions))
        questions.end()
    assert box.calls == 0


@pytest.mark.parametrize("path", ["/echo.EchoBox/SayBack", "/echo.EchoBox/NoSuchMethod"])
def test_a_stranger_learns_nothing(server: RpcServer, box: EchoBox, path: str) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        call = channel.unary_unary(path)
        with pytest.raises(grpc.RpcError) as caught:
            call(b"\xff not a message", timeout=DEADLINE_S)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert TOKEN not in caught.value.details()
    assert box.calls == 0


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> TlsConfig:
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    paths = [str(folder / name) for name in ("cert.pem", "key.pem", "ca.pem")]
    certificate.cert_chain_pems[0].write_to_path(paths[0])
    certificate.private_key_pem.write_to_path(paths[1])
    authority.cert_pem.write_to_path(paths[2])
    return TlsConfig(cert_path=paths[0], key_path=paths[1], ca_path=paths[2])


def test_tls(box: EchoBox, tls: TlsConfig) -> None:
    with serve(box, tls=tls) as server:
        with connect(server.port, tls=TlsConfig(ca_path=tls.ca_path)) as client:
            assert client.call("SayBack", Text(text="hush")).text == "hush"
        with (
            connect(server.port, tls=TlsConfig(ca_path=tls.ca_path), token="other") as client,
            pytest.raises(UnauthenticatedError),
        ):
            client.call("SayBack", Text())
        for untrusting, reason in ((TlsConfig(), "of this system"), (None, "DATASERVICE_TLS_CA")):
            with (
                connect(server.port, tls=untrusting) as client,
                pytest.raises(UnauthenticatedError, match=reason),
            ):
                client.call("SayBack", Text(), timeout_s=DEADLINE_S)
    assert box.calls == 1


def test_what_can_never_be_trusted_is_not_waited_for(
    box: EchoBox, tls: TlsConfig, tmp_path: pathlib.Path
) -> None:
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(str(other))
    stranger = trustme.CA()
    certificate = stranger.issue_cert("elsewhere.example")
    paths = {name: str(tmp_path / name) for name in ("cert", "key", "ca")}
    certificate.cert_chain_pems[0].write_to_path(paths["cert"])
    certificate.private_key_pem.write_to_path(paths["key"])
    stranger.cert_pem.write_to_path(paths["ca"])
    elsewhere = TlsConfig(cert_path=paths["cert"], key_path=paths["key"], ca_path=paths["ca"])
    waits: list[float] = []
    for shown, ca_path, reason in (
        (tls, str(other), r"other\.pem: name the CA"),
        (elsewhere, paths["ca"], "(?i)mismatch.*issued for"),
    ):
        with (
            serve(box, tls=shown) as server,
            connect(server.port, tls=TlsConfig(ca_path=ca_path)) as client,
            pytest.raises(UnauthenticatedError, match=reason),
        ):
            client.call_retrying("SayBack", Text(), timeout_s=DEADLINE_S, on_wait=waits.append)
    assert waits == []


def test_a_client_by_tls_of_a_server_without_it(box: EchoBox, tls: TlsConfig) -> None:
    with (
        serve(box) as server,
        connect(server.port, tls=TlsConfig(ca_path=tls.ca_path)) as client,
        pytest.raises(UnauthenticatedError, match="start it with --tls-cert"),
    ):
        client.call("SayBack", Text(), timeout_s=DEADLINE_S)


def test_a_server_that_answered_once_is_not_asked_for_tls(
    box: EchoBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, bool]] = []

    def ask(
        failure: UnavailableError, address: str, *, by_tls: bool, **_: str | None
    ) -> UnavailableError:
        asked.append((address, by_tls))
        return failure

    monkeypatch.setattr("dataservice.runtime.rpc.client.explained", ask)
    with serve(box) as server, connect(server.port) as client, connect(server.port) as late:
        client.call("SayBack", Text())
        server.stop()
        for each in (client, late):
            with pytest.raises(UnavailableError):
                each.call("SayBack", Text(), timeout_s=DEADLINE_S)
        assert asked == [(late.address, False)]


def test_bad_certificates_are_named(box: EchoBox, tls: TlsConfig) -> None:
    missing = TlsConfig(cert_path="no-such.pem", key_path=tls.key_path)
    with pytest.raises(FailedPreconditionError, match=r"no-such\.pem"):
        serve(box, tls=missing).start()
    with pytest.raises(InvalidArgumentError, match=r"test_rpc\.py are no PEM files"):
        serve(box, tls=TlsConfig(cert_path=__file__, key_path=__file__)).start()
    with pytest.raises(InvalidArgumentError, match=r"test_rpc\.py holds no certificate"):
        connect(1, tls=TlsConfig(ca_path=__file__))


# Servers that come and go


def test_a_taken_port_is_named(server: RpcServer, box: EchoBox) -> None:
    second = serve(box, server.port)
    with pytest.raises(AddressInUseError, match=rf"port {server.port} on 127.0.0.1.*--port"):
        second.start()
    second.stop()


def test_a_host_that_is_not_ours() -> None:
    with pytest.raises(InvalidArgumentError, match=r"203\.0\.113\.1"):
        RpcServer("203.0.113.1", 0, token=TOKEN).start()


def test_life_of_a_server(box: EchoBox) -> None:
    server = serve(box)
    with pytest.raises(FailedPreconditionError, match="before it starts"):
        _ = server.port
    server.start()
    port = server.port
    server.start()
    assert server.port == port
    with pytest.raises(FailedPreconditionError, match="before the server starts"):
        server.add_service(SERVICE, box)
    server.stop()
    server.stop()
    with pytest.raises(FailedPreconditionError, match="cannot start again"):
        server.start()
    with serve(box, port) as successor, connect(successor.port) as client:
        assert client.call("SayBack", Text(text="again")).text == "again"


def test_stopping_is_bounded_whatever_runs(box: EchoBox) -> None:
    server = serve(box)
    server.start()
    with connect(server.port) as client, ThreadPoolExecutor(1) as pool:
        held = pool.submit(client.call, "HoldOn", Text())
        assert box.holding.acquire(timeout=DEADLINE_S)
        started_s = time.monotonic()
        server.stop(grace_s=0.2)
        assert time.monotonic() - started_s < AT_MOST_S
        with pytest.raises((UnavailableError, CancelledError)):
            held.result(DEADLINE_S)
        with serve(box, server.port):
            assert client.call_retrying("SayBack", Text(text="x"), timeout_s=DEADLINE_S).text == "x"


def test_stopping_lets_a_short_call_finish(box: EchoBox) -> None:
    server = serve(box)
    server.start()
    with connect(server.port) as client, ThreadPoolExecutor(2) as pool:
        held = pool.submit(client.call, "HoldOn", Text(text="kept"))
        assert box.holding.acquire(timeout=DEADLINE_S)
        stopping = pool.submit(server.stop, DEADLINE_S)
        box.release.set()
        assert held.result(DEADLINE_S).text == "kept"
        stopping.result(DEADLINE_S)


def test_an_unreachable_server_fails_at_once() -> None:
    port = free_port()
    with (
        connect(port) as client,
        pytest.raises(UnavailableError, match=f"cannot reach the echo box at 127.0.0.1:{port}"),
    ):
        client.call("SayBack", Text(), timeout_s=DEADLINE_S)


def test_waiting_for_a_server_warns_and_ends(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "FIRST_NOTICE_S", 0.2)
    port = free_port()
    started_s = time.monotonic()
    with (
        connect(port) as client,
        pytest.raises(UnavailableError, match=rf"echo box at 127.0.0.1:{port}.*after 0\.6 s"),
    ):
        client.call_retrying("SayBack", Text(), timeout_s=0.6)
    assert 0.5 < time.monotonic() - started_s < AT_MOST_S
    assert f"waiting for the echo box at 127.0.0.1:{port}" in caplog.text


def test_a_request_may_be_made_anew_for_each_attempt(server: RpcServer, box: EchoBox) -> None:
    box.error = UnavailableError("not yet")
    made: list[str] = []

    def make() -> Any:
        made.append(f"attempt {len(made)}")
        box.error = box.error if len(made) < 3 else None
        return Text(text=made[-1])

    with connect(server.port) as client:
        reply = client.call_retrying("SayBack", make, timeout_s=DEADLINE_S)
    assert reply.text == "attempt 2"
    assert len(made) == 3


def test_a_server_that_starts_late_is_found(box: EchoBox) -> None:
    server = serve(box, free_port())
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(connect(server._wanted_port))
        waits_s: list[float] = []

        def start_once(waited_s: float) -> None:
            if not waits_s:
                stack.enter_context(server)
            waits_s.append(waited_s)

        reply = client.call_retrying(
            "SayBack", Text(text="late"), timeout_s=DEADLINE_S, on_wait=start_once
        )
        assert reply.text == "late"
        assert waits_s


def test_an_attempt_without_an_answer_is_repeated(client: RpcClient, box: EchoBox) -> None:
    reply = client.call_retrying(
        "HoldOn",
        Text(text="second"),
        timeout_s=DEADLINE_S,
        attempt_timeout_s=0.2,
        on_wait=lambda _: box.release.set(),
    )
    assert reply.text == "second"


def test_waiting_can_be_stopped() -> None:
    stop = threading.Event()
    with connect(free_port()) as client, pytest.raises(CancelledError, match="echo box"):
        client.call_retrying(
            "SayBack",
            Text(),
            timeout_s=DEADLINE_S,
            should_stop=stop.is_set,
            on_wait=lambda _: stop.set(),
        )


def test_closing_ends_calls_streams_and_waits(server: RpcServer, box: EchoBox) -> None:
    client, waiting = connect(server.port), connect(free_port())
    calls: list[Callable[[], Any]] = [
        lambda: client.call("HoldOn", Text()),
        lambda: next(client.stream("ChatOn", Questions())),
        lambda: waiting.call_retrying("SayBack", Text(), timeout_s=60.0),
    ]
    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(call) for call in calls]
        assert box.holding.acquire(timeout=DEADLINE_S)
        client.close()
        waiting.close()
        for call in running:
            with pytest.raises(CancelledError):
                call.result(DEADLINE_S)
    client.close()
    with pytest.raises(CancelledError, match="closed"):
        client.call("SayBack", Text())


def test_retries_do_not_hide_other_errors(client: RpcClient, box: EchoBox) -> None:
    box.error = errors.NotFoundError("no such job")
    with pytest.raises(errors.NotFoundError, match="no such job"):
        client.call_retrying("SayBack", Text(), timeout_s=DEADLINE_S)
    assert box.calls == 1


# Peers in processes of their own


@pytest.fixture
def peer() -> Iterator[tuple[subprocess.Popen[str], int]]:
    process = subprocess.Popen(
        [sys.executable, __file__, "serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            assert select.select([process.stdout], [], [], DEADLINE_S)[0], "the peer did not start"
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


@pytest.mark.slow
def test_a_frozen_server_is_noticed_by_keepalive(peer: tuple[subprocess.Popen[str], int]) -> None:
    process, port = peer
    with connect(port) as client, ThreadPoolExecutor(1) as pool:
        questions = Questions()
        replies = client.stream("ChatOn", questions)
        questions.ask("one")
        assert next(replies).text == "ONE"
        held = pool.submit(client.call, "HoldOn", Text(), timeout_s=60.0)
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        frozen_s = time.monotonic()
        with pytest.raises(UnavailableError, match=f"127.0.0.1:{port}"):
            next(replies)
        with pytest.raises(UnavailableError, match=f"127.0.0.1:{port}"):
            held.result(DEADLINE_S)
        assert time.monotonic() - frozen_s <= AT_MOST_S
        process.send_signal(signal.SIGCONT)
        reply = client.call_retrying("SayBack", Text(text="awake"), timeout_s=DEADLINE_S)
        assert reply.text == "awake"
        questions.end()


def test_a_killed_server_is_noticed_at_once(peer: tuple[subprocess.Popen[str], int]) -> None:
    process, port = peer
    with connect(port) as client:
        questions = Questions()
        replies = client.stream("ChatOn", questions)
        questions.ask("one")
        assert next(replies).text == "ONE"
        process.kill()
        killed_s = time.monotonic()
        with pytest.raises(UnavailableError, match=f"127.0.0.1:{port}"):
            next(replies)
        assert time.monotonic() - killed_s < AT_MOST_S
        questions.end()


@pytest.mark.long
def test_an_idle_connection_is_kept(peer: tuple[subprocess.Popen[str], int]) -> None:
    """Pings every 3 s are abuse by default: the fourth would end the connection."""
    _, port = peer
    with connect(port) as client:
        questions = Questions()
        replies = client.stream("ChatOn", questions)
        with pytest.raises(DeadlineExceededError):
            client.call("HoldOn", Text(), timeout_s=14.0)
        questions.ask("still there")
        assert next(replies).text == "STILL THERE"
        questions.end()


def test_a_forked_child_is_told_to_be_spawned_instead() -> None:
    done = subprocess.run(
        [sys.executable, __file__, "fork"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    old, new = done.stdout.splitlines()
    assert old.startswith("FailedPreconditionError: the client of the echo box")
    assert new.startswith("FailedPreconditionError: a client of the echo box")
    assert "multiprocessing_context='spawn'" in new


def _serve_until_killed() -> None:
    with serve(EchoBox()) as server:
        print(server.port, flush=True)
        sys.stdin.read()


def _call_from_a_forked_child() -> None:
    client = connect(free_port())
    child = os.fork()
    if child == 0:
        for attempt in (lambda: client.call("SayBack", Text()), lambda: connect(free_port())):
            try:
                attempt()
            except DataServiceError as error:
                print(f"{type(error).__name__}: {error}", flush=True)
        client.close()
        os._exit(0)
    os.waitpid(child, 0)
    client.close()


if __name__ == "__main__":
    {"serve": _serve_until_killed, "fork": _call_from_a_forked_child}[sys.argv[1]]()


def test_looking_for_tls_leaves_no_socket_where_the_server_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As dispatchers that are killed do, between a connection and the first word of it."""
    connect = socket.create_connection

    def connect_and_lose(*arguments: Any) -> socket.socket:
        connected = connect(*arguments)
        poll = select.poll()
        poll.register(connected, select.POLLRDHUP)
        assert poll.poll(10_000), "the server has not ended the connection"
        return connected

    monkeypatch.setattr(socket, "create_connection", connect_and_lose)
    with socket.create_server(("127.0.0.1", 0)) as listener, warnings.catch_warnings():
        warnings.simplefilter("error")
        thread = threading.Thread(target=lambda: reset_next(listener))
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        assert _speaks_tls(address) is None
        thread.join()
        gc.collect()


def reset_next(listener: socket.socket) -> None:
    accepted, _ = listener.accept()
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    accepted.close()
