"""Which server each shard goes to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstrain.errors import InvalidArgumentError
from pstrain.variables.placement import ByteBalanced, RoundRobin, placer


def test_round_robin_placement_takes_servers_in_turn_by_shard() -> None:
    rule = RoundRobin(3)
    assert rule.place([8, 8]) == [0, 1]
    assert rule.place([10**9]) == [2]
    assert rule.place([1, 1, 1, 1]) == [0, 1, 2, 0]


def test_byte_balanced_placement_chooses_server_with_fewest_bytes() -> None:
    rule = ByteBalanced(2)
    assert rule.place([100]) == [0]
    assert rule.place([10, 10, 10]) == [1, 1, 1]
    assert rule.place([80]) == [1]
    assert rule.place([1]) == [0]


@given(st.integers(1, 5), st.lists(st.integers(1, 1000), max_size=40))
def test_byte_balanced_servers_differ_by_at_most_largest_shard(
    servers: int, sizes: list[int]
) -> None:
    held = [0] * servers
    for server, size in zip(ByteBalanced(servers).place(sizes), sizes, strict=True):
        held[server] += size
    assert max(held) - min(held) <= max(sizes, default=0)


def test_unknown_placement_is_refused_by_name() -> None:
    assert isinstance(placer("bytes", 2), ByteBalanced)
    with pytest.raises(InvalidArgumentError, match="'random'"):
        placer("random", 2)
