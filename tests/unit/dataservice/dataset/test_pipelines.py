"""Random pipelines: any sequence of operators resumes from any position."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from dataservice.dataset.dataset import Dataset
from dataservice.dataset.division.linearise import linearise
from dataservice.dataset.division.splits import open_window, plan_splits
from dataservice.dataset.expressions import col
from dataservice.dataset.plan import decode_plan, encode_plan
from dataservice.dataset.stream import RunContext
from dataservice.errors import UnsplittableError
from tests.planned_windows import plan_windows
from tests.unit.dataservice.dataset.checkpoint_checker import check_positions, numbers, run, values

Step = Callable[[Dataset], Dataset]


def plus_one(columns: dict[str, Any]) -> dict[str, Any]:
    return {"x": columns["x"] + 1}


def upto(element: dict[str, Any]) -> Dataset:
    return numbers(int(np.max(element["x"])) % 4)


def parity(columns: dict[str, Any]) -> np.ndarray:
    return columns["x"][:1] % 2


def listed(columns: dict[str, Any]) -> pa.Array:
    return pa.array([[0] * (int(x) % 3) for x in columns["x"]], pa.list_(pa.int8()))


STEPS: list[Step] = [
    lambda d: d.map(plus_one),
    lambda d: d.filter(col("x") % 3 != 0),
    lambda d: d.with_column("x", col("x") * 2),
    lambda d: d.shuffle(5, seed=1),
    lambda d: d.shuffle(100, seed=2),
    lambda d: d.batch(4),
    lambda d: d.batch(7, drop_remainder=True),
    lambda d: d.take(17),
    lambda d: d.skip(3),
    lambda d: d.repeat(2),
    lambda d: d.concatenate(numbers(5)) if not d.node.batched else d,
    lambda d: d.flat_map(lambda c: {"x": c["x"].repeat(2)}) if not d.node.batched else d,
    lambda d: d.prefetch(2),
    lambda d: d.shard(3, 1),
    lambda d: d.enumerate("x2").select("x"),
    lambda d: d.cache(),
    lambda d: d.unbatch() if d.node.batched else d,
    lambda d: d.interleave(upto, 2, 2, schema=numbers(0).schema),
    lambda d: d.group_by_window(parity, lambda _key, window: window, 3) if d.node.batched else d,
    lambda d: d if d.node.batched else d.group_by_window(col("x") % 2, window_size=5),
    lambda d: d if d.node.batched else Dataset.sample_from_datasets([d, numbers(9)], seed=4),
    lambda d: d if d.node.batched else d.zip(numbers(20).rename({"x": "y"})).select("x"),
    lambda d: d.with_column("l", listed).padded_batch(3).map(dict).select("x"),
]

pipelines = st.lists(st.sampled_from(range(len(STEPS))), max_size=5)


def built(steps: list[int]) -> Dataset:
    dataset = numbers(23)
    for step in steps:
        dataset = STEPS[step](dataset)
    return dataset


@given(pipelines, st.integers(0, 2))
def test_random_pipeline_resumes_from_every_position(steps: list[int], epoch: int) -> None:
    dataset = built(steps)
    check_positions(dataset, epoch, limit=8)
    assert run(decode_plan(encode_plan(dataset.node)), epoch) == run(dataset, epoch)
    cardinality = dataset.cardinality()
    if cardinality >= 0:
        batches = run(dataset, epoch)
        counted = len(batches) if dataset.node.batched else len(values(batches))
        assert counted == cardinality


@given(pipelines)
def test_windows_of_random_pipeline_have_all_its_rows(steps: list[int]) -> None:
    dataset = built([step for step in steps if step not in (5, 6, 9, 22)])
    try:
        linear = linearise(dataset.node)
    except UnsplittableError:
        return
    rows: list[int] = []
    for window in plan_windows(linear, plan_splits(linear), 0):
        with open_window(
            linear, window.splits, epoch=0, window_index=window.index, context=RunContext()
        ) as stream:
            rows += values(list(stream))
    assert sorted(rows) == sorted(values(run(dataset)))
