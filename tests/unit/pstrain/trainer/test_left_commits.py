"""Commits that were left: each is taken once, put back if it failed, and ends its part once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pstrain.trainer.left_commits import NOTHING, LeftCommits
from pstrain.wire import trainer_pb2 as pb


def key(closure: int) -> list[int]:
    return [closure, 0, 0]


def left_with(*parts: tuple[int, tuple[int, ...]]) -> LeftCommits:
    """Returns commits left of parts of (closure, servers), decided at the time of its number."""
    left = LeftCommits()
    for closure, servers in parts:
        left.add(key(closure), servers, [pb.ClosureResult(id=closure)], float(closure))
    return left


def ids(results: list[pb.ClosureResult]) -> list[int]:
    return [result.id for result in results]


def test_commit_is_taken_by_one_message_to_its_server() -> None:
    left = left_with((1, (0, 2)), (2, (2,)))
    assert left.take([1]) == {}
    assert left.take([2, 1]) == {2: [key(1), key(2)]}
    assert left.take([2]) == {}
    assert left.take([0]) == {0: [key(1)]}
    assert left.take([0]) == NOTHING
    assert not left


def test_part_ends_when_last_server_has_confirmed() -> None:
    left = left_with((1, (0, 2)), (2, (2,)))
    assert ids(left.confirm(left.take([2]))) == [2]
    assert ids(left.confirm(left.take([0]))) == [1]
    assert left.confirm(NOTHING) == []


def test_commits_are_under_way_until_their_message_has_ended() -> None:
    left = left_with((1, (0, 2)))
    assert not left.are_under_way
    first, second = left.take([0]), left.take([2])
    left.confirm(first)
    left.end(first)
    left.end(left.take([0]))  # of nothing
    assert left.are_under_way
    left.put_back(second)
    left.end(second)
    assert not left.are_under_way


def test_commits_that_were_put_back_go_before_later_ones() -> None:
    left = left_with((1, (0,)))
    taken = left.take([0])
    assert not left
    left.add(key(2), (0,), [], 2.0)
    left.put_back(taken)
    assert left.take([0]) == {0: [key(1), key(2)]}


def test_servers_are_those_with_commits_of_parts_decided_by_then() -> None:
    left = left_with((1, (0, 2)), (2, (1, 2)))
    assert left.servers(0.9) == []
    assert left.servers(1.0) == [0, 2]
    assert left.servers() == [0, 2, 1]
    left.take([2])
    assert left.servers() == [0, 1]


@given(
    st.lists(st.sets(st.integers(0, 3), min_size=1), max_size=6),
    st.lists(st.tuples(st.sets(st.integers(0, 3)), st.booleans()), max_size=12),
)
def test_each_part_ends_once_whatever_fails(
    parts: list[set[int]], messages: list[tuple[set[int], bool]]
) -> None:
    left = left_with(*((closure, tuple(servers)) for closure, servers in enumerate(parts)))
    ended, confirmed = [], [set[int]() for _ in parts]
    for servers, arrives in [*messages, (set(range(4)), True)]:
        taken = left.take(servers)
        if not arrives:
            left.put_back(taken)
            continue
        ended += ids(left.confirm(taken))
        for server, keys in taken.items():
            for closure, *_ in keys:
                assert server not in confirmed[closure]
                confirmed[closure].add(server)
        assert set(ended) == {c for c, servers in enumerate(parts) if confirmed[c] == servers}
    assert sorted(ended) == list(range(len(parts)))
    assert not left
