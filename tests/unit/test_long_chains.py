"""Plans of hundreds of operators."""

from __future__ import annotations

import functools
import json

from dataservice.dataset.dataset import Dataset
from dataservice.dataset.linear import linearise
from dataservice.dataset.node import freeze_schemas
from dataservice.dataset.plan import decode_plan, encode_plan
from dataservice.dataset.stream import RunContext
from tests.unit.checkpoint_checker import check_positions, run

PARTS = 1_000


def chained(parts: int) -> Dataset:
    return functools.reduce(
        lambda joined, n: joined.concatenate(Dataset.range(n, n + 1)),
        range(1, parts),
        Dataset.range(1),
    )


def test_a_thousand_parts_one_after_the_other() -> None:
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


def test_every_position_of_a_chain() -> None:
    check_positions(chained(5).shuffle(3, seed=1).batch(2))
    check_positions(chained(4).concatenate(chained(3)))


def test_positions_of_chains_saved_one_inside_of_the_other_are_read() -> None:
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
