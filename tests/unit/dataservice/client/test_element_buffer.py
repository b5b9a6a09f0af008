"""The reader's element buffer: bounded, first in first out, and every wait ends on close."""

from __future__ import annotations

import threading

from dataservice.client.buffer import LOW_BYTES, ElementBuffer

TIMEOUT_S = 10.0


def put_in_thread(
    buffer: ElementBuffer[str], item: str, size_bytes: int
) -> tuple[threading.Thread, list]:
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(buffer.put([(item, size_bytes)])))
    thread.start()
    return thread, results


def test_buffered_items_leave_in_order_and_free_their_room() -> None:
    buffer: ElementBuffer[str] = ElementBuffer(3, 100)
    for item in "abc":
        assert buffer.put([(item, 10)])
    assert (len(buffer), buffer.size_bytes) == (3, 30)
    assert [buffer.get(0.0) for _ in range(4)] == ["a", "b", "c", None]
    assert buffer.size_bytes == 0


def test_put_waits_for_room_in_items_and_bytes() -> None:
    for buffer in (ElementBuffer[str](1, 100), ElementBuffer[str](9, 15)):
        buffer.put([("a", 10)])
        thread, results = put_in_thread(buffer, "b", 10)
        assert not results
        assert buffer.get(0.0) == "a"
        thread.join(TIMEOUT_S)
        assert results == [True]
        assert buffer.get(0.0) == "b"


def test_item_larger_than_buffer_passes_alone() -> None:
    buffer: ElementBuffer[str] = ElementBuffer(4, 10)
    assert buffer.put([("huge", 1_000)])
    assert buffer.get(0.0) == "huge"


def test_wake_before_get_ends_it_if_its_caller_had_looked_for_news_before() -> None:
    buffer: ElementBuffer[str] = ElementBuffer(1, 1)
    wakes = buffer.wakes
    buffer.wake()
    assert buffer.get(3_600.0, wakes) is None
    buffer.put([("a", 1)])
    assert buffer.get(3_600.0, wakes) == "a"


def test_wake_ends_pending_get_without_item() -> None:
    buffer: ElementBuffer[str] = ElementBuffer(1, 1)
    got: list[str | None] = []
    waiting = threading.Event()

    def get() -> None:
        waiting.set()
        got.append(buffer.get(TIMEOUT_S))

    thread = threading.Thread(target=get)
    thread.start()
    waiting.wait(TIMEOUT_S)
    while thread.is_alive():
        buffer.wake()
        thread.join(0.001)
    assert got == [None]


def test_closing_buffer_drops_items_and_ends_pending_put() -> None:
    buffer: ElementBuffer[str] = ElementBuffer(1, 100)
    buffer.put([("a", 10)])
    thread, results = put_in_thread(buffer, "b", 10)
    buffer.close()
    thread.join(TIMEOUT_S)
    assert results == [False]
    assert buffer.get(TIMEOUT_S) is None
    assert not buffer.put([("c", 1)])


def test_items_of_one_put_pass_through_smaller_buffer() -> None:
    buffer: ElementBuffer[str] = ElementBuffer(2, 100)
    results: list[bool] = []
    thread = threading.Thread(
        target=lambda: results.append(buffer.put((item, 10) for item in "abcde"))
    )
    thread.start()
    assert [buffer.get(TIMEOUT_S) for _ in range(5)] == list("abcde")
    thread.join(TIMEOUT_S)
    assert results == [True]


def test_closing_ends_put_of_several_items() -> None:
    buffer: ElementBuffer[str] = ElementBuffer(1, 100)
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(buffer.put([("a", 10), ("b", 10)])))
    thread.start()
    buffer.close()
    thread.join(TIMEOUT_S)
    assert results == [False]


def await_low_in_thread(buffer: ElementBuffer[str]) -> tuple[threading.Thread, list[bool]]:
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(buffer.await_low()))
    thread.start()
    return thread, results


def test_await_low_returns_when_two_thirds_of_items_are_taken() -> None:
    buffer: ElementBuffer[str] = ElementBuffer(3, 100)
    buffer.put((item, 10) for item in "abc")
    thread, results = await_low_in_thread(buffer)
    assert buffer.get(0.0) == "a"
    assert thread.is_alive()
    assert not results
    assert buffer.get(0.0) == "b"
    thread.join(TIMEOUT_S)
    assert results == [True]


def test_await_low_returns_when_few_bytes_are_held() -> None:
    buffer: ElementBuffer[str] = ElementBuffer(64, 1 << 30)
    buffer.put((item, LOW_BYTES // 2 + 1) for item in "ab")
    thread, results = await_low_in_thread(buffer)
    assert thread.is_alive()
    assert not results
    assert buffer.get(0.0) == "a"
    thread.join(TIMEOUT_S)
    assert results == [True]


def test_await_low_returns_at_once_for_buffer_of_one_item() -> None:
    buffer: ElementBuffer[str] = ElementBuffer(1, 100)
    buffer.put([("a", 10)])
    assert buffer.await_low()


def test_closing_ends_await_low() -> None:
    buffer: ElementBuffer[str] = ElementBuffer(2, 100)
    buffer.put([("a", 10), ("b", 10)])
    thread, results = await_low_in_thread(buffer)
    buffer.close()
    thread.join(TIMEOUT_S)
    assert results == [False]
