"""Messages in a byte stream: parsed whole however it is chunked; other bytes are data loss."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataservice.errors import DataLossError
from dataservice.runtime.exchanges.message import MAX_BODY_BYTES, MAX_HEADER_BYTES, Kind, Received
from dataservice.runtime.exchanges.socket_messages import (
    HEAD_BYTES,
    STRANGER_HEADER_BYTES,
    MessageParser,
    head_of,
)

KINDS = (Kind.OPEN, Kind.MESSAGE, Kind.DONE, Kind.ERROR)
# Short ones, and some that are longer than what is received at once.
HEADERS = st.binary(max_size=40) | st.sampled_from([b"h" * 70_000])
BODIES = st.none() | st.binary(max_size=40) | st.sampled_from([b"b" * 65_536, b"c" * 200_000])
MESSAGES = st.lists(st.tuples(st.sampled_from(KINDS), HEADERS, BODIES), max_size=6)

PlainMessage = tuple[Kind, bytes, bytes | None]


def encoded(messages: list[PlainMessage]) -> bytes:
    return b"".join(
        head_of(kind, len(header), None if body is None else len(body)) + header + (body or b"")
        for kind, header, body in messages
    )


def plain_message(received: Received) -> PlainMessage:
    kind, header, body = received
    return kind, header, None if body is None else body.to_pybytes()


def parse_in_chunks(parser: MessageParser, data: bytes, sizes: list[int]) -> list[PlainMessage]:
    """Returns the messages in `data` when it arrives in pieces of at most those sizes, in turn."""
    found, at, turn = [], 0, 0
    while True:
        while (received := parser.take()) is not None:
            found.append(plain_message(received))
        if at == len(data):
            return found
        room = parser.room
        assert len(room), "there is always room for the next byte"
        size = min(len(room), len(data) - at, sizes[turn % len(sizes)])
        room[:size] = data[at : at + size]
        parser.add(size)
        at, turn = at + size, turn + 1


@given(MESSAGES, st.lists(st.integers(1, 100_000) | st.integers(1, 20), min_size=1, max_size=5))
def test_messages_are_parsed_whole_however_stream_is_chunked(
    messages: list[PlainMessage], sizes: list[int]
) -> None:
    if sum(sizes) < 1_000:
        sizes = [*sizes, 50_000]  # long messages must not all go byte by byte
    assert parse_in_chunks(MessageParser(trusted=True), encoded(messages), sizes) == messages


@given(MESSAGES, st.data())
def test_truncated_stream_yields_all_complete_messages(
    messages: list[PlainMessage], data: st.DataObject
) -> None:
    whole = encoded(messages)
    cut = data.draw(st.integers(0, len(whole)))
    found = parse_in_chunks(MessageParser(trusted=True), whole[:cut], [100_000])
    assert found == messages[: len(found)]
    assert len(encoded(found)) <= cut


@given(st.binary(min_size=HEAD_BYTES, max_size=200))
def test_arbitrary_bytes_parse_to_messages_or_data_loss(data: bytes) -> None:
    parser = MessageParser(trusted=False)
    try:
        found = parse_in_chunks(parser, data, [200])
    except DataLossError:
        return
    assert data.startswith(encoded(found))


@given(st.integers(0, 3), st.integers(0, 255))
def test_damaged_message_head_is_data_loss(at: int, value: int) -> None:
    head = bytearray(head_of(Kind.MESSAGE, 3, None))
    if head[at] == value or (at == 1 and value in list(KINDS)) or at == 3 or (at, value) == (2, 1):
        return
    head[at] = value
    with pytest.raises(DataLossError, match="another protocol"):
        parse_in_chunks(MessageParser(trusted=True), bytes(head) + b"abc", [100])


@pytest.mark.parametrize(
    ("trusted", "header_bytes", "body_bytes", "is_refused"),
    [
        (False, STRANGER_HEADER_BYTES, None, False),
        (False, STRANGER_HEADER_BYTES + 1, None, True),
        (False, 1, 1, True),
        (True, STRANGER_HEADER_BYTES + 1, 1, False),
        (True, MAX_HEADER_BYTES + 1, None, True),
        (True, 1, MAX_BODY_BYTES + 1, True),
    ],
)
def test_message_size_limits_depend_on_trust_in_peer(
    trusted: bool, header_bytes: int, body_bytes: int | None, is_refused: bool
) -> None:
    parser = MessageParser(trusted=trusted)
    head = head_of(Kind.OPEN, header_bytes, body_bytes)
    if not is_refused:
        assert parse_in_chunks(parser, head, [100]) == []
        return
    with pytest.raises(DataLossError, match=f"header of {header_bytes} and a body of"):
        parse_in_chunks(parser, head, [100])


def test_peer_may_send_larger_messages_once_trusted() -> None:
    parser = MessageParser(trusted=False)
    hello: PlainMessage = (Kind.OPEN, b"token", None)
    assert parse_in_chunks(parser, encoded([hello]), [100]) == [hello]
    parser.trust()
    message: PlainMessage = (Kind.MESSAGE, b"h" * (STRANGER_HEADER_BYTES + 1), b"body")
    assert parse_in_chunks(parser, encoded([message]), [1_000]) == [message]


def test_body_is_received_in_place_and_left_untouched() -> None:
    """The body is received without a copy, and later messages do not touch it."""
    parser = MessageParser(trusted=True)
    head = head_of(Kind.MESSAGE, 0, 100_000)
    parse_in_chunks(parser, head, [100])
    assert parser.is_exact
    room = parser.room
    assert len(room) == 100_000
    room[:] = b"x" * 100_000
    parser.add(100_000)
    received = parser.take()
    assert received is not None
    assert received.body == pa.py_buffer(b"x" * 100_000)
    assert parse_in_chunks(parser, encoded([(Kind.MESSAGE, b"h", b"y" * 100)]), [10_000])
    assert received.body == pa.py_buffer(b"x" * 100_000)


def test_message_is_kept_when_allocation_of_its_body_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parser = MessageParser(trusted=True)
    message: PlainMessage = (Kind.MESSAGE, b"header", b"body")

    def refuse(_size: int) -> pa.Buffer:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(pa, "allocate_buffer", refuse)
        with pytest.raises(MemoryError):
            parse_in_chunks(parser, encoded([message]), [100])
    received = parser.take()
    assert received is not None
    assert plain_message(received) == message
