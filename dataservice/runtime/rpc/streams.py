"""Streaming calls, all on one thread of the process, however many there are.

A stream of gRPC's blocking interface takes three threads, which wake 15 times a second; one of its
asyncio interface takes none, and nothing while it is silent. Knows no service, and no errors but
gRPC's own. Invariant: what runs on the loop waits for no other thread, and a stream's iteration
ends however the call does.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, Final, Protocol

import grpc.aio
from google.protobuf.message import Message

from dataservice.errors import DataServiceError

CUT_OFF: Final = "Internal error from Core"
"""What gRPC says of a call that ended while a request was sent, until it has the call's status."""
_STATUS_WAIT_S: Final = 1.0
_STATUS_POLL_S: Final = 0.01

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


class RequestSource(Protocol):
    """Where a stream finds its requests. The streams' thread calls it, so it must not block."""

    @property
    def is_over(self) -> bool:
        """True if there will be no more requests; `take` may be what finds out."""

    def listen(self, wake: Callable[[], None]) -> None:
        """Has ``wake`` called, by any thread, whenever there may be something new, and now."""

    def take(self) -> Message | None:
        """Returns the next request, or None if there is none for now."""


class RpcStream:
    """The replies of a streaming call, in order; iteration blocks until the next one.

    Iteration raises the server's error if the call failed, CancelledError after ``cancel``. One
    thread may iterate; any thread may cancel. Replies are kept until they are iterated over: the
    two ends must bound how many there can be.

    ``begin`` makes the channel and the call, on the loop's thread. ``requests`` is None if the call
    was given its only request. ``error_of`` converts gRPC's error; None stands for a call that was
    cancelled here. ``on_end`` is called when the call is over.
    """

    def __init__(
        self,
        begin: Callable[[], tuple[Any, Any]],
        requests: RequestSource | None,
        error_of: Callable[[grpc.RpcError | None], DataServiceError],
        on_end: Callable[[RpcStream], None],
    ) -> None:
        self._begin = begin
        self._requests = requests
        self._error_of = error_of
        self._on_end = on_end
        self._replies: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._failure: BaseException | None = None
        self._has_ended = False
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._is_woken = False
        self._loop = _running_loop()

    def start(self) -> None:
        """Begins the call; does not wait for it."""
        self._loop.call_soon_threadsafe(self._start)

    def __iter__(self) -> RpcStream:
        return self

    def __next__(self) -> Any:
        reply = None if self._has_ended else self._replies.get()
        if reply is not None:
            return reply
        self._has_ended = True
        raise self._failure or StopIteration

    def cancel(self) -> None:
        """Ends the call; a blocked iteration returns at once."""
        self._loop.call_soon_threadsafe(self._cancel)

    def _wake(self) -> None:
        """Has the loop look for requests. From any thread, also inside another call."""
        if not self._is_woken:
            self._is_woken = True
            self._loop.call_soon_threadsafe(self._woken.set)

    # On the loop's thread.

    def _start(self) -> None:
        self._task = self._loop.create_task(self._exchange())
        self._task.add_done_callback(self._end)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _exchange(self) -> None:
        channel, call = self._begin()
        async with channel:
            sending = self._loop.create_task(self._send(call))
            try:
                await self._receive(call)
            finally:
                sending.cancel()

    async def _receive(self, call: Any) -> None:
        """Queues the replies; raises the call's error at their end."""
        try:
            async for reply in call:
                self._replies.put(reply)
        except grpc.aio.AioRpcError as error:
            if error.details() != CUT_OFF:
                raise
            await self._raise_status(call)

    async def _raise_status(self, call: Any) -> None:
        """Waits until gRPC has the status of a call that has ended, and raises it."""
        give_up_s = self._loop.time() + _STATUS_WAIT_S
        while await call.details() == CUT_OFF and self._loop.time() < give_up_s:
            await asyncio.sleep(_STATUS_POLL_S)
        await call.read()

    async def _send(self, call: Any) -> None:
        """Sends requests as they come; one that cannot be made or sent ends the call."""
        if self._requests is None:
            return
        try:
            self._requests.listen(self._wake)
            while not self._requests.is_over:
                await self._woken.wait()
                self._woken.clear()
                # Before the source is asked: what is put into it from now on wakes again.
                self._is_woken = False
                while (request := self._requests.take()) is not None:
                    await call.write(request)
            await call.done_writing()
        except (grpc.RpcError, grpc.aio.InternalError, asyncio.InvalidStateError):
            # The call is over, and its replies end with the reason.
            return
        except Exception as error:
            self._failure = error
            call.cancel()

    def _end(self, task: asyncio.Task[None]) -> None:
        error: BaseException | None
        error = self._error_of(None) if task.cancelled() else task.exception()
        if isinstance(error, grpc.RpcError):
            error = self._error_of(error)
        self._failure = self._failure or error
        self._on_end(self)
        self._replies.put(None)


def _running_loop() -> asyncio.AbstractEventLoop:
    """Returns the loop of this process, whose thread the first stream starts."""
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="rpc-streams", daemon=True).start()
        return _loop
