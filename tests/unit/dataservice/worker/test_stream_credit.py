"""How many elements a worker sends before its reader gives more credit."""

from __future__ import annotations

import threading
from collections import deque

import pyarrow as pa
import pytest

from dataservice.errors import CancelledError
from dataservice.runtime.exchanges.message import Message
from dataservice.wire.elements import FrameKind, RowSpan, pack_credit, unpack
from dataservice.worker import outgoing
from dataservice.worker.flow_control import send_frames
from dataservice.worker.outgoing import FrameBuffer
from dataservice.worker.rebatch import Element


class Reader:
    """The far end of a channel: gives credits one by one when asked, then goes away."""

    shares_memory = False

    def __init__(self, credit: list[int]) -> None:
        self.events: list[tuple[str, int]] = []
        self._credit = deque(credit)

    def send(self, header: bytes, body: object = None) -> None:  # noqa: ARG002
        found = unpack(header)
        if found.kind is FrameKind.DATA:
            self.events.append(("sent", found.elements))

    def recv(self) -> Message | None:
        if not self._credit:
            return None
        elements = self._credit.popleft()
        self.events.append(("credit", elements))
        return Message(pack_credit(elements), None)

    def cancelled(self) -> bool:
        return False


def frames_of(*sizes: int) -> FrameBuffer:
    """Returns a frame for each size, with so many elements of one row, and then the end."""
    frames = FrameBuffer(1 << 20, None)
    first = 0
    for elements in sizes:
        batch = pa.record_batch({"row": list(range(elements))})
        span = RowSpan(0, 0, first, first + elements)
        frames.put(Element(batch, (span,), 1 if elements > 1 else 0, divisible=True))
        first += elements
    frames.end()
    return frames


def test_frame_exceeding_credit_is_sent_and_deficit_is_owed() -> None:
    reader = Reader([8, 8, 8])
    send_frames(frames_of(5, 16, 1), reader, credit=16)
    # 16 - 5 - 16 = -5: eight more leave credit for the last.
    assert reader.events == [("sent", 5), ("sent", 16), ("credit", 8), ("sent", 1)]


def test_no_frame_is_sent_without_credit() -> None:
    reader = Reader([3])
    with pytest.raises(CancelledError, match="the reader has gone"):
        send_frames(frames_of(4, 4), reader, credit=1)
    # 1 - 4 + 3 = 0.
    assert reader.events == [("sent", 4), ("credit", 3)]


def test_long_wait_for_reader_returns_freed_memory_to_system(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given_back = threading.Event()
    monkeypatch.setattr(outgoing, "_LONG_S", 0.01)
    monkeypatch.setattr(outgoing, "_give_back_freed_memory", given_back.set)
    frames = FrameBuffer(1, None)
    element = Element(pa.record_batch({"row": [1]}), (RowSpan(0, 0, 0, 1),), divisible=True)
    frames.put(element)
    assert not given_back.is_set()
    producer = threading.Thread(target=frames.put, args=(element,))
    producer.start()
    try:
        assert given_back.wait(30)
    finally:
        frames.get(30)
        producer.join(30)
    assert frames.get(30) is not None
