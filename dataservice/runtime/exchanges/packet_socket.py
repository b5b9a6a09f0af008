"""A Unix socket of packets between two processes of a host, some of them with a file descriptor.

Responsible for sending and receiving whole packets until a deadline. While it waits, it flushes the
segments that are owed to the peer, since the peer may need them before it can send. Knows nothing
of what a caller waits for. Invariant: every descriptor that arrives is either passed on or closed.
"""

from __future__ import annotations

import array
import os
import select
import socket
import time
from collections.abc import Sized
from typing import Any, Final, Protocol

from dataservice.errors import DataLossError, DataServiceError, DeadlineExceededError
from dataservice.runtime.exchanges.local_messages import MAX_PACKET_BYTES, Packet, pack, unpack
from dataservice.runtime.exchanges.message import Kind
from dataservice.runtime.exchanges.owned_socket import LOOK_S, OwnedSocket, is_gone_by, lost
from dataservice.runtime.machine.open_files import limit_reached

_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(array.array("i", [0]).itemsize)
# As plain numbers, since combining enum flags takes a microsecond. A platform without the flags has
# no such sockets either, but it imports this module.
_TRUNCATED: Final = int(socket.MSG_TRUNC)
_WITHOUT_DESCRIPTOR: Final = int(socket.MSG_CTRUNC)
_CLOEXEC: Final = int(getattr(socket, "MSG_CMSG_CLOEXEC", 0))
_AT_ONCE: Final = int(socket.MSG_DONTWAIT)
_SEND: Final = int(getattr(socket, "MSG_NOSIGNAL", 0)) | _AT_ONCE


class PendingReleases(Protocol):
    """The segments that must go back to the peer but could not be sent yet."""

    @property
    def pending(self) -> Sized: ...

    def flush(self) -> bool:
        """Sends back as many as possible; returns whether some are left."""


class PacketSocket(OwnedSocket):
    """One end of a connected socket, which it owns. Any thread may send; one at a time receives.

    Any call raises UnavailableError if the peer is gone or `shut_down` was called.
    """

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self._socket.setblocking(True)  # for `receive`; all other calls are made not to block
        self._packet = bytearray(MAX_PACKET_BYTES + 1)

    def send(
        self,
        packet: bytes,
        releases: PendingReleases,
        deadline_s: float,
        descriptor: int | None = None,
    ) -> None:
        """Sends one packet; waits while the peer does not read.

        Raises DeadlineExceededError at `deadline_s` (monotonic clock); then nothing was sent.
        """
        rights = []
        if descriptor is not None:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
        while True:
            try:
                self._socket.sendmsg([packet], rights, _SEND)
                return
            except BlockingIOError:
                self._wait_for(select.POLLOUT, releases, deadline_s, "the peer does not read")
            except OSError as error:
                raise lost(error) from error

    def release(self, segment: int) -> bool:
        """Gives a segment back to the peer; returns False if not possible now. Never waits."""
        try:
            self._socket.send(pack(Kind.RELEASE, segment=segment), _SEND)
        except OSError as error:
            # If the peer is gone, so is its memory, and the next read or send reports that. Any
            # other error is transient, so the segment must be kept: a forgotten one is never freed.
            return is_gone_by(error)
        return True

    def receive(self, releases: PendingReleases, deadline_s: float) -> tuple[Packet, int | None]:
        """Waits for the next packet and returns it, with its descriptor if it has one."""
        while True:
            left_s = deadline_s - time.monotonic()
            at_once = bool(releases.pending) or not self._may_block(socket.SO_RCVTIMEO, left_s)
            if at_once:
                self._wait_for(select.POLLIN, releases, deadline_s, "nothing came from the peer")
            packet = self.try_receive(at_once=at_once)
            if packet is not None:
                return packet

    def try_receive(self, *, at_once: bool) -> tuple[Packet, int | None] | None:
        """Returns the next packet, with its descriptor; None if there is none.

        Without `at_once` waits for it, as long as `_may_block` allowed.
        """
        try:
            size, ancillary, flags, _ = self._socket.recvmsg_into(
                [self._packet], _ANCILLARY_BYTES, _AT_ONCE | _CLOEXEC if at_once else _CLOEXEC
            )
        except BlockingIOError:
            return None
        except OSError as error:
            raise lost(error) from error
        descriptor = _descriptor_in(ancillary) if ancillary else None
        if not size:
            raise lost(None)
        try:
            if flags & _WITHOUT_DESCRIPTOR:
                raise limit_reached(f"process {os.getpid()}")
            if flags & _TRUNCATED:
                raise DataLossError(f"a packet of more than {MAX_PACKET_BYTES} bytes")
            packet = unpack(memoryview(self._packet)[:size])
            if packet.is_new != (descriptor is not None):
                raise DataLossError("a peer sent a descriptor without a segment, or the opposite")
        except DataServiceError:
            if descriptor is not None:
                os.close(descriptor)
            raise
        return packet, descriptor

    def _wait_for(
        self, events: int, releases: PendingReleases, deadline_s: float, what: str
    ) -> None:
        poll = select.poll()
        while True:
            left_s = deadline_s - time.monotonic()
            has_pending = releases.flush()
            try:
                poll.register(self._socket, events | (select.POLLOUT if has_pending else 0))
            except ValueError as error:  # closed by another thread
                raise lost(None) from error
            ready = poll.poll(max(0.0, min(left_s, LOOK_S)) * 1_000)
            if any(happened & ~select.POLLOUT or events & happened for _, happened in ready):
                return
            if left_s <= 0:
                raise DeadlineExceededError(f"{what} in time")


def _descriptor_in(ancillary: list[Any]) -> int | None:
    """Returns the descriptor that came with a packet; closes all further ones as unexpected."""
    found = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    for extra in found[1:]:
        os.close(extra)
    return found[0] if found else None
