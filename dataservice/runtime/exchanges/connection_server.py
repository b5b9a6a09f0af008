"""Serves message streams over connections of their own, for any transport.

The counterpart of `flight.FlightServer`, with the same handlers and errors. Responsible for
accepting clients and for the threads of their exchanges. An exchange of requests and replies has no
thread while it rests, between a reply and the next request. Knows no memory, and no details of the
sockets. Invariants: no client without the token reaches a handler, and `ConnectionServer.stop` is
bounded in time.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from dataservice.errors import CancelledError, DataServiceError, UnavailableError
from dataservice.runtime.exchanges.admission import Admission
from dataservice.runtime.exchanges.connection_channel import (
    AnyHandler,
    ConnectionChannel,
    Requests,
)
from dataservice.runtime.exchanges.connection_exchange import Connection
from dataservice.runtime.exchanges.kept_threads import KeptThreads
from dataservice.runtime.machine.cores import available_cores
from dataservice.runtime.machine.open_files import is_limit, limit_reached

logger = logging.getLogger(__name__)

# The interval at which a listener checks whether it was stopped, in case a wake-up got lost.
_RECHECK_S: Final = 1.0
# Requests answered at once on a small machine, and for each core of a larger one: enough that slow
# networks to some clients keep no core idle.
_AT_ONCE: Final = 32
_AT_ONCE_PER_CORE: Final = 4
# Most requests take milliseconds, and some tens of them where all threads share few cores. One that
# takes longer waits for a disk, or for its client.
_SLOW_S: Final = 0.25
# The interval at which a listener looks for slow ones while others wait.
_LOOK_S: Final = 0.05
# An exchange keeps its thread for this long after a reply, if only few others do and nobody waits
# for a thread: waking another costs as much as a small request.
_STAY_S: Final = 1.0


class ConnectionServer:
    """The base of servers of named exchanges.

    Subclasses decide where to listen and which clients to admit.
    """

    def __init__(self, *, token: str, exchanges: Mapping[str, AnyHandler]) -> None:
        self._token = token
        self._exchanges = dict(exchanges)
        self._stopping = threading.Event()
        self._listener: socket.socket | None = None
        self._accepting: threading.Thread | None = None
        self._open: set[ConnectionChannel] = set()
        # Those that keep their threads. Single operations of a set need no lock.
        self._staying: set[ConnectionChannel] = set()
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        at_once = max(_AT_ONCE, _AT_ONCE_PER_CORE * available_cores())
        self._admission: Admission[ConnectionChannel] = Admission(at_once, _SLOW_S)

    @property
    def address(self) -> str:
        """The address by which clients know the server."""
        raise NotImplementedError

    def _admit(self, sock: socket.socket) -> tuple[Connection, str] | None:
        """Returns a client's connection and name, None for one that is refused; never waits.

        Takes ownership of `sock`.
        """
        raise NotImplementedError

    def _listen(self, listener: socket.socket) -> None:
        """Starts to serve the clients that connect to `listener`; takes ownership of it."""
        listener.settimeout(_RECHECK_S)
        self._listener = listener
        self._spare = _spare_descriptor()
        self._threads = KeptThreads(f"exchange-{self.address}")
        # Polled before `accept`: on a Unix socket that was shut down, `accept` spins until its
        # time-out, since the kernel reports a waiting client and then none.
        self._readable = selectors.DefaultSelector()
        self._readable.register(listener, selectors.EVENT_READ)
        self._accepting = threading.Thread(
            target=self._accept, args=(listener,), name=f"listen-{self.address}", daemon=True
        )
        self._accepting.start()

    def stop(self, grace_s: float = 0.5, timeout_s: float = 5.0) -> None:
        """Refuses new clients, lets busy handlers finish for `grace_s`, then cuts connections.

        Idempotent and bounded by `timeout_s`; the listener is closed afterwards. A handler that
        waits in `recv` is not busy.
        """
        self._stopping.set()
        with self._lock:
            listener, self._listener = self._listener, None
        if listener is None:
            return
        deadline_s = time.monotonic() + timeout_s
        # Ends the wait for clients at once on Linux, also if a forked child holds the listener too.
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        if self._accepting is not None:
            self._accepting.join(timeout_s)
        listener.close()
        self._end_exchanges(grace_s, deadline_s)
        self._threads.stop(deadline_s)
        self._give_up_spare()

    def _end_exchanges(self, grace_s: float, deadline_s: float) -> None:
        with self._lock:
            without_thread = [key.data for key in self._readable.get_map().values() if key.data]
            without_thread += self._admission.take_waiting()
            self._readable.close()
        for channel in without_thread:
            self._end(channel)
        with self._lock:
            serving = list(self._open)
        for channel in serving:
            if channel.idle:
                channel.abort()
        self._await_ended(min(time.monotonic() + grace_s, deadline_s))
        for channel in serving:
            channel.abort()
        late = self._await_ended(deadline_s)
        if late:
            logger.warning("%d exchanges of %s have not ended", late, self.address)

    def _await_ended(self, deadline_s: float) -> int:
        """Waits until no exchange is open, until the deadline; returns how many are."""
        with self._ended:
            while self._open and (left_s := deadline_s - time.monotonic()) > 0:
                self._ended.wait(left_s)
            return len(self._open)

    # On the listener's thread

    def _accept(self, listener: socket.socket) -> None:
        resume_s: float | None = None
        while not self._stopping.is_set():
            ready = self._readable.select(_LOOK_S if self._admission.has_waiting else _RECHECK_S)
            if self._stopping.is_set():
                return
            for key, _ in ready:
                if key.data is not None:
                    self._readable.unregister(key.fd)
                    with self._lock:
                        self._admission.add(key.data)
                elif not self._accept_one(listener):
                    # Waiting clients are served once some descriptors are free again.
                    self._readable.unregister(listener)
                    resume_s = time.monotonic() + _RECHECK_S
            self._answer_waiting()
            if resume_s is not None and time.monotonic() >= resume_s:
                self._keep_spare()
                self._readable.register(listener, selectors.EVENT_READ)
                resume_s = None

    def _accept_one(self, listener: socket.socket) -> bool:
        """Accepts a client; returns False if none can be accepted for now."""
        try:
            sock, _ = listener.accept()
        except (TimeoutError, ConnectionAbortedError):
            return True
        except OSError as error:
            if not self._stopping.is_set():
                logger.warning("%s cannot accept a client: %s", self.address, error)
                if is_limit(error):
                    self._refuse_one(listener)
            return False
        if self._stopping.is_set():
            sock.close()
        else:
            self._begin(sock, self._open_exchange)
        return True

    def _refuse_one(self, listener: socket.socket) -> None:
        """Accepts a client by the spare descriptor, to tell it why it is not served."""
        if self._give_up_spare():
            with contextlib.suppress(OSError):
                sock, _ = listener.accept()
                self._begin(sock, self._refuse)

    def _keep_spare(self) -> None:
        with self._lock:
            if self._spare is None and not self._stopping.is_set():
                self._spare = _spare_descriptor()

    def _give_up_spare(self) -> bool:
        with self._lock:
            spare, self._spare = self._spare, None
        if spare is not None:
            os.close(spare)
        return spare is not None

    def _begin(self, sock: socket.socket, serve: Callable[[ConnectionChannel], None]) -> None:
        admitted = self._admit(sock)
        if admitted is None:
            return
        connection, peer = admitted
        channel = ConnectionChannel(connection, self._stopping, peer)
        with self._lock:
            self._open.add(channel)
        try:
            self._threads.run(functools.partial(serve, channel))
        except RuntimeError as error:  # the system's limit of threads; the client may retry
            logger.warning("%s cannot serve %s: %s", self.address, channel.peer, error)
            self._end(channel)

    def _answer_waiting(self) -> None:
        """Gives threads to exchanges with a request, as many as may have one."""
        while True:
            with self._lock:
                channel = self._admission.admit(time.monotonic())
            if channel is None:
                return
            try:
                self._threads.run(functools.partial(self._answer_admitted, channel))
            except RuntimeError as error:  # the system's limit of threads; some may become idle
                logger.warning("%s cannot answer %s yet: %s", self.address, channel.peer, error)
                with self._lock:
                    self._admission.put_back(channel)
                return

    # On threads of exchanges

    def _refuse(self, channel: ConnectionChannel) -> None:
        channel.fail(limit_reached(self.address))
        self._end(channel)
        self._keep_spare()

    def _open_exchange(self, channel: ConnectionChannel) -> None:
        if self._goes_on(channel, self._converse):
            self._rest(channel)

    def _answer_admitted(self, first: ConnectionChannel) -> None:
        """Answers an admitted client, and then those that have waited meanwhile, in turn."""
        channel: ConnectionChannel | None = first
        while channel is not None:
            goes_on = self._goes_on(channel, self._answer)
            with self._lock:
                self._admission.end(channel)
                following = self._admission.admit(time.monotonic())
            if goes_on:
                self._rest(channel)
            channel = following

    def _goes_on(
        self, channel: ConnectionChannel, step: Callable[[ConnectionChannel], bool]
    ) -> bool:
        """Takes a step of an exchange; ends the exchange if the step fails or returns False."""
        goes_on = False
        try:
            goes_on = step(channel)
            if not goes_on:
                channel.done()
        except DataServiceError as error:
            if isinstance(error, CancelledError | UnavailableError) and channel.cancelled():
                logger.debug("exchange ended: %s", error)
            else:
                channel.fail(error)
        except Exception as error:
            logger.exception("an exchange with %s failed", channel.peer)
            channel.fail(limit_reached(self.address) if is_limit(error) else error)
        finally:
            if not goes_on:
                self._end(channel)
        return goes_on

    def _converse(self, channel: ConnectionChannel) -> bool:
        """Begins an exchange, and leads it to its end unless it is one of requests."""
        handler, command = channel.greet(self._token, self._exchanges, self.address)
        if isinstance(handler, Requests):
            channel.serve(handler)
            return self._answer(channel)
        handler(command, channel)
        return False

    def _answer(self, channel: ConnectionChannel) -> bool:
        """Answers requests; True once the exchange should rest, False at the end of its stream."""
        assert channel.requests is not None
        goes_on = channel.await_request(time.monotonic())
        while goes_on:
            if not channel.requests.answer(channel):
                return False
            goes_on = self._await_next(channel)
        return True

    def _await_next(self, channel: ConnectionChannel) -> bool:
        if self._admission.has_waiting or len(self._staying) >= self._admission.at_once:
            return channel.await_request(time.monotonic())
        self._staying.add(channel)
        try:
            return channel.await_request(time.monotonic() + _STAY_S)
        finally:
            self._staying.discard(channel)

    def _rest(self, channel: ConnectionChannel) -> None:
        """Lets an exchange wait for its next request without a thread."""
        try:
            with self._lock:
                if not self._stopping.is_set():
                    self._readable.register(channel.fileno(), selectors.EVENT_READ, channel)
                    return
        except OSError as error:  # the system's limit of watched sockets
            logger.warning("%s cannot watch %s: %s", self.address, channel.peer, error)
            channel.fail(UnavailableError(f"{self.address} can watch no further client: {error}"))
        self._end(channel)

    def _end(self, channel: ConnectionChannel) -> None:
        channel.close()
        with self._ended:
            self._open.discard(channel)
            self._ended.notify_all()


def _spare_descriptor() -> int | None:
    """Returns a descriptor to give up for a client; None if there is none left."""
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
