"""The memory of a large array is reused only when nothing refers to the array any more."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from pstrain import buffers

SHAPE = (300, 100)


@pytest.fixture(autouse=True)
def _own_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "_pool", buffers._Pool())


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def test_memory_is_reused_once_array_is_released() -> None:
    first = buffers.empty(SHAPE)
    address = _address(first)
    second = buffers.empty(SHAPE)
    assert _address(second) != address
    del first
    assert _address(buffers.empty(SHAPE)) == address


def test_memory_is_not_reused_while_view_exists() -> None:
    array = buffers.empty(SHAPE)
    address, view = _address(array), array[10:, 3:].T
    del array
    assert _address(buffers.empty(SHAPE)) != address
    del view
    assert _address(buffers.empty(SHAPE)) == address


def test_zeros_clears_reused_memory() -> None:
    buffers.empty(SHAPE).fill(7)
    assert not buffers.zeros(SHAPE).any()


def test_block_is_reused_for_slightly_but_not_much_smaller_array() -> None:
    address = _address(buffers.empty(SHAPE))
    assert _address(buffers.empty((290, 100))) == address
    assert _address(buffers.empty((100, 200))) == address
    assert _address(buffers.empty((120, 100))) != address


def test_memory_of_small_arrays_is_not_pooled() -> None:
    buffers.empty((4, 4))
    assert buffers.held_bytes() == 0


def test_pooled_memory_of_thread_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "LIMIT_BYTES", 300_000)
    held = [buffers.empty(SHAPE) for _ in range(5)]
    assert buffers.held_bytes() <= 300_000
    for index, array in enumerate(held):
        array.fill(index)
    assert [array[0, 0] for array in held] == [0, 1, 2, 3, 4]
    assert buffers.empty((1000, 1000)).shape == (1000, 1000)


def test_threads_have_separate_pools() -> None:
    buffers.empty(SHAPE)
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(buffers.held_bytes()))
    thread.start()
    thread.join(10)
    assert seen == [0]
    assert buffers.held_bytes() > 0


def test_large_arrays_are_aligned_to_cache_lines() -> None:
    held = [buffers.empty((300 + k, 101)) for k in range(5)]
    assert not any(_address(array) % 64 for array in held)


def test_live_arrays_never_share_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "LIMIT_BYTES", 3_000_000)
    choose = np.random.default_rng(5)
    held: list[tuple[int, np.ndarray]] = []
    for number in range(600):
        array = buffers.empty((int(choose.integers(16_384, 120_000)),))
        array.fill(number)
        held.append((number, array))
        assert buffers.held_bytes() <= 3_000_000
        while len(held) > choose.integers(1, 12):
            kept, oldest = held.pop(int(choose.integers(len(held))))
            assert (oldest == kept).all()


def test_arrays_of_similar_sizes_reuse_same_block() -> None:
    addresses = {_address(buffers.empty((rows, 100))) for rows in (300, 280, 250, 220, 300)}
    assert len(addresses) == 1
