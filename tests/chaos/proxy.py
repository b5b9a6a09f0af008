"""A TCP proxy that misbehaves on demand: resets, delays, holds data back, refuses connections.

One thread with one event loop carries all links of a `FaultProxy`. Knows bytes only, not their
meaning, and no schedules. Data that a fault holds back passes when the link is healed, as after a
partition that TCP survives. Invariant: `close` ends every connection and the thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Literal

Way = Literal["up", "down"]

BOTH: tuple[Way, ...] = ("up", "down")
_CHUNK_BYTES = 64 << 10
_CALL_TIMEOUT_S = 30.0
# SO_LINGER with this value makes closing send a reset instead of an orderly end.
_ABORT = struct.pack("ii", 1, 0)


@dataclass
class Counters:
    """What a link has carried so far; `up` and `down` are bytes to and from the server."""

    connections: int = 0
    refused: int = 0
    resets: int = 0
    up: int = 0
    down: int = 0


class Link:
    """A listener of a proxy that stands for one server. Thread safe; faults last until `heal`."""

    def __init__(self, proxy: FaultProxy, port: int, target: tuple[str, int]) -> None:
        self.counters = Counters()
        self.port = port
        self._proxy = proxy
        self._target = target
        self._server: asyncio.Server | None = None
        self._refuses = False
        self._delay_s = 0.0
        self._cut_after: int | None = None
        self._slice_bytes: int | None = None
        self._open = {way: asyncio.Event() for way in BOTH}
        self._pairs: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        """The address that clients connect to."""
        return f"127.0.0.1:{self.port}"

    # Faults

    def cut(self) -> None:
        """Resets every connection that is open now; new ones are served."""
        self._proxy.call(self._reset_all)

    def cut_after(self, size_bytes: int) -> None:
        """Resets, once, the connection that carries the last of this link's next `size_bytes`."""
        self._proxy.call(lambda: setattr(self, "_cut_after", size_bytes))

    def refuse(self) -> None:
        """Resets all open connections, and every new one as soon as it is accepted."""

        def act() -> None:
            self._refuses = True
            self._reset_all()

        self._proxy.call(act)

    def hold(self, ways: tuple[Way, ...] = BOTH) -> None:
        """Lets no data pass in these directions; connections stay, and new ones get no answer."""
        self._proxy.call(lambda: [self._open[way].clear() for way in ways])

    def delay(self, seconds: float) -> None:
        """Delays every chunk of data by this long, in each direction."""
        self._proxy.call(lambda: setattr(self, "_delay_s", seconds))

    def slice(self, size_bytes: int) -> None:
        """Passes data on in pieces of at most this size, each written by itself."""
        self._proxy.call(lambda: setattr(self, "_slice_bytes", size_bytes))

    def heal(self) -> None:
        """Ends all faults; data that was held back passes."""
        self._proxy.call(self._heal)

    def _heal(self) -> None:
        self._refuses, self._delay_s = False, 0.0
        self._cut_after = self._slice_bytes = None
        for event in self._open.values():
            event.set()

    def _reset_all(self) -> None:
        for pair in list(self._pairs):
            self._reset(pair)

    def _reset(self, pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter]) -> None:
        if pair in self._pairs:
            self._pairs.discard(pair)
            self.counters.resets += 1
        for writer in pair:
            _abort(writer)

    # Connections, all on the proxy's thread

    async def listen(self) -> None:
        """Begins to serve; takes a free port where none was given."""
        self._heal()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def shut(self) -> None:
        """Ends all connections, and every new one at once."""
        self._refuses = True
        self._reset_all()
        for task in self._tasks:
            task.cancel()

    def end(self) -> None:
        """Ends the listener."""
        if self._server is not None:
            self._server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            _abort(writer)
            self._tasks.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.counters.connections += 1
        if self._refuses:
            self.counters.refused += 1
            return
        to_server: asyncio.StreamWriter | None = None
        try:
            from_server, to_server = await asyncio.open_connection(*self._target)
            pair = (writer, to_server)
            if self._refuses:
                return
            self._pairs.add(pair)
            ways = (
                self._pump("up", reader, to_server, pair),
                self._pump("down", from_server, writer, pair),
            )
            await asyncio.gather(*ways)
            self._pairs.discard(pair)
        except ConnectionRefusedError:
            self.counters.refused += 1
        finally:
            if to_server is not None:
                _abort(to_server)

    async def _pump(
        self,
        way: Way,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
    ) -> None:
        try:
            while data := await source.read(_CHUNK_BYTES):
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                await self._open[way].wait()
                data, is_last = self._count(way, data)
                await self._pass_on(data, sink)
                if is_last:
                    # Sends what was written before the reset, so that a message is torn.
                    await asyncio.sleep(0)
                    self._reset(pair)
                    return
                await sink.drain()
            if sink.can_write_eof():
                sink.write_eof()
        except OSError:
            self._reset(pair)

    async def _pass_on(self, data: bytes, sink: asyncio.StreamWriter) -> None:
        while self._slice_bytes is not None and len(data) > self._slice_bytes:
            piece, data = data[: self._slice_bytes], data[self._slice_bytes :]
            sink.write(piece)
            # Lets other tasks run, and the kernel send the piece.
            await asyncio.sleep(0)
        sink.write(data)

    def _count(self, way: Way, data: bytes) -> tuple[bytes, bool]:
        """Counts data; returns what of it passes, and whether the connection is then reset."""
        left = self._cut_after
        if left is not None:
            if left <= len(data):
                data, self._cut_after = data[:left], None
            else:
                self._cut_after = left - len(data)
        setattr(self.counters, way, getattr(self.counters, way) + len(data))
        return data, left is not None and self._cut_after is None


class FaultProxy:
    """A proxy with any number of links; a context manager. `link` may be called until `close`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._links: list[Link] = []
        self._thread = threading.Thread(target=self._run, name="fault-proxy", daemon=True)
        self._thread.start()

    def link(self, target_port: int, *, port: int = 0) -> Link:
        """Opens a link to `target_port` of this machine, where nobody has to listen yet."""
        link = Link(self, port, ("127.0.0.1", target_port))
        self._wait(link.listen())
        self._links.append(link)
        return link

    def call(self, action: Callable[[], object]) -> None:
        """Runs a short function on the proxy's thread and waits for it."""

        async def act() -> None:
            action()

        self._wait(act())

    def close(self) -> None:
        """Ends everything. Idempotent."""
        if self._loop.is_closed():
            return
        self._wait(_end(self._links))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CALL_TIMEOUT_S)
        self._loop.close()

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _wait(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_TIMEOUT_S)


async def _end(links: list[Link]) -> None:
    """Ends all connections, then the listeners: an accepted connection outlives its listener."""
    for link in links:
        link.shut()
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others)
    for link in links:
        link.end()


def _abort(writer: asyncio.StreamWriter) -> None:
    """Ends a connection by a reset; does nothing to one that has ended."""
    connection = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
    writer.transport.abort()
