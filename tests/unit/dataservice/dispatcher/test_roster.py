"""Places of a worker list: the addresses that match them, and how they are bound."""

from __future__ import annotations

import pytest

from dataservice.dispatcher.roster import check_places, describe_place, find_place, place_matches
from dataservice.errors import FailedPreconditionError, InvalidArgumentError


@pytest.mark.parametrize(
    ("place", "address"),
    [
        ("a:1", "a:1"),
        ("a", "a:1"),
        ("a:%port%", "a:1"),
        ("a:%port_grpc%", "a:1"),
        ("a:worker", "a:worker"),
        ("a:%port%", "a:worker"),
        ("grpc://a:%port%", "a:1"),
        ("a", "grpc://a:1"),
        ("grpc://a:1", "a:1"),
        ("[::1]", "[::1]:7"),
        ("[::1]:%port%", "[::1]:7"),
        ("[::1]:7", "[::1]:7"),
        ("2001:db8::1", "[2001:db8::1]:7"),
        ("/cell/job:0/task", "/cell/job:0/task:12"),
        ("/cell/job:0/task:%port%", "/cell/job:0/task:12"),
        ("localhost", "127.0.0.1:7"),
        ("localhost:%port%", "127.0.0.1:7"),
        ("localhost:7", "127.0.0.1:7"),
        ("localhost:%port%", "[::1]:7"),
        ("grpc://127.0.0.1", "localhost:7"),
        ("::1", "localhost:7"),
    ],
)
def test_place_matches_its_addresses(place: str, address: str) -> None:
    assert place_matches(place, address)


@pytest.mark.parametrize(
    ("place", "address"),
    [
        ("a:1", "a:2"),
        ("a:1", "b:1"),
        ("a", "b:1"),
        ("a:%port%", "b:1"),
        ("a:worker", "a:1"),
        ("a:port", "a:1"),
        ("a:%port%", "aa:1"),
        ("[::1]:7", "[::1]:8"),
        ("[::1]", "[::2]:7"),
        ("localhost:7", "127.0.0.1:8"),
        ("localhost", "127.0.0.2:7"),
        ("localhost", "a:7"),
    ],
)
def test_place_does_not_match_other_addresses(place: str, address: str) -> None:
    assert not place_matches(place, address)


def test_addresses_of_same_host_fill_places_in_order_of_arrival() -> None:
    places = ("a", "a:%port%", "b", "a")
    bound: dict[int, str] = {}
    for address in ("a:30", "b:1", "a:10", "a:20"):
        bound[find_place(places, bound, address)] = address
    assert bound == {0: "a:30", 2: "b:1", 1: "a:10", 3: "a:20"}
    assert find_place(places, bound, "a:10") == 1, "a bound address keeps its place"
    with pytest.raises(FailedPreconditionError, match=r"a:40 is not configured.*bound to a:30"):
        find_place(places, bound, "a:40")


def test_localhost_places_prefer_addresses_spelled_alike() -> None:
    places = ("localhost:%port%", "127.0.0.1:%port%", "localhost:%port%")
    bound: dict[int, str] = {}
    for address in ("127.0.0.1:30", "127.0.0.1:10", "localhost:20"):
        bound[find_place(places, bound, address)] = address
    assert bound == {1: "127.0.0.1:30", 0: "127.0.0.1:10", 2: "localhost:20"}


def test_bound_place_is_kept_for_its_address() -> None:
    with pytest.raises(FailedPreconditionError, match="come back on the port"):
        find_place(("a:%port%",), {0: "a:1"}, "a:2")


def test_describe_place_names_index_place_and_bound_address() -> None:
    assert describe_place(("a", "b:1"), {}, 0) == "worker 0 of 2 at a"
    assert describe_place(("a", "b:1"), {0: "a:5"}, 0) == "worker 0 of 2 at a (bound to a:5)"
    assert describe_place(("a", "b:1"), {1: "b:1"}, 1) == "worker 1 of 2 at b:1"


def test_address_listed_twice_is_refused() -> None:
    check_places(["a", "a", "a:%port%", "a:1", "a:2", "b:1", "[::1]:3", "localhost"])
    for twice in (["a:1", "b", "a:1"], ["localhost:5", "127.0.0.1:5"]):
        with pytest.raises(InvalidArgumentError, match=rf"names {twice[-1]} twice"):
            check_places(twice)
