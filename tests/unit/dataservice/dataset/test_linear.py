"""Linearised plans: their source, operators and batch, and why other plans cannot be divided."""

from __future__ import annotations

from typing import Any

import pytest

from dataservice.dataset.dataset import Dataset
from dataservice.dataset.division.linearise import linearise
from dataservice.dataset.expressions import col
from dataservice.dataset.node import Node, freeze_schemas
from dataservice.dataset.plan import decode_plan, encode_plan
from dataservice.errors import (
    InvalidArgumentError,
    UnsplittableError,
    error_from_dict,
    error_to_dict,
)


def same(columns: dict[str, Any]) -> dict[str, Any]:
    return columns


BASE = Dataset.range(100)


def kinds(operators: tuple[Node, ...]) -> list[str]:
    return [operator.kind for operator in operators]


def test_linearise_splits_plan_into_source_operators_and_batch() -> None:
    dataset = (
        BASE.map(same)
        .filter(col("id") > 3)
        .prefetch(2)
        .shuffle(20, seed=7)
        .repeat(3)
        .with_column("y", col("id") * 2)
        .batch(8, drop_remainder=True)
        .map(same)
        .select("y")
        .prefetch(1)
    )
    linear = linearise(decode_plan(encode_plan(dataset.node)))
    (segment,) = linear.segments
    assert segment.source.kind == "range"
    assert kinds(segment.operators) == ["map", "filter", "shuffle", "with_column"]
    assert kinds(linear.batch_operators) == ["map", "select"]
    assert (linear.batch_size, linear.drop_remainder) == (8, True)
    assert (linear.repeat, linear.shuffle_seed, linear.buffer_size) == (3, 7, 20)
    assert linear.shuffles
    assert linear.reshuffles


def test_what_ignores_batches_is_done_before_they_form() -> None:
    dataset = (
        BASE.batch(8)
        .with_column("y", col("id") * 2)
        .select(["y"])
        .rename({"y": "z"})
        .map({"z": col("z") + 1})
    )
    linear = linearise(decode_plan(encode_plan(dataset.node)))
    assert kinds(linear.segments[0].operators) == ["with_column", "select", "rename", "project"]
    assert (linear.batch_operators, linear.batch_size) == ((), 8)
    assert linearise(dataset.unbatch().node).batch is None


@pytest.mark.parametrize(
    "first",
    [
        lambda batches: batches.filter(col("id") > 3),
        lambda batches: batches.map(same),
        lambda batches: batches.with_column("y", lambda c: c["id"]),
        lambda batches: batches.with_column("y", col("id"), on_error="skip"),
    ],
)
def test_what_sees_batches_and_all_that_follows_it_comes_after_them(first: Any) -> None:
    linear = linearise(first(BASE.batch(8)).select(["id"]).node)
    assert len(linear.batch_operators) == 2
    assert linear.segments[0].operators == ()


def test_linearised_source_has_no_operators() -> None:
    linear = linearise(BASE.node)
    assert (linear.batch_operators, linear.batch_size, linear.repeat) == ((), None, 1)
    assert not linear.shuffles
    assert not linear.drop_remainder


def test_nested_repeats_multiply() -> None:
    assert linearise(BASE.repeat(2).repeat(3).node).repeat == 6
    assert linearise(BASE.repeat().repeat(3).node).repeat is None
    assert linearise(BASE.repeat(0).repeat().node).repeat == 0
    assert linearise(BASE.repeat().repeat(0).node).repeat == 0


def test_repeated_batches_end_with_each_pass() -> None:
    linear = linearise(BASE.batch(2).map(same).repeat(2).repeat(3).map(same).node)
    assert (linear.repeat, linear.batch_size, linear.ends_passes) == (6, 2, True)
    assert kinds(linear.batch_operators) == ["map", "map"]
    assert not linearise(BASE.repeat(2).batch(2).node).ends_passes
    assert not linearise(BASE.batch(2).repeat(2).unbatch().node).ends_passes


def test_concatenated_sources_become_segments() -> None:
    frozen = freeze_schemas(
        BASE.shuffle(5, seed=1).concatenate(Dataset.range(9).map(same)).filter(col("id") > 1).node
    )
    linear = linearise(frozen)
    first, second = linear.segments
    assert kinds(first.operators) == ["shuffle", "conform", "filter"]
    assert kinds(second.operators) == ["map", "conform", "filter"]
    assert linear.shuffle_seed == 1
    three = linearise(BASE.concatenate(BASE).concatenate(BASE.shuffle(2, 5)).node)
    assert len(three.segments) == 3
    assert three.shuffle_seed == 5


def test_concatenated_inputs_are_cut_for_the_larger_needs_of_both() -> None:
    plain = BASE.shuffle(5, seed=1, reshuffle_each_iteration=False)
    joined = linearise(plain.concatenate(BASE.shuffle(50, seed=2)).node)
    assert (joined.shuffle_seed, joined.reshuffles, joined.buffer_size) == (1, False, 50)
    inputs = [BASE.interleave(same, cycle_length=length) for length in (3, 5)]
    assert linearise(inputs[0].concatenate(inputs[1]).node).cycle == 5
    groups = [BASE.group_by_window("id", window_size=size) for size in (2, 9)]
    joined = linearise(groups[0].concatenate(groups[1]).node)
    assert joined.forms_elements
    assert joined.group_rows == linearise(groups[1].node).group_rows


def test_windows_are_to_have_rows_for_several_groups() -> None:
    def rows(dataset: Dataset) -> int:
        return linearise(dataset.node).group_rows

    assert rows(BASE) == 0
    assert rows(BASE.batch(8).shuffle(3)) == 2 * rows(BASE.batch(4).shuffle(3)) > 16
    groups = [BASE.group_by_window("id", window_size=size) for size in (1, 10)]
    assert rows(groups[1]) == 10 * rows(groups[0]) > 20
    of_batches = BASE.batch(4).group_by_window(same, window_size=10)
    assert rows(of_batches) == 10 * rows(BASE.batch(4).shuffle(3))


def test_take_and_skip_become_ranges() -> None:
    linear = linearise(BASE.skip(10).take(50).skip(5).take(100).node)
    assert (linear.skip, linear.take) == (15, 45)
    linear = linearise(BASE.take(5).skip(9).node)
    assert (linear.skip, linear.take) == (9, 0)
    linear = linearise(BASE.take(7).concatenate(BASE.skip(3).map(same)).take(20).node)
    assert [(s.skip, s.take) for s in linear.segments] == [(0, 7), (3, None)]
    assert (linear.skip, linear.take) == (0, 20)
    # A map keeps the number of rows, so rows can be counted below it.
    assert linearise(BASE.map(same).rename({"id": "x"}).take(3).filter(col("x") > 0).node).take == 3


def test_shuffle_without_reshuffle_has_one_order_in_all_epochs() -> None:
    linear = linearise(BASE.shuffle(5, seed=3, reshuffle_each_iteration=False).node)
    assert not linear.reshuffles


def test_first_of_two_shuffles_orders_the_splits() -> None:
    linear = linearise(BASE.shuffle(5, seed=3).shuffle(50, seed=4).node)
    assert (linear.shuffle_seed, linear.buffer_size) == (3, 50)


@pytest.mark.parametrize(
    ("dataset", "operator"),
    [
        (BASE.filter(col("id") > 1).take(3), "take"),
        (BASE.filter(lambda c: c["id"] > 1).skip(3), "skip"),
        (BASE.shuffle(3).take(3), "take"),
        (BASE.flat_map(same).take(3), "take"),
        (BASE.repeat(2).take(3), "take"),
        (BASE.batch(2).take(3), "take"),
        (BASE.batch(2).skip(3), "skip"),
        (BASE.batch(2).batch(3), "batch"),
        (BASE.repeat(2).batch(2).repeat(2), "repeat"),
        (BASE.batch(2).concatenate(BASE.batch(2)), "concatenate"),
        (BASE.repeat(2).concatenate(BASE), "concatenate"),
        (BASE.concatenate(BASE).take(3).concatenate(BASE), "concatenate"),
        (BASE.enumerate(), "enumerate"),
        (BASE.interleave(same).interleave(same), "interleave"),
        (BASE.batch(2).interleave(same), "interleave"),
        (BASE.interleave(same).take(3), "take"),
        (BASE.interleave(same).concatenate(BASE), "concatenate"),
        (BASE.group_by_window("id", window_size=2).take(3), "take"),
        (BASE.group_by_window("id", window_size=2).batch(3), "batch"),
        (BASE.group_by_window("id", window_size=2).zip(BASE.batch(2)), "zip"),
        (BASE.batch(2).zip(BASE.batch(2)), "zip"),
        (BASE.batch(2, drop_remainder=True).unbatch(), "unbatch"),
        (BASE.batch(2).map(same).unbatch(), "unbatch"),
        (BASE.batch(2).enumerate().map(same), "enumerate"),
        (Dataset.from_parquet("p", filter=col("x") > 1).take(3), "take"),
    ],
)
def test_indivisible_plan_is_refused_naming_operator(dataset: Dataset, operator: str) -> None:
    with pytest.raises(UnsplittableError, match=f"dataset with {operator} cannot.*OFF") as caught:
        linearise(dataset.node)
    assert isinstance(caught.value, InvalidArgumentError)
    assert type(error_from_dict(error_to_dict(caught.value))) is UnsplittableError


@pytest.mark.parametrize(
    ("dataset", "remedy"),
    [
        (BASE.enumerate(), r"zip\(data, Dataset.range\(n\)\)"),
        (BASE.map(same, on_error="skip").take(3), "elements that map with on_error='skip' yields"),
        (BASE.filter(col("id") > 1).take(3), "elements that filter yields"),
        (BASE.cache(), r"dataservice.save\(\)"),
        (BASE.shard(2, 0), r"one job_name divide the rows.* after distribute\(.*ordered=True\)"),
        (Dataset.sample_from_datasets([BASE, BASE]), "distribute each of the datasets"),
        (Dataset.choose_from_datasets([BASE], BASE), "distribute each of the datasets"),
    ],
)
def test_indivisible_plan_is_refused_naming_remedy(dataset: Dataset, remedy: str) -> None:
    with pytest.raises(UnsplittableError, match=remedy):
        linearise(dataset.node)


def test_shuffled_batches_are_formed_within_windows() -> None:
    linear = linearise(BASE.batch(2).map(same).shuffle(3, seed=1).select("id").repeat(2).node)
    assert kinds(linear.segments[0].operators) == ["batch", "map", "shuffle", "select"]
    assert [op.batched for op in linear.segments[0].operators] == [True] * 4
    assert (linear.batch, linear.batch_operators) == (None, ())
    assert (linear.forms_elements, linear.ends_passes) == (True, False)
    assert not linearise(BASE.batch(2).repeat(2).shuffle(3, seed=1).node).ends_passes
    assert linearise(BASE.batch(2).unbatch().node).batch is None
    again = linearise(BASE.batch(2).shuffle(3, seed=1).unbatch().batch(5).node)
    assert (again.forms_elements, again.batch_size) == (False, 5)


def test_take_after_filter_pushed_into_files_is_refused() -> None:
    plan = Dataset.from_parquet("p").filter(col("x") > 1).take(3)
    with pytest.raises(UnsplittableError, match="number of rows in parquet is not known"):
        linearise(plan.node)


def test_operator_on_batches_has_no_input() -> None:
    linear = linearise(BASE.batch(2).map(same).node)
    with pytest.raises(RuntimeError, match="no input"):
        linear.batch_operators[0].open(None)  # type: ignore[arg-type]
    assert linear.batch_operators[0].batched
