"""Shard, unbatch and list_files: which elements they keep, positions, how they are divided."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataservice import SHARD_HINT
from dataservice.dataset.dataset import Dataset
from dataservice.dataset.division.linearise import linearise
from dataservice.dataset.division.splits import open_window, plan_splits
from dataservice.dataset.node import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from dataservice.dataset.plan import decode_plan, encode_plan
from dataservice.dataset.stream import RunContext
from dataservice.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    SourceError,
    UnsplittableError,
)
from tests.planned_windows import plan_windows
from tests.unit.dataservice.dataset.checkpoint_checker import check_positions, numbers, run, values


@given(st.integers(0, 30), st.integers(1, 7), st.data())
def test_shard_keeps_every_nth_row(rows: int, shards: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, shards - 1))
    dataset = numbers(rows, [2, 3] if rows > 5 else []).shard(shards, index)
    assert values(run(dataset)) == list(range(rows))[index::shards]
    assert dataset.cardinality() == len(list(range(rows))[index::shards])
    check_positions(dataset)


def test_shard_over_batches_keeps_whole_batches() -> None:
    dataset = numbers(20).batch(3).shard(3, 1)
    assert [batch.column("x").to_pylist() for batch in run(dataset)] == [[3, 4, 5], [12, 13, 14]]
    check_positions(dataset)
    assert Dataset.range(3).repeat().shard(2, 1).cardinality() == INFINITE_CARDINALITY


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 0), "shard num_shards must be a positive integer, got 0"),
        ((2, 2), "index must be below num_shards, got index=2 of 2"),
        ((2, -3), "shard index must be a non-negative integer, got -3"),
        ((5, SHARD_HINT), "shard index must be a non-negative integer, got -1"),
        ((2.0, 0), r"positive integer, got 2\.0"),
    ],
)
def test_invalid_shard_arguments_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        numbers(3).shard(*arguments)


@pytest.mark.parametrize("index", [SHARD_HINT, 0, 7, None])
def test_shard_hint_cannot_be_read_without_service(index: Any) -> None:
    dataset = numbers(4).shard(SHARD_HINT, index)
    assert dataset.cardinality() == UNKNOWN_CARDINALITY
    assert decode_plan(encode_plan(dataset.node)).kind == "shard"
    with pytest.raises(FailedPreconditionError, match=r"ShardingPolicy\.HINT"):
        run(dataset)
    with pytest.raises(UnsplittableError, match=r"dataset with shard cannot.*OFF"):
        linearise(dataset.node)


def test_unbatch_yields_rows_of_batches() -> None:
    dataset = numbers(20).batch(6, drop_remainder=True).unbatch()
    assert values(run(dataset)) == list(range(18))
    assert dataset.cardinality() == 18
    assert values(run(dataset.take(4))) == [0, 1, 2, 3]
    check_positions(dataset.batch(5))
    assert numbers(20).batch(6).unbatch().cardinality() == 20
    assert numbers(20).batch(6).take(2).unbatch().cardinality() == UNKNOWN_CARDINALITY
    assert numbers(0, []).batch(6).unbatch().cardinality() == 0
    assert numbers(2).repeat().batch(6).unbatch().cardinality() == INFINITE_CARDINALITY
    with pytest.raises(InvalidArgumentError, match=r"unbatch takes a dataset of batches"):
        numbers(3).unbatch()


def test_unbatch_can_be_divided_only_where_it_undoes_batch() -> None:
    linear = linearise(numbers(20).batch(6).unbatch().batch(4).node)
    assert (linear.batch_size, linear.batch_operators) == (4, ())
    for dataset in (
        numbers(20).batch(6, drop_remainder=True).unbatch(),
        numbers(20).batch(6).map(lambda c: c).unbatch(),
    ):
        with pytest.raises(UnsplittableError, match=r"dataset with unbatch"):
            linearise(dataset.node)


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    for name in ("c.txt", "a.txt", "b.csv", "d.txt"):
        (tmp_path / name).write_text("")
    return tmp_path


def test_list_files_yields_matching_paths_in_order(folder: pathlib.Path) -> None:
    dataset = Dataset.list_files(str(folder / "*.txt"))
    wanted = [str(folder / f"{name}.txt") for name in "acd"]
    assert values(run(dataset), "path") == wanted
    assert dataset.schema.names == ["path"]
    assert dataset.cardinality() == 3
    assert Dataset.list_files(str(folder)).cardinality() == 4
    both = Dataset.list_files([str(folder / "b*"), str(folder / "a*")])
    assert [path[-5:] for path in values(run(both), "path")] == ["b.csv", "a.txt"]
    check_positions(dataset.batch(2))
    linear = linearise(decode_plan(encode_plan(dataset.node)))
    (folder / "a0.txt").write_text("")
    found = []
    splits = linear.segments[0].source.plan()
    for window in plan_windows(linear, plan_splits(linear), 0):
        with open_window(
            linear, window.splits, epoch=0, window_index=window.index, context=RunContext()
        ) as stream:
            found += values(list(stream), "path")
    assert found == [split.path for split in splits]


def test_list_files_with_shuffle_changes_order_each_epoch(folder: pathlib.Path) -> None:
    for name in range(30):
        (folder / f"{name:02}.txt").write_text("")
    dataset = Dataset.list_files(str(folder / "*.txt"), shuffle=True, seed=3)
    orders = [values(run(dataset, epoch), "path") for epoch in (0, 1)]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(map(str, folder.glob("*.txt")))
    assert values(run(dataset), "path") == orders[0]
    check_positions(dataset.batch(10), epoch=1)


def test_list_files_without_match_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(SourceError, match=r"no file matches"):
        run(Dataset.list_files(str(tmp_path / "*.txt")))
    with pytest.raises(InvalidArgumentError, match=r"shuffle must be True or False, got 3"):
        Dataset.list_files("a", 3)  # type: ignore[arg-type]
