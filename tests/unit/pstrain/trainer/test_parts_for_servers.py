"""Each server is told only of the parts of a checkpoint that its shards need."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from pstrain.paramserver.saved import SavedShard
from pstrain.trainer.loading import parts_for
from pstrain.vocabulary import ShardSpec, VariableSpec
from tests.unit.pstrain.paramserver.shard_cases import make_spec

ROWS = 40
CUTS = st.sets(st.integers(1, ROWS - 1), max_size=6).map(sorted)


def parts(name: str, bounds: Sequence[int]) -> list[SavedShard]:
    return [
        SavedShard(name, (ROWS, 3), "float32", a, b, f"{name}-{a}.arrow", 1, 1, None)
        for a, b in itertools.pairwise(bounds)
    ]


def spec_on(servers: Sequence[int], cuts: Sequence[int]) -> VariableSpec:
    bounds = itertools.pairwise([0, *cuts, ROWS])
    shards = tuple(
        ShardSpec(ps=servers[i % len(servers)], row_start=a, row_stop=b)
        for i, (a, b) in enumerate(bounds)
    )
    return make_spec(ROWS, 3, shards=shards)


@given(CUTS, CUTS, st.lists(st.integers(0, 3), min_size=1, max_size=4))
def test_server_gets_the_saved_parts_that_overlap_its_shards(
    saved: list[int], cuts: list[int], servers: list[int]
) -> None:
    spec, of_table = spec_on(servers, cuts), parts("table", [0, *saved, ROWS])
    for ps in range(4):
        rows = {
            row
            for shard in spec.shards
            if shard.ps == ps
            for row in range(shard.row_start, shard.row_stop)
        }
        wanted = [part for part in of_table if rows & {*range(part.row_start, part.row_stop)}]
        of_others = parts("other", [0, ROWS])
        assert parts_for(ps, {"table": spec}, [*of_others, *of_table]) == wanted


def test_server_gets_available_parts_when_saved_rows_are_missing() -> None:
    found = parts("table", [0, 10])
    assert parts_for(0, {"table": spec_on([0, 1], [20])}, found) == found
    assert parts_for(1, {"table": spec_on([0, 1], [20])}, found) == found
    assert parts_for(2, {"table": spec_on([0, 1], [20])}, found) == []
