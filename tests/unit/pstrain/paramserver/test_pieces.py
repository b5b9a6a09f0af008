"""Large arrays follow their message in pieces; a receiver gets whole messages or none."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataservice.runtime.exchanges.message import Message
from pstrain.errors import DataLossError
from pstrain.paramserver import messages, pieces
from pstrain.paramserver.messages import LateBody, body_arrays
from pstrain.paramserver.pieces import Arrived

WIDTH = 4


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "LARGE_BYTES", 1024)
    monkeypatch.setattr(pieces, "PIECE_BYTES", 512)


def sent(header: bytes, body: Any) -> list[Message]:
    out: list[Message] = []
    pieces.send(lambda head, buffer: out.append(Message(head, buffer)), header, body)
    return out


def received(stream: Iterable[Message]) -> Arrived | None:
    rest = iter(stream)
    return pieces.receive(lambda: next(rest, None))


def body_of(rows: list[int], late: bool) -> tuple[LateBody | None, list[np.ndarray]]:
    numbers = itertools.count()
    arrays = [
        np.full((count, WIDTH), next(numbers), np.float32)
        if count % 2
        else np.arange(count, dtype=np.int64)
        for count in rows
    ]
    body = LateBody.of(arrays)
    if body is not None and late:
        body = LateBody(body.parts, body.fill)
    return body, arrays


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.integers(0, 400), max_size=5), late=st.booleans())
def test_arrays_sent_in_pieces_are_received_whole(rows: list[int], late: bool) -> None:
    body, arrays = body_of(rows, late)
    message = received(sent(b"header", body))
    assert message is not None
    assert message.header == b"header"
    parts = [] if body is None else body.parts
    for found, expected in zip(body_arrays(message.body, parts), arrays, strict=True):
        np.testing.assert_array_equal(found, expected)
        assert not found.flags.writeable


def test_existing_array_is_sent_and_received_without_copy() -> None:
    _, arrays = body_of([301], late=False)
    (only,) = sent(b"header", LateBody.of(arrays))
    assert only.body is not None
    assert only.body.address == arrays[0].ctypes.data
    message = received([only])
    assert message is not None
    assert isinstance(message.body, messages.SplitBody)
    assert message.body.large[0].address == arrays[0].ctypes.data


def test_late_rows_are_sent_in_pieces_of_bounded_size() -> None:
    body, _ = body_of([301], late=True)
    array = sent(b"header", body)
    assert len(array) == 10
    assert all(each.body is not None and each.body.size <= 512 for each in array)


def test_small_arrays_are_sent_first_and_large_arrays_each_alone() -> None:
    _, arrays = body_of([8, 301, 303], late=False)
    first, *large = sent(b"header", LateBody.of(arrays))
    assert first.body is not None
    assert first.body.size == arrays[0].nbytes
    found = [each.body.address for each in large if each.body is not None]
    assert found == [array.ctypes.data for array in arrays[1:]]


def test_joined_bodies_are_received_as_single_body() -> None:
    (first, one), (second, two) = body_of([301, 4], late=True), body_of([8, 303], late=False)
    assert first is not None
    assert second is not None
    joined = LateBody.joined([first, second])
    message = received(sent(b"header", joined))
    assert message is not None
    for found, expected in zip(body_arrays(message.body, joined.parts), one + two, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_truncated_message_is_not_received() -> None:
    stream = sent(b"header", body_of([301, 303], late=True)[0])
    for end in range(len(stream)):
        assert received(stream[:end]) is None


def _read(stream: list[Message], body: LateBody) -> None:
    message = received(stream)
    assert message is not None
    body_arrays(message.body, body.parts)


@pytest.mark.parametrize(
    "fault", ["lost", "twice", "next message", "no first", "mark", "head", "sizes", "empty"]
)
def test_inconsistent_pieces_are_refused(fault: str) -> None:
    body = body_of([301], late=True)[0]
    stream = sent(b"header", body)
    assert body is not None
    match fault:
        case "lost":
            del stream[3]
        case "twice":
            stream.insert(3, stream[3])
        case "next message":
            stream[-1:] = stream
        case "no first":
            del stream[0]
        case "mark":
            stream[1] = Message(stream[1].header[:-1], stream[1].body)
        case "head":
            stream[0] = Message(stream[0].header[:8], stream[0].body)
        case "sizes":
            stream[0] = Message(stream[0].header[:12], stream[0].body)
        case "empty":
            stream[1] = Message(stream[1].header, None)
    with pytest.raises(DataLossError):
        _read(stream, body)


def test_message_body_of_wrong_size_is_refused() -> None:
    message = received([Message(b"header", pa.py_buffer(b"12345678"))])
    assert message is not None
    with pytest.raises(DataLossError, match="expected"):
        body_arrays(message.body, [("int64", (2,))])
