"""RPC servers that stop and restart, and peers in processes of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dataservice import errors
from dataservice.errors import (
    AddressInUseError,
    CancelledError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    UnavailableError,
)
from dataservice.runtime import retry
from dataservice.runtime.rpc import RpcClient, RpcServer
from tests.integration import echo_service
from tests.integration.echo_service import (
    AT_MOST_S,
    DEADLINE_S,
    SERVICE,
    TOKEN,
    EchoBox,
    Questions,
    Text,
    connect,
    serve,
)
from tests.ports import free_port


def test_port_in_use_is_refused_and_named(server: RpcServer, box: EchoBox) -> None:
    second = serve(box, server.port)
    with pytest.raises(AddressInUseError, match=rf"port {server.port} on 127.0.0.1.*--port"):
        second.start()
    second.stop()


def test_listening_on_host_of_another_machine_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"203\.0\.113\.1"):
        RpcServer("203.0.113.1", 0, token=TOKEN).start()


def test_server_starts_and_stops_once_and_frees_its_port(box: EchoBox) -> None:
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


def test_stop_is_not_held_up_by_running_calls(box: EchoBox) -> None:
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


def test_stop_lets_short_call_finish_within_grace(box: EchoBox) -> None:
    server = serve(box)
    server.start()
    with connect(server.port) as client, ThreadPoolExecutor(2) as pool:
        held = pool.submit(client.call, "HoldOn", Text(text="kept"))
        assert box.holding.acquire(timeout=DEADLINE_S)
        stopping = pool.submit(server.stop, DEADLINE_S)
        box.release.set()
        assert held.result(DEADLINE_S).text == "kept"
        stopping.result(DEADLINE_S)


def test_call_to_unreachable_server_fails_at_once() -> None:
    port = free_port()
    with (
        connect(port) as client,
        pytest.raises(UnavailableError, match=f"cannot reach the echo box at 127.0.0.1:{port}"),
    ):
        client.call("SayBack", Text(), timeout_s=DEADLINE_S)


def test_retrying_call_warns_of_its_wait_and_times_out(
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


def test_retrying_call_makes_request_anew_for_each_attempt(server: RpcServer, box: EchoBox) -> None:
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


def test_retrying_call_reaches_server_that_starts_late(box: EchoBox) -> None:
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


def test_attempt_that_times_out_is_retried(client: RpcClient, box: EchoBox) -> None:
    reply = client.call_retrying(
        "HoldOn",
        Text(text="second"),
        timeout_s=DEADLINE_S,
        attempt_timeout_s=0.2,
        on_wait=lambda _: box.release.set(),
    )
    assert reply.text == "second"


def test_retrying_call_can_be_cancelled() -> None:
    stop = threading.Event()
    with connect(free_port()) as client, pytest.raises(CancelledError, match="echo box"):
        client.call_retrying(
            "SayBack",
            Text(),
            timeout_s=DEADLINE_S,
            should_stop=stop.is_set,
            on_wait=lambda _: stop.set(),
        )


def test_closing_client_cancels_calls_streams_and_retries(server: RpcServer, box: EchoBox) -> None:
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


def test_errors_other_than_unavailable_are_not_retried(client: RpcClient, box: EchoBox) -> None:
    box.error = errors.NotFoundError("no such job")
    with pytest.raises(errors.NotFoundError, match="no such job"):
        client.call_retrying("SayBack", Text(), timeout_s=DEADLINE_S)
    assert box.calls == 1


@pytest.mark.slow
def test_frozen_server_is_noticed_by_keepalive(peer: tuple[subprocess.Popen[str], int]) -> None:
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


def test_killed_server_is_noticed_at_once(peer: tuple[subprocess.Popen[str], int]) -> None:
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
def test_idle_connection_is_kept_despite_keepalive_pings(
    peer: tuple[subprocess.Popen[str], int],
) -> None:
    """By default gRPC takes pings every 3 s for abuse: the fourth would end the connection."""
    _, port = peer
    with connect(port) as client:
        questions = Questions()
        replies = client.stream("ChatOn", questions)
        with pytest.raises(DeadlineExceededError):
            client.call("HoldOn", Text(), timeout_s=14.0)
        questions.ask("still there")
        assert next(replies).text == "STILL THERE"
        questions.end()


def test_client_in_forked_child_is_refused_in_favour_of_spawn() -> None:
    done = subprocess.run(
        [sys.executable, echo_service.__file__, "fork"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    old, new = done.stdout.splitlines()
    assert old.startswith("FailedPreconditionError: the client of the echo box")
    assert new.startswith("FailedPreconditionError: a client of the echo box")
    assert "multiprocessing_context='spawn'" in new
