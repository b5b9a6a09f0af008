"""Chunks are the same rows in whatever order they are asked for."""

from __future__ import annotations

import random

import pytest

import dataservice as ds
from pstrain.chunks import ChunkReader, ChunkSource


class Counting:
    """Ten elements, and how often a pass over them was begun."""

    def __init__(self) -> None:
        self.opened = 0

    def __iter__(self) -> object:
        self.opened += 1
        return iter(range(10))


def test_chunks_in_order_are_one_pass() -> None:
    data = Counting()
    reader = ChunkReader(data, 4)
    assert [reader.read(n) for n in range(4)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], []]
    assert data.opened == 1


def test_neighbours_in_any_order_need_no_second_pass() -> None:
    data = Counting()
    reader = ChunkReader(data, 1)
    assert [reader.read(n) for n in (2, 0, 3, 1, 6, 4)] == [[2], [0], [3], [1], [6], [4]]
    assert data.opened == 1


@pytest.mark.parametrize("seed", range(5))
def test_any_order_gives_the_same_rows(seed: int) -> None:
    order = [random.Random(seed).randrange(12) for _ in range(30)]
    reader = ChunkReader(Counting(), 1)
    for n in order:
        assert reader.read(n) == ([n] if n < 10 else [])


def test_a_source_gives_its_process_one_reader() -> None:
    readers = iter(ChunkSource(ds.Dataset.range(10).batch(2), 2)())
    first = next(readers)
    assert next(readers) is first
    assert [batch["id"].to_pylist() for batch in first.read(1)] == [[4, 5], [6, 7]]
    readers.close()
    readers.close()
