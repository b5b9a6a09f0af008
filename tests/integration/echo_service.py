"""An RPC service that echoes, with its servers and clients.

Run as a script, this file is a peer process: ``serve`` answers until killed, ``fork`` forks.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message_factory import GetMessageClass

from dataservice.errors import DataServiceError
from dataservice.runtime.rpc import RpcClient, RpcServer
from tests.ports import free_port

TOKEN = "the-token"
DEADLINE_S = 60.0
# Shorter than any time-out that these tests must not wait for.
AT_MOST_S = 30.0


def _pool(methods: dict[str, tuple[bool, bool]]) -> descriptor_pool.DescriptorPool:
    """Returns a pool with one service ``EchoBox``.

    ``methods`` maps a method to (streams requests, streams replies).
    """
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
    """A service that echoes, raises ``error`` if set, and holds some calls until ``release``."""

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


@contextlib.contextmanager
def echo_box() -> Iterator[EchoBox]:
    """Yields a box, and releases the calls that it holds at the end."""
    box = EchoBox()
    yield box
    box.release.set()


def serve(box: EchoBox, port: int = 0, **settings: Any) -> RpcServer:
    server = RpcServer("127.0.0.1", port, **{"token": TOKEN, **settings})
    server.add_service(SERVICE, box)
    return server


def connect(port: int, **settings: Any) -> RpcClient:
    return RpcClient(f"127.0.0.1:{port}", SERVICE, **{"token": TOKEN, **settings})


def texts(replies: Any) -> list[str]:
    return [reply.text for reply in replies]


class Questions:
    """A source of requests that are put in one by one, until ``end``."""

    def __init__(self, *texts: str) -> None:
        self._requests: deque[Any] = deque()
        self._wake: Callable[[], None] = lambda: None
        self.is_over = False
        for text in texts:
            self.ask(text)

    def ask(self, text: str) -> None:
        self._put(Text(text=text))

    def end(self) -> None:
        self._put(None)

    def listen(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        wake()

    def take(self) -> Any:
        if not self._requests:
            return None
        request = self._requests.popleft()
        self.is_over = request is None
        return request

    def _put(self, request: Any) -> None:
        self._requests.append(request)
        self._wake()


def serve_until_killed() -> None:
    with serve(EchoBox()) as server:
        print(server.port, flush=True)
        sys.stdin.read()


def call_from_a_forked_child() -> None:
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
    {"serve": serve_until_killed, "fork": call_from_a_forked_child}[sys.argv[1]]()
