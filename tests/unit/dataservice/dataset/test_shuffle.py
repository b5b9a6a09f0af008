"""Shuffle: a permutation, keyed by seed, epoch and position alone, resumable anywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataservice.dataset.dataset import Dataset
from dataservice.dataset.operators import shuffle
from dataservice.dataset.operators.shuffle import permutation
from dataservice.dataset.random_bits import random_bits
from dataservice.errors import InvalidArgumentError
from tests.unit.dataservice.dataset.checkpoint_checker import check_positions, numbers, run, values


@given(st.integers(0, 60), st.integers(1, 70), st.integers(0, 3))
def test_shuffle_permutes_within_buffers(rows: int, buffer_size: int, epoch: int) -> None:
    dataset = numbers(rows, [5] if rows > 5 else []).shuffle(buffer_size, seed=4)
    order = values(run(dataset, epoch))
    for first in range(0, rows, buffer_size):
        wanted = list(range(first, min(first + buffer_size, rows)))
        assert sorted(order[first : first + buffer_size]) == wanted
    assert order == values(run(dataset, epoch))
    if buffer_size > 5:
        check_positions(dataset, epoch)


def test_shuffle_order_depends_on_seed_and_epoch() -> None:
    def order(seed: int, epoch: int, **more: Any) -> tuple[int, ...]:
        return tuple(values(run(numbers(40).shuffle(40, seed, **more), epoch)))

    assert len({order(seed, epoch) for seed in (1, 2, -1) for epoch in (0, 1)}) == 6
    fixed = {order(1, epoch, reshuffle_each_iteration=False) for epoch in range(3)}
    assert fixed == {order(1, 0)}


def test_shuffle_order_does_not_depend_on_chunks() -> None:
    assert values(run(numbers(40).shuffle(15, 3))) == values(run(numbers(40, []).shuffle(15, 3)))


def test_shuffle_buffer_of_one_row_changes_nothing() -> None:
    plain = numbers(40)
    assert run(plain.shuffle(1, 3)) == run(plain)
    check_positions(plain.shuffle(1, 3))


def test_drawn_shuffle_seed_stays_with_dataset() -> None:
    dataset = numbers(40).shuffle(40)
    assert values(run(dataset)) == values(run(dataset))
    assert values(run(dataset)) != values(run(numbers(40).shuffle(40)))


def test_window_is_shuffled_as_one_buffer() -> None:
    dataset = numbers(60).shuffle(4, seed=2)
    first, second = (values(run(dataset, window=window)) for window in (0, 1))
    assert sorted(first) == sorted(second) == list(range(60))
    assert first != second
    # Rows move much further than in a buffer of 4.
    assert max(abs(row - position) for position, row in enumerate(first)) > 20


def test_shuffle_over_batches_keeps_batches_whole() -> None:
    dataset = numbers(20).batch(3).shuffle(4, seed=1)
    batches = [batch.column(0).to_pylist() for batch in run(dataset)]
    assert sorted(batches) == [list(range(i, min(i + 3, 20))) for i in range(0, 20, 3)]
    assert batches != sorted(batches)
    check_positions(dataset)


@pytest.mark.parametrize("is_batched", [False, True])
def test_each_buffer_has_its_own_order_which_never_changes(is_batched: bool) -> None:
    rows = numbers(40)
    order = values(run((rows.batch(1) if is_batched else rows).shuffle(8, seed=5)))
    orders = [tuple(row - first for row in order[first : first + 8]) for first in range(0, 40, 8)]
    assert [sorted(each) for each in orders] == [list(range(8))] * 5
    assert len(set(orders)) == 5
    # A position that was saved is continued in this order.
    assert orders[1] == (5, 3, 0, 7, 6, 4, 1, 2)


def test_stacked_and_large_shuffles_resume_from_every_position() -> None:
    check_positions(numbers(60).shuffle(7, seed=1).shuffle(5, seed=1).batch(4))
    large = Dataset.range(40_000).shuffle(40_000, seed=5)
    assert sorted(values(run(large), "id")) == list(range(40_000))
    assert len(run(large)) == 3
    check_positions(large)


def test_permutation_of_known_key_never_changes() -> None:
    assert permutation(6, 12345).tolist() == [3, 4, 0, 1, 2, 5]
    order = permutation(100_000, 9)
    assert (np.sort(order) == np.arange(100_000)).all()


@pytest.mark.parametrize("count", [1, 2, 1_000, 100_003])
def test_permutation_sorted_in_parts_is_that_sorted_at_once(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    at_once = permutation(count, 9)
    monkeypatch.setattr(shuffle, "_SORTED_AT_ONCE", 0)
    in_parts = permutation(count, 9)
    np.testing.assert_array_equal(in_parts, at_once)
    assert in_parts.nbytes == at_once.nbytes // 2
    rows = run(numbers(60).shuffle(25, seed=3).batch(7))
    monkeypatch.undo()
    assert rows == run(numbers(60).shuffle(25, seed=3).batch(7))


@pytest.mark.parametrize("key", [0, 12345, 2**64 - 1])
def test_random_bits_equal_those_of_new_philox_generator(key: int) -> None:
    for count in (0, 1, 2, 3, 5, 1_000):
        expected = np.random.Philox(key=key).random_raw(count)
        np.testing.assert_array_equal(random_bits(count, key), expected)


def test_shuffle_buffers_share_one_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def counted(key: int, philox: Any = np.random.Philox) -> Any:
        made.append(key)
        return philox(key=key)

    monkeypatch.setattr(np.random, "Philox", counted)
    dataset = numbers(40, []).batch(1).shuffle(2, seed=4)
    assert sorted(values(run(dataset, 0))) == list(range(40))
    assert len(made) <= 1


def test_permutations_are_uniform() -> None:
    orders = np.array([permutation(4, key) for key in range(6_000)])
    for place in range(4):
        counts = np.bincount(orders[:, place], minlength=4)
        assert counts.min() > 1_350
        assert counts.max() < 1_650


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"buffer_size": 0}, "buffer_size must be a positive integer, got 0"),
        ({"buffer_size": True}, "buffer_size must be a positive integer, got True"),
        ({"buffer_size": 3, "seed": "x"}, "seed must be an integer, got 'x'"),
        ({"buffer_size": 3, "seed": True}, "seed must be an integer, got True"),
        ({"buffer_size": 3, "reshuffle_each_iteration": 1}, "must be True or False, got 1"),
    ],
)
def test_invalid_shuffle_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        numbers(3).shuffle(**arguments)
