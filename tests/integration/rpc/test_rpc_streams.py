"""Streaming calls: what they take of the process, and how they end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from dataservice.errors import CancelledError, FailedPreconditionError, UnavailableError
from dataservice.runtime.rpc import RpcClient
from tests.integration.echo_service import (
    DEADLINE_S,
    EchoBox,
    Questions,
    Text,
    connect,
    serve,
    texts,
)
from tests.waiting import wait_until

STREAMS = 30


def test_streams_of_a_process_share_one_thread(peer: tuple[Any, int]) -> None:
    _, port = peer
    with connect(port) as first:
        assert texts(first.stream("SpellOut", Text(text="ab"))) == ["a", "b"]
    before = threading.active_count()
    with ExitStack() as stack:
        asked = []
        for _ in range(STREAMS):
            client, questions = stack.enter_context(connect(port)), Questions()
            asked.append((questions, client.stream("ChatOn", questions)))
        for number, (questions, replies) in enumerate(asked):
            questions.ask(f"stream {number}")
            assert next(replies).text == f"STREAM {number}"
        assert threading.active_count() <= before


class Broken(Questions):
    """A source that fails after its requests."""

    def take(self) -> Any:
        request = super().take()
        if request is None:
            raise ZeroDivisionError("of the source")
        return request


def test_source_that_fails_ends_the_call_with_its_error(client: RpcClient, box: EchoBox) -> None:
    replies = client.stream("ChatOn", Broken("one"))
    with pytest.raises(ZeroDivisionError, match="of the source"):
        texts(replies)
    with pytest.raises(ZeroDivisionError, match="of the source"):
        next(replies)
    assert box.chat_ended.wait(DEADLINE_S)


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


ENDS = (FailedPreconditionError, UnavailableError)


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


def test_stream_cancelled_before_it_began_ends(client: RpcClient) -> None:
    replies = client.stream("ChatOn", Questions())
    replies.cancel()
    with pytest.raises(CancelledError, match=r"ChatOn to the echo box .* was cancelled"):
        next(replies)


def test_client_forgets_streams_that_are_over(client: RpcClient) -> None:
    for _ in range(3):
        assert texts(client.stream("SpellOut", Text(text="a"))) == ["a"]
    wait_until(lambda: not client._streams, "the streams to be forgotten")
