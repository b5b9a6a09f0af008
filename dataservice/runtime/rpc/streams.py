"""Streaming calls, all on one thread of the process, however many there are.

A stream of gRPC's blocking interface takes three threads, which wake 15 times a second; one of its
asyncio interface takes none, and nothing while it is silent. Knows no service, and no errors but
gRPC's own. Invariant: what runs on the loop waits for no other thread, a stream's iteration ends
however the call does, and nothing of a call outlives it.
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

    Iteration raises the server's error if the call failed, CancelledError after ``cancel``; replies
    that have arrived come first. One thread may iterate; any thread may cancel. Replies are kept
    until they are iterated over: the two ends must bound how many there can be.

    ``begin`` makes the channel and the call, on the loop's thread. ``requests`` is None if the call
    was given its only request. ``error_of`` converts what ended the call: an error of gRPC,
    asyncio's CancelledError, or what was raised here; it is also told whether there ever was a
    connection. It may block: the iterating thread calls it. ``on_end`` is called when the call is
    over.
    """

    def __init__(
        self,
        begin: Callable[[], tuple[Any, Any]],
        requests: RequestSource | None,
        error_of: Callable[[BaseException, bool], DataServiceError],
        on_end: Callable[[RpcStream], None],
    ) -> None:
        self._begin: Callable[[], tuple[Any, Any]] | None = begin
        self._requests: RequestSource | None = requests
        self._error_of = error_of
        self._on_end = on_end
        self._replies: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._failure: BaseException | None = None
        self._has_ended = self._was_connected = False
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
        if self._failure is None:
            raise StopIteration
        # A new one each time: one that was raised refers, by its traceback, to this stream.
        raise self._error_of(self._failure, self._was_connected)

    def cancel(self) -> None:
        """Ends the call; a blocked iteration returns at once."""
        self._loop.call_soon_threadsafe(self._cancel)

    def _wake(self) -> None:
        """Has the loop look for requests. From any thread, also inside another call."""
        if not self._is_woken:
            self._is_woken = True
            try:
                self._loop.call_soon_threadsafe(self._woken.set)
            except BaseException:
                # An interrupt, perhaps before the call: nobody else would wake the loop any more.
                self._loop.call_soon_threadsafe(self._woken.set)
                raise

    # On the loop's thread.

    def _start(self) -> None:
        self._task = self._loop.create_task(self._exchange())
        self._task.add_done_callback(self._end)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _exchange(self) -> None:
        assert self._begin is not None
        channel, call = self._begin()
        async with channel:
            sending = self._loop.create_task(self._send(call, self._requests))
            try:
                await self._receive(call)
            finally:
                sending.cancel()

    async def _receive(self, call: Any) -> None:
        """Queues the replies; raises the call's error at their end."""
        try:
            async for reply in call:
                if reply is None:
                    raise ValueError("a reply is no message of the expected type")
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

    async def _send(self, call: Any, requests: RequestSource | None) -> None:
        """Sends requests as they come; one that cannot be made or sent ends the call."""
        try:
            await call.wait_for_connection()
            self._was_connected = True
            if requests is not None:
                await self._send_all(call, requests)
        except (grpc.RpcError, grpc.aio.InternalError, asyncio.InvalidStateError):
            # The call is over, and its replies end with the reason.
            return
        except Exception as error:
            self._failure = error
            call.cancel()

    async def _send_all(self, call: Any, requests: RequestSource) -> None:
        requests.listen(self._wake)
        while not requests.is_over:
            await self._woken.wait()
            self._woken.clear()
            # Before the source is asked: what is put into it from now on wakes again.
            self._is_woken = False
            while (request := requests.take()) is not None:
                await call.write(request)
        await call.done_writing()

    def _end(self, task: asyncio.Task[None]) -> None:
        """Notes how the call ended, and lets go of all that refers to this stream in turn."""
        failure = asyncio.CancelledError() if task.cancelled() else task.exception()
        if isinstance(failure, grpc.RpcError):
            failure.with_traceback(None)
        self._failure = self._failure or failure
        self._task = self._begin = self._requests = None
        self._on_end(self)
        self._replies.put(None)


def _running_loop() -> asyncio.AbstractEventLoop:
    """Returns the loop of this process, whose thread the first stream starts."""
    global _loop
    with _lock:
        if _loop is None:
            # Not what the program's policy would make, which may be good for its main thread only.
            loop = asyncio.SelectorEventLoop()
            try:
                threading.Thread(target=loop.run_forever, name="rpc-streams", daemon=True).start()
            except RuntimeError:
                loop.close()
                raise
            _loop = loop
        return _loop
