"""The workers that a reader opens streams to: all of few, some of many, and none dropped later."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataservice.client.fan_in import FanIn
from dataservice.stream_counts import LEAST_WORKERS


def addresses(count: int) -> dict[str, str]:
    return {f"worker-{number}": f"host-{number}:1" for number in range(count)}


def chosen(reader: str, workers: int, readers: int) -> dict[str, str]:
    choice = FanIn(reader)
    choice.readers = readers
    return choice.choose(addresses(workers), 0)


@pytest.mark.parametrize(
    ("workers", "readers", "expected"),
    [
        (1, 1, 1),
        (8, 1_000, 8),
        (30, 1, 30),
        (30, 4, 30),
        (30, 10, 12),
        (30, 32, 8),
        (1_000, 100, 40),
    ],
)
def test_number_of_chosen_workers_depends_on_workers_and_readers(
    workers: int, readers: int, expected: int
) -> None:
    assert len(chosen("reader", workers, readers)) == expected


def test_unknown_reader_count_chooses_all_workers() -> None:
    assert len(chosen("reader", 30, 0)) == 30


def test_readers_are_spread_evenly_over_workers() -> None:
    count = Counter(
        worker for reader in range(100) for worker in chosen(f"reader-{reader}", 50, 100)
    )
    assert len(count) == 50
    assert 4 <= min(count.values()) <= max(count.values()) <= 32, "16 on average"


def test_added_workers_are_chosen_by_some_readers_without_dropped_streams() -> None:
    count = Counter[str]()
    for reader in range(100):
        choice = FanIn(f"reader-{reader}")
        choice.readers = 100
        choice.choose(addresses(8), 0)
        found = choice.choose(addresses(40), 0)
        assert found.keys() >= addresses(8).keys(), "no stream is given up"
        count.update(found.keys() - addresses(8).keys())
    assert len(count) == 32
    assert min(count.values()) >= 6, "20 on average"
    assert sum(count.values()) < 100 * 2 * LEAST_WORKERS, "not all of them by everybody"


def test_worker_of_own_process_is_always_chosen() -> None:
    for number in range(50):
        choice = FanIn(f"reader-{number}", lambda address: address == "host-7:1")
        choice.readers = 50
        assert "worker-7" in choice.choose(addresses(50), 0)


def test_chosen_workers_keep_their_addresses() -> None:
    for worker_id, address in chosen("reader", 30, 32).items():
        assert address == addresses(30)[worker_id]


def test_failing_workers_get_deputies_and_keep_their_streams() -> None:
    choice = FanIn("reader")
    choice.readers = 100
    first = choice.choose(addresses(50), 0)
    more = choice.choose(addresses(50), 3)
    assert first.items() < more.items()
    assert len(more) == LEAST_WORKERS + 3
    assert choice.choose(addresses(50), 0) == more


@given(
    st.lists(
        st.tuples(st.sets(st.integers(0, 40)), st.integers(1, 60), st.integers(0, 3)),
        max_size=12,
    )
)
def test_choice_under_any_membership_keeps_streams_and_minimum(
    moments: list[tuple[set[int], int, int]],
) -> None:
    choice, before = FanIn("reader"), set[str]()
    for there, readers, failing in moments:
        members = {f"w{number}": f"a{number}" for number in there}
        choice.readers = readers
        found = choice.choose(members, failing)
        assert found.items() <= members.items()
        assert before & members.keys() <= found.keys(), "a stream is given up"
        least = max(LEAST_WORKERS, -(-4 * len(members) // readers)) + failing
        assert len(found) >= min(len(members), least)
        before = set(found)
