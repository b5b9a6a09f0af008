"""Rows that move in chunks: each once, in order, from all servers side by side."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from pstrain import initializers
from pstrain.variables.rows import groups, transfers
from pstrain.vocabulary import ShardSpec, VariableSpec

_ROW_BYTES = 8


def variable(sizes: list[int], servers: int) -> VariableSpec:
    bounds = [0, *itertools.accumulate(sizes)]
    return VariableSpec(
        id=0,
        name="v",
        shape=(bounds[-1], 2),
        dtype="float32",
        trainable=True,
        initializer=initializers.zeros(),
        shards=tuple(
            ShardSpec(ps=number % servers, row_start=start, row_stop=stop)
            for number, (start, stop) in enumerate(itertools.pairwise(bounds))
        ),
    )


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=6),
    st.integers(1, 3),
    st.data(),
    st.integers(1, 5),
)
def test_each_row_is_transferred_once_and_servers_do_not_wait_for_each_other(
    sizes: list[int], servers: int, data: st.DataObject, chunk_rows: int
) -> None:
    spec = variable(sizes, servers)
    start = data.draw(st.integers(0, spec.rows))
    stop = data.draw(st.integers(start, spec.rows))
    turns = list(transfers(spec, start, stop, chunk_rows * _ROW_BYTES))
    moved = [(ps, *chunk) for turn in turns for ps, chunk in turn.items()]
    for ps, index, first, end in moved:
        shard = spec.shards[index]
        assert shard.ps == ps
        assert shard.row_start <= first < end <= shard.row_stop
        assert end - first <= chunk_rows
    rows = [row for _, _, first, end in moved for row in range(first, end)]
    assert sorted(rows) == list(range(start, stop))
    for ps in range(servers):
        mine = [row for server, _, first, end in moved if server == ps for row in range(first, end)]
        assert mine == sorted(mine)
        had_rows = [ps in turn for turn in turns]
        assert had_rows == sorted(had_rows, reverse=True)


@given(st.lists(st.integers(0, 200), max_size=12), st.integers(1, 2000))
def test_groups_of_variables_fill_message_limit(rows: list[int], max_bytes: int) -> None:
    specs = [variable([count], 1) for count in rows]
    found = groups(specs, max_bytes)
    assert [spec for group in found for spec in group] == specs
    for group in found:
        size = sum(spec.rows * _ROW_BYTES for spec in group)
        assert len(group) == 1 or (size <= max_bytes and all(spec.rows for spec in group))
    for group, following in itertools.pairwise(found):
        room = max_bytes - sum(spec.rows * _ROW_BYTES + 128 for spec in group)
        if all(spec.rows for spec in [*group, following[0]]):
            assert following[0].rows * _ROW_BYTES + 128 > room
