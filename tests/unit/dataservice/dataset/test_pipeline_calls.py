"""How many Python calls a pipeline makes as its parts grow."""

from __future__ import annotations

import functools
from unittest import mock

import numpy as np
import pyarrow as pa

from dataservice.dataset.dataset import Dataset
from dataservice.dataset.operators.open_windows import OpenBatches
from dataservice.dataset.operators.windows import _Counts
from dataservice.dataset.stream import RunContext
from tests.unit.counted_calls import calls_of


def calls_of_chain(shuffles: int) -> int:
    dataset = functools.reduce(lambda d, _: d.shuffle(5, seed=1), range(shuffles), Dataset.range(9))
    with dataset.node.open(RunContext()) as stream:
        return calls_of(lambda: list(stream))


def test_calls_of_shuffle_chain_grow_at_most_quadratically() -> None:
    # A position is as long as the chain, so twice the chain takes four times the calls.
    assert calls_of_chain(60) < 5 * calls_of_chain(30)


def test_oldest_of_many_open_windows_is_found_in_few_calls() -> None:
    windows, row = OpenBatches(lambda _key: 2), pa.record_batch({"k": [0]})
    for chunk in range(200):
        windows.add(row, np.array([chunk]), np.arange(1), chunk + 1)
    assert windows.oldest == 1
    assert calls_of(lambda: windows.oldest) < 5
    windows.add(row, np.array([0]), np.arange(1), 201)
    assert windows.oldest == 2


def test_key_counts_are_merged_seldom() -> None:
    counts = _Counts()
    with mock.patch("numpy.unique", wraps=np.unique) as unique:
        for key in range(500):
            counts.add(np.array([key // 2]), np.array([1]))
        assert counts.listed() == [[key, 2] for key in range(250)]
    assert unique.call_count < 20


def test_interleaved_tiny_dataset_costs_few_calls() -> None:
    def calls(elements: int) -> int:
        dataset = Dataset.range(elements).interleave(
            lambda row: Dataset.range(row["id"], row["id"] + 3), cycle_length=4, block_length=1
        )
        with dataset.node.open(RunContext()) as stream:
            return calls_of(lambda: list(stream))

    assert (calls(60) - calls(20)) / 40 < 165
