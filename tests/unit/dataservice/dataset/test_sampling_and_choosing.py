"""sample_from_datasets and choose_from_datasets: order, weights, seeds, positions, and the end."""

from __future__ import annotations

from collections import Counter
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dataservice
from dataservice.dataset.dataset import Dataset
from dataservice.dataset.division.linearise import linearise
from dataservice.dataset.expressions import col
from dataservice.dataset.node import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from dataservice.dataset.operators.choices import RandomChoices
from dataservice.dataset.plan import decode_plan, encode_plan, fingerprint
from dataservice.dataset.sources.base import SplitStream
from dataservice.dataset.stream import RowCutter, RunContext
from dataservice.errors import InvalidArgumentError, SchemaError, UnsplittableError
from tests.unit.dataservice.dataset.checkpoint_checker import (
    check_positions,
    chunked,
    numbers,
    run,
    values,
)


def part(first: int, count: int, sizes: list[int] | None = None) -> Dataset:
    table = pa.table({"x": pa.array(range(first, first + count), pa.int64())})
    return Dataset.from_table(chunked(table, sizes or []))


def choices(listed: list[int]) -> Dataset:
    return Dataset.from_table(chunked(pa.table({"c": pa.array(listed, pa.int64())}), [3]))


def test_sampling_yields_every_row_once_in_order_of_its_dataset() -> None:
    datasets = [part(0, 40, [7, 9]), part(100, 25, [4]), part(200, 10)]
    dataset = dataservice.sample_from_datasets(datasets, seed=5)
    rows = values(run(dataset))
    assert dataset.cardinality() == len(rows) == 75
    for index, count in ((0, 40), (100, 25), (200, 10)):
        assert [x for x in rows if index <= x < index + 100] == list(range(index, index + count))
    assert rows != sorted(rows)
    check_positions(dataset)
    check_positions(dataset.batch(6), epoch=3)
    assert values(run(decode_plan(encode_plan(dataset.node)))) == rows


def test_batches_are_drawn_in_blocks_and_redrawn_when_dataset_ends() -> None:
    datasets = [part(0, 9).batch(1), part(100, 400).batch(1), part(900, 400).batch(1)]
    mixed = Dataset.sample_from_datasets(datasets, [0.6, 0.3, 0.1], seed=3)
    drawn = RandomChoices._draw
    with mock.patch.object(RandomChoices, "_draw", autospec=True, side_effect=drawn) as d:
        rows = values(run(mixed))
    assert (len(rows), d.call_count) == (809, 3)
    check_positions(
        Dataset.sample_from_datasets([part(0, 5).batch(1), part(9, 9).batch(2)], seed=1)
    )


def test_sampling_weights_are_probabilities() -> None:
    datasets = [part(0, 30_000), part(50_000, 30_000), part(90_000, 9)]
    dataset = Dataset.sample_from_datasets(datasets, [0.2, 0.8, 0], seed=1).take(20_000)
    found = Counter(x // 50_000 for x in values(run(dataset)))
    assert found[1] / 20_000 == pytest.approx(0.8, abs=0.01)
    assert max(values(run(dataset))) < 90_000


def test_sampling_depends_on_seed_and_on_epoch_where_asked_for() -> None:
    datasets = [part(0, 50), part(100, 50)]
    first = Dataset.sample_from_datasets(datasets, seed=1)
    assert values(run(first)) == values(run(first)) == values(run(first, 1))
    assert values(run(first)) != values(run(Dataset.sample_from_datasets(datasets, seed=2)))
    other = Dataset.sample_from_datasets(datasets, seed=1, rerandomize_each_iteration=True)
    assert values(run(other, 1)) != values(run(other)) == values(run(first))


def test_sampling_without_seed_differs_by_epoch_unless_told_otherwise() -> None:
    datasets = [part(0, 50), part(100, 50)]
    drawn = Dataset.sample_from_datasets(datasets)
    assert values(run(drawn)) != values(run(drawn, 1))
    same = Dataset.sample_from_datasets(datasets, rerandomize_each_iteration=False)
    assert values(run(same)) == values(run(same, 1))


def test_drawn_sampling_seed_is_saved_with_position() -> None:
    datasets = [part(0, 50), part(100, 50)]
    first, second = (Dataset.sample_from_datasets(datasets).batch(9) for _ in range(2))
    assert fingerprint(first.node) == fingerprint(second.node)
    iterator = iter(first)
    next(iterator)
    state = iterator.state_dict()
    other = iter(second)
    other.load_state_dict(state)
    assert values(list(other)) == values(list(iterator))


def test_stop_on_empty_dataset_ends_sampling_with_first_ended_dataset() -> None:
    datasets = [part(0, 1_000), part(5_000, 10)]
    dataset = Dataset.sample_from_datasets(datasets, seed=1, stop_on_empty_dataset=True)
    rows = values(run(dataset))
    assert 10 < len(rows) < 100
    assert dataset.cardinality() == UNKNOWN_CARDINALITY
    check_positions(dataset.batch(3))


@given(st.lists(st.integers(0, 2), max_size=40), st.booleans())
def test_choose_from_datasets_follows_listed_choices(listed: list[int], stop: bool) -> None:
    datasets = [part(0, 9, [2]), part(100, 5, [1, 1]), part(200, 12, [5])]
    dataset = Dataset.choose_from_datasets(datasets, choices(listed), stop)
    left = [iter(range(9)), iter(range(100, 105)), iter(range(200, 212))]
    wanted = []
    for choice in listed:
        value = next(left[choice], None)
        if value is not None:
            wanted.append(value)
        elif stop:
            break
    assert values(run(dataset)) == wanted
    check_positions(dataset)


def test_endless_choices_end_when_every_dataset_has_ended() -> None:
    endless = choices([0, 1]).repeat()
    dataset = Dataset.choose_from_datasets([part(0, 3), part(100, 900)], endless, False)
    batches = run(dataset)
    assert values(batches) == [0, 100, 1, 101, 2, *range(102, 1_000)]
    # Choices of a dataset that has ended cut no blocks.
    assert len(batches) < 10
    check_positions(dataset.take(300), epoch=0)


def test_chosen_and_sampled_batches_stay_whole() -> None:
    datasets = [numbers(9).batch(4), numbers(6).batch(3)]
    dataset = Dataset.choose_from_datasets(datasets, choices([1, 0, 1, 0, 0, 1]))
    assert [b.column(0).to_pylist() for b in run(dataset)] == [
        [0, 1, 2],
        [0, 1, 2, 3],
        [3, 4, 5],
        [4, 5, 6, 7],
        [8],
    ]
    check_positions(dataset)
    check_positions(Dataset.sample_from_datasets(datasets, seed=4))


def test_first_dataset_determines_schema_of_sampling() -> None:
    other = Dataset.from_table(pa.table({"x": pa.array([7], pa.int8())}))
    dataset = Dataset.sample_from_datasets([part(0, 3), other], seed=1)
    assert {batch.schema.field("x").type for batch in run(dataset)} == {pa.int64()}
    lacking = Dataset.from_table(pa.table({"x": pa.nulls(2)}))
    dataset = Dataset.sample_from_datasets([lacking, other], seed=1)
    assert {batch.schema.field("x").type for batch in run(dataset)} == {pa.int8()}
    assert dataset.schema == other.schema
    with pytest.raises(SchemaError, match=r"dataset given to sample_from_datasets.*missing"):
        _ = Dataset.sample_from_datasets([part(0, 3), choices([1])]).schema


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda _: Dataset.sample_from_datasets([]), InvalidArgumentError, "several datasets"),
        (lambda d: Dataset.sample_from_datasets([d, 3]), InvalidArgumentError, "Datasets, got 3"),
        (lambda d: Dataset.sample_from_datasets([d], [1, 2]), InvalidArgumentError, "1 datasets"),
        (lambda d: Dataset.sample_from_datasets([d], [0]), InvalidArgumentError, "not all 0"),
        (lambda d: Dataset.sample_from_datasets([d], [-1]), InvalidArgumentError, "not negative"),
        (
            lambda d: Dataset.sample_from_datasets([d, d], [1e308, 1e308]),
            InvalidArgumentError,
            "finite, their sum too",
        ),
        (lambda d: Dataset.sample_from_datasets([d], "a"), InvalidArgumentError, "numbers, got"),
        (lambda d: Dataset.sample_from_datasets([d], seed=0.5), InvalidArgumentError, "integer"),
        (lambda d: Dataset.sample_from_datasets([d, d.batch(2)]), InvalidArgumentError, "not both"),
        (lambda d: Dataset.choose_from_datasets([d], d.batch(2)), InvalidArgumentError, "of rows"),
        (lambda d: run(Dataset.choose_from_datasets([d], d)), InvalidArgumentError, "yielded 1"),
        (
            lambda d: run(Dataset.choose_from_datasets([d], d.with_column("y", col("x")))),
            SchemaError,
            "one integer column",
        ),
        (lambda d: linearise(Dataset.sample_from_datasets([d]).node), UnsplittableError, "OFF"),
        (lambda d: linearise(Dataset.choose_from_datasets([d], d).node), UnsplittableError, "OFF"),
    ],
)
def test_invalid_sampling_and_choosing_arguments_are_refused(
    build: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        build(numbers(3))


def test_cardinality_of_sampling_depends_on_weights_and_inputs() -> None:
    endless = numbers(3).repeat()
    assert Dataset.sample_from_datasets([numbers(3), endless]).cardinality() == INFINITE_CARDINALITY
    assert Dataset.sample_from_datasets([numbers(3), endless], [1, 0]).cardinality() == 3
    unknown = Dataset.sample_from_datasets([numbers(3), numbers(3).filter(col("x") > 1)])
    assert unknown.cardinality() == UNKNOWN_CARDINALITY
    assert Dataset.choose_from_datasets([numbers(3)], choices([])).cardinality() == 0


def test_chain_of_mixes_asks_each_source_for_its_position_once_between_chunks() -> None:
    asked = 0
    state = SplitStream.state

    def counting(self: SplitStream) -> Any:
        nonlocal asked
        asked += 1
        return state(self)

    chained, links = numbers(200), 40
    for seed in range(links):
        chained = Dataset.sample_from_datasets([chained, numbers(200)], seed=seed)
    with mock.patch.object(SplitStream, "state", counting):
        assert len(values(run(chained))) == 200 * (links + 1)
    assert asked < 10 * links


def test_position_between_chunks_is_that_of_the_next_row_also_after_a_skip() -> None:
    with RowCutter(numbers(40).node.open(RunContext())) as cutter:
        first = cutter.state()
        assert cutter.state() == first
        skipped = cutter.advance(7)
        (piece,) = cutter.cut(1)
        assert piece["x"].to_pylist() == [skipped]
    with RowCutter(numbers(40).node.open(RunContext())) as cutter:
        before = cutter.state()
        cutter.advance(7)
        after = cutter.state()
        assert after != before
        cutter.restore(before)
        assert cutter.state() == before
        cutter.restore(after)
        (piece,) = cutter.cut(1)
        assert piece["x"].to_pylist() == [7]
