"""Plans of hundreds of operators: read, resumed, and refused beyond the limit."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable

import pytest

from dataservice.dataset.dataset import Dataset
from dataservice.dataset.division.linearise import linearise
from dataservice.dataset.expressions import col
from dataservice.dataset.node import UNKNOWN_CARDINALITY, freeze_schemas
from dataservice.dataset.operators import Skip
from dataservice.dataset.plan import decode_plan, encode_plan
from dataservice.dataset.stream import RunContext
from dataservice.errors import InvalidArgumentError
from tests.unit.dataservice.dataset.checkpoint_checker import check_positions, run

PARTS = 1_000


def chained(parts: int) -> Dataset:
    return functools.reduce(
        lambda joined, n: joined.concatenate(Dataset.range(n, n + 1)),
        range(1, parts),
        Dataset.range(1),
    )


def test_thousand_concatenated_datasets_are_read_and_resumed() -> None:
    dataset = chained(PARTS)
    assert dataset.cardinality() == PARTS
    assert dataset.schema.names == ["id"]
    table = dataset.batch(64).to_table()
    assert table.column("id").to_pylist() == list(range(PARTS))
    frozen = freeze_schemas(decode_plan(encode_plan(dataset.node)))
    assert [b.column("id")[0].as_py() for b in run(frozen)] == list(range(PARTS))
    assert len(linearise(dataset.batch(4).node).segments) == PARTS
    with iter(dataset) as iterator:
        for _ in range(700):
            next(iterator)
        state = json.loads(json.dumps(iterator.state_dict()))
    with iter(dataset) as iterator:
        iterator.load_state_dict(state)
        assert next(iterator).column("id").to_pylist() == [700]


def test_right_nested_concatenations_are_flattened() -> None:
    parts = [Dataset.range(n, n + 1) for n in range(300)]
    dataset = functools.reduce(lambda joined, part: part.concatenate(joined), reversed(parts))
    assert dataset.batch(64).to_table().column("id").to_pylist() == list(range(300))
    assert len(linearise(dataset.batch(4).node).segments) == 300
    check_positions(chained(2).concatenate(chained(2).concatenate(chained(2))))


def longest(extended: Callable[[Dataset], Dataset]) -> Dataset:
    """Returns a dataset with as many of the operator as are allowed."""
    longest_yet = Dataset.range(9)
    with contextlib.suppress(InvalidArgumentError):
        for _ in range(1_000):
            longest_yet = extended(longest_yet)
    with pytest.raises(InvalidArgumentError, match=r"too many operators follow each other.*save"):
        extended(longest_yet)
    return longest_yet


@pytest.mark.parametrize(
    ("extended", "operators"),
    [
        (lambda d: d.map(dict), 400),
        (lambda d: d.filter(col("id") >= 0), 400),
        (lambda d: d.with_column("x", col("id") + 1), 400),
        (lambda d: d.skip(0), 130),
        (lambda d: d.take(9), 130),
        (lambda d: d.shuffle(5), 130),
        (lambda d: d.repeat(1), 130),
        (lambda d: d.batch(2).unbatch(), 65),
        (lambda d: Dataset.sample_from_datasets([d, Dataset.range(0)], seed=1), 130),
    ],
)
def test_longest_allowed_operator_chain_can_be_read(
    extended: Callable[[Dataset], Dataset], operators: int
) -> None:
    dataset = longest(extended)
    assert repr(dataset).count(">") >= operators
    assert dataset.cardinality() in (9, UNKNOWN_CARDINALITY)
    with iter(dataset) as iterator:
        first = next(iterator)
        state = json.loads(json.dumps(iterator.state_dict()))
    with iter(dataset) as iterator:
        iterator.load_state_dict(state)
        rest = list(iterator)
    assert sorted(x for b in (first, *rest) for x in b["id"].to_pylist()) == list(range(9))
    assert freeze_schemas(decode_plan(encode_plan(dataset.node))).depth_calls <= 850


def test_encoded_plan_with_too_many_operators_is_refused() -> None:
    dataset = longest(lambda d: d.skip(0))
    one_more = Skip(dataset.node, 0)
    with pytest.raises(InvalidArgumentError, match="too many operators"):
        decode_plan(encode_plan(one_more))


def test_concatenation_chain_resumes_from_every_position() -> None:
    check_positions(chained(5).shuffle(3, seed=1).batch(2))
    check_positions(chained(4).concatenate(chained(3)))


def test_nested_position_of_concatenation_chain_is_restored() -> None:
    dataset = chained(4)
    row = {"split": 0, "row": 0}
    for part, state in enumerate(
        [
            {"part": 0, "input": {"part": 0, "input": {"part": 0, "input": row}}},
            {"part": 0, "input": {"part": 0, "input": {"part": 1, "input": row}}},
            {"part": 0, "input": {"part": 1, "input": row}},
            {"part": 1, "input": row},
        ]
    ):
        with dataset.node.open(RunContext()) as stream:
            stream.restore(state)
            assert [b.column("id")[0].as_py() for b in stream] == list(range(part, 4))
