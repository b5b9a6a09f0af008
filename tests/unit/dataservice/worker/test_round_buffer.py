"""The rounds that a worker keeps for consumers, without pipelines or network."""

from __future__ import annotations

from collections import deque

import pyarrow as pa
import pytest

from dataservice.errors import CancelledError, FailedPreconditionError, UnavailableError
from dataservice.runtime.exchanges.bodies import Body
from dataservice.runtime.exchanges.message import Message
from dataservice.wire.elements import Ask, FrameKind, Header, pack_asks, unpack
from dataservice.worker.outgoing import Frame
from dataservice.worker.rounds import AHEAD_ROUNDS, NumberedElement, RoundBuffer, serve_rounds


def group(index: int, size_bytes: int = 4) -> tuple[NumberedElement, ...]:
    frame = Frame(1, (), pa.py_buffer(bytes(size_bytes)), size_bytes=size_bytes)
    return tuple(NumberedElement(2 * index + place, frame) for place in range(2))


def filled(groups: int) -> RoundBuffer:
    rounds = RoundBuffer(1_000)
    for index in range(groups):
        rounds.put(group(index))
    return rounds


def number(rounds: RoundBuffer, at: int, consumer: int, generation: int = 0) -> int | None:
    element = rounds.get(at, generation, consumer, 0.0)
    return None if element is None else element.number


def test_round_is_same_for_all_consumers_however_often_requested() -> None:
    rounds = filled(3)
    assert [number(rounds, 8, consumer) for consumer in (0, 1, 0, 1)] == [0, 1, 0, 1]
    assert [number(rounds, 9, consumer) for consumer in (1, 0)] == [3, 2]
    assert number(rounds, 8, 0) == 0


def test_round_not_yet_computed_gives_no_element() -> None:
    rounds = filled(1)
    assert (number(rounds, 0, 0), number(rounds, 1, 0)) == (0, None)


def test_round_of_new_generation_gets_new_elements() -> None:
    rounds = filled(2)
    assert number(rounds, 0, 0) == 0
    assert number(rounds, 0, 0, generation=1) == 2
    stale = rounds.get(0, 0, 1, 0.0)
    assert stale is not None
    assert not stale.frame.rows


def test_released_rounds_are_freed() -> None:
    rounds = filled(3)
    for at in range(3):
        number(rounds, at, 0)
    assert (rounds.rows, rounds.size_bytes) == (6, 24)
    rounds.release(2)
    rounds.release(1)
    assert rounds.size_bytes == 8
    gone = rounds.get(1, 0, 0, 0.0)
    assert gone is not None
    assert not gone.frame.rows
    assert number(rounds, 2, 1) == 5


def test_error_is_raised_only_after_rounds_computed_before_it() -> None:
    rounds = filled(1)
    rounds.end(FailedPreconditionError("the end"))
    assert number(rounds, 0, 0) == 0
    with pytest.raises(FailedPreconditionError, match="the end"):
        number(rounds, 1, 0)
    assert number(rounds, 0, 1) == 1


def test_discarded_buffer_is_unavailable_and_refuses_rounds() -> None:
    rounds = filled(AHEAD_ROUNDS)
    rounds.discard()
    with pytest.raises(UnavailableError):
        number(rounds, 0, 0)
    with pytest.raises(CancelledError):
        rounds.put(group(0))


class OneConsumer:
    """A consumer that sends these asks and then goes away."""

    shares_memory = False

    def __init__(self, *asks: bytes) -> None:
        self._asks = deque(asks)
        self.sent: list[Header] = []

    def recv(self) -> Message | None:
        return Message(self._asks.popleft(), None) if self._asks else None

    def send(self, header: bytes, body: pa.Buffer | Body | None = None) -> None:
        assert (body is None) == (not unpack(header).rows)
        self.sent.append(unpack(header))

    def cancelled(self) -> bool:
        return False


def test_each_requested_round_is_answered_once_in_order() -> None:
    rounds = filled(4)
    channel = OneConsumer(pack_asks([Ask(0, 3, 0)], 0), pack_asks([Ask(1, 2, 0), Ask(3, 4, 1)], 2))
    serve_rounds(rounds, 1, channel)
    assert {header.kind for header in channel.sent} == {FrameKind.DATA}
    answers = [(h.spans[0].window, h.spans[0].generation, h.rows) for h in channel.sent]
    assert answers == [(0, 0, 1), (1, 0, 1), (2, 0, 1), (1, 0, 0), (3, 1, 1)]
    assert [header.spans[0].first_row for header in channel.sent] == [1, 3, 5, 0, 7]
