"""Streaming calls: what they take of the process, and how they end."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import grpc
import pytest

from dataservice.errors import (
    CancelledError,
    FailedPreconditionError,
    InternalError,
    UnavailableError,
)
from dataservice.runtime.rpc import RpcClient, client, streams
from tests.integration.echo_service import (
    DEADLINE_S,
    EchoBox,
    Questions,
    Text,
    connect,
    serve,
    texts,
)
from tests.ports import free_port
from tests.programs import said_by
from tests.waiting import wait_until

STREAMS = 30


def test_streams_of_a_process_share_one_thread(peer: tuple[Any, int]) -> None:
    _, port = peer
    with ExitStack() as stack:

        def chat(number: int) -> None:
            questions = Questions(f"stream {number}")
            replies = stack.enter_context(connect(port)).stream("ChatOn", questions)
            assert next(replies).text == f"STREAM {number}"

        chat(0)
        with_one = threading.active_count()
        for number in range(1, STREAMS):
            chat(number)
        assert threading.active_count() == with_one


class Broken(Questions):
    """A source that fails after its requests."""

    def take(self) -> Any:
        request = super().take()
        if request is None:
            raise ZeroDivisionError("of the source")
        return request


def test_source_that_fails_ends_the_call_with_its_error(client: RpcClient, box: EchoBox) -> None:
    replies = client.stream("ChatOn", Broken("one"))
    for _ in range(2):
        with pytest.raises(
            InternalError, match=r"at this end: ZeroDivisionError: of the"
        ) as caught:
            texts(replies)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert box.chat_ended.wait(DEADLINE_S)


def test_unreadable_reply_is_an_error_and_no_end() -> None:
    pool = ThreadPoolExecutor(2)
    server = grpc.server(pool)
    damaged = grpc.stream_stream_rpc_method_handler(lambda *_: iter([b"\xff"]))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("echo.EchoBox", {"ChatOn": damaged}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with (
            connect(port) as client,
            pytest.raises(InternalError, match=r"ChatOn to the echo box .* a reply is no message"),
        ):
            texts(client.stream("ChatOn", Questions("one")))
    finally:
        server.stop(0).wait()
        pool.shutdown()


class OverAtTheFifth(EchoBox):
    """Answers four questions of a chat, and fails at the fifth."""

    def chat_on(self, requests: Iterator[Any]) -> Iterator[Any]:
        for number, request in enumerate(requests):
            if number == 4:
                raise FailedPreconditionError("over")
            yield request


class Flood:
    """Requests that are all there at once, and have no end."""

    is_over = False

    def listen(self, wake: Callable[[], None]) -> None:
        wake()

    def take(self) -> Any:
        return Text(text="x" * 20_000)


def test_error_that_meets_requests_on_their_way_loses_no_reply() -> None:
    """gRPC may report such an end as an internal error, which it is not."""
    with serve(OverAtTheFifth()) as server:
        for _ in range(20):
            with connect(server.port) as client:
                replies, got = client.stream("ChatOn", Flood()), 0
                with pytest.raises(
                    (FailedPreconditionError, UnavailableError), match=r"over|broke"
                ):
                    for got, _ in enumerate(replies, 1):  # noqa: B007
                        pass
                assert got == 4


class CutOff:
    """A call that ended while a request was sent: gRPC knows its status only after some looks."""

    def __init__(self, looks: int, details: str = streams.CUT_OFF) -> None:
        self.looks = looks
        self._details = details

    def __aiter__(self) -> CutOff:
        return self

    async def __anext__(self) -> Any:
        raise grpc.aio.AioRpcError(
            grpc.StatusCode.INTERNAL, grpc.aio.Metadata(), grpc.aio.Metadata(), self._details
        )

    async def details(self) -> str:
        self.looks -= 1
        return streams.CUT_OFF if self.looks >= 0 else "the reason"

    async def read(self) -> None:
        raise FailedPreconditionError(await self.details())


def received_from(call: CutOff) -> None:
    stream = streams.RpcStream(None, None, None, None)  # type: ignore[arg-type]
    asyncio.run(stream._receive(call))


def test_call_that_was_cut_off_ends_with_the_status_that_arrives_later() -> None:
    with pytest.raises(FailedPreconditionError, match="the reason"):
        received_from(CutOff(looks=3))


def test_status_that_never_arrives_is_not_awaited_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_STATUS_WAIT_S", 0.2)
    call = CutOff(looks=1_000_000)
    began_s = time.monotonic()
    with pytest.raises(FailedPreconditionError, match=streams.CUT_OFF):
        received_from(call)
    assert 0.2 <= time.monotonic() - began_s < DEADLINE_S
    assert call.looks > 999_900, "all other streams stand still while one looks"


def test_other_error_of_a_call_is_raised_at_once() -> None:
    call = CutOff(looks=3, details="of its own")
    with pytest.raises(grpc.aio.AioRpcError, match="of its own"):
        received_from(call)
    assert call.looks == 3


def test_stream_cancelled_before_it_began_ends(client: RpcClient) -> None:
    replies = client.stream("ChatOn", Questions())
    replies.cancel()
    with pytest.raises(CancelledError, match=r"ChatOn to the echo box .* was cancelled"):
        next(replies)


def test_client_forgets_streams_that_are_over(client: RpcClient) -> None:
    for _ in range(3):
        assert texts(client.stream("SpellOut", Text(text="a"))) == ["a"]
    wait_until(lambda: not client._streams, "the streams to be forgotten")


def test_streams_that_are_over_leave_nothing_to_the_collector(client: RpcClient) -> None:
    def chat(*, cancels: bool) -> list[weakref.ref[Any]]:
        questions = Questions("one")
        replies = client.stream("ChatOn", questions)
        assert next(replies).text == "ONE"
        if cancels:
            replies.cancel()
            with pytest.raises(CancelledError):
                next(replies)
        else:
            questions.end()
            assert texts(replies) == []
        return [weakref.ref(questions), weakref.ref(replies)]

    gc.collect()
    gc.disable()
    try:
        left = chat(cancels=True) + chat(cancels=False)
        wait_until(lambda: not any(ref() for ref in left), "the streams to be freed")
    finally:
        gc.enable()


def test_why_a_peer_was_not_reached_is_found_out_by_the_iterating_thread(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It takes a connection and up to a second, for which all other streams would stand still."""
    asked = []

    def explained(failure: UnavailableError, *_: Any, **__: Any) -> UnavailableError:
        asked.append(threading.current_thread())
        return failure

    monkeypatch.setattr(client, "explained", explained)
    with (
        connect(free_port()) as stranger,
        pytest.raises(UnavailableError, match="check host and port"),
    ):
        next(stranger.stream("ChatOn", Questions("one")))
    assert asked == [threading.current_thread()]
    gc.collect()
    assert not caplog.records, "that nothing could be sent is no news besides"


def test_peer_that_was_connected_is_not_taken_for_a_wrong_address(peer: tuple[Any, int]) -> None:
    process, port = peer
    with connect(port) as known:
        replies = known.stream("ChatOn", Questions("one"))
        assert next(replies).text == "ONE"
        process.kill()
        with pytest.raises(UnavailableError) as caught:
            next(replies)
    assert "check host and port" not in str(caught.value)


class InterruptedOnce:
    """A loop whose first call is interrupted by Ctrl-C."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []
        self.is_interrupted = False

    def call_soon_threadsafe(self, call: Callable[[], None]) -> None:
        if not self.is_interrupted:
            self.is_interrupted = True
            raise KeyboardInterrupt
        self.calls.append(call)


def test_interrupt_while_the_loop_is_woken_does_not_leave_it_asleep() -> None:
    stream = streams.RpcStream(None, None, None, None)  # type: ignore[arg-type]
    loop = InterruptedOnce()
    stream._loop = loop  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        stream._wake()
    assert loop.calls == [stream._woken.set]


def test_thread_that_did_not_start_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    loop = asyncio.SelectorEventLoop()
    monkeypatch.setattr(streams, "_loop", None)
    monkeypatch.setattr(asyncio, "SelectorEventLoop", lambda: loop)
    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="new thread"):
        streams._running_loop()
    assert streams._loop is None
    assert loop.is_closed()


OWN_POLICY = """
import asyncio

def refuse():
    raise RuntimeError("an event loop for the main thread only")

asyncio.new_event_loop = refuse
from tests.integration.echo_service import EchoBox, Text, connect, serve, texts
with serve(EchoBox()) as server, connect(server.port) as client:
    print(texts(client.stream("SpellOut", Text(text="ab"))))
"""


def test_streams_do_not_depend_on_the_event_loops_of_the_program() -> None:
    assert said_by(OWN_POLICY).strip() == "['a', 'b']"
