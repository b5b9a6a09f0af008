"""Two requests in one message: their arrays are told apart, each is done or refused by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstrain.errors import DataLossError, InvalidArgumentError, NotFoundError
from pstrain.paramserver import messages
from pstrain.paramserver.changes import WHOLE
from pstrain.paramserver.messages import (
    Call,
    LateBody,
    Message,
    Received,
    SplitBody,
    body_arrays,
    split_body,
)
from pstrain.paramserver.requests import answer
from pstrain.paramserver.store import Store
from pstrain.trainer.outgoing import both
from pstrain.vocabulary import InitializerSpec, ShardSpec, VariableSpec

SPEC = VariableSpec(
    id=3,
    name="table",
    shape=(8, 2),
    dtype="float32",
    trainable=True,
    initializer=InitializerSpec(name="constant"),
    shards=(ShardSpec(ps=0, row_start=0, row_stop=8),),
)
IDS = np.array([1, 6], np.int64)
PULL: Message = ({"kind": "pull", "items": [[3, 0, 2, -1], [3, 0, WHOLE, -1]]}, LateBody.of([IDS]))
PART = {"trainer": "t", "low_water": 0}
COMMIT: Message = ({**PART, "kind": "commit", "commits": [[0, 0, 0]]}, None)


def prepare(closure: int, commits: list[int], shape: tuple[int, ...] = (8, 2)) -> Message:
    """Returns the message that prepares adding 1, with the commits of other closures."""
    change = {"kind": "assign", "op": "add", "shard": [3, 0], "start": 0, "count": shape[0]}
    header = {**PART, "kind": "prepare", "key": [closure, 0, 0], "changes": [change]}
    if commits:
        header["commits"] = [[other, 0, 0] for other in commits]
    return header, LateBody.of([np.ones(shape, np.float32)])


def decide(shape: tuple[int, ...] = (8, 2), closure: int = 0, commits: tuple[int, ...] = ()) -> Any:
    header, body = prepare(closure, list(commits), shape)
    entries = [[closure, 0, 0, {"value": ""}, 0]]
    return {**header, "kind": "decide", "entries": entries, "rows": []}, body


@pytest.fixture
def store() -> Store:
    store = Store()
    store.create(SPEC, 0)
    return store


def asked(store: Store, message: Message) -> tuple[dict[str, Any], list[Any]]:
    header, body = message
    reply, late = answer(store, Call(header, None if body is None else body.to_buffer()))
    if late is None:
        return reply, []
    assert isinstance(late, LateBody)
    return reply, body_arrays(late.to_buffer(), late.parts)


def test_pull_joined_to_decide_reads_values_after_the_change_applied_once(store: Store) -> None:
    for _ in range(2):
        reply, (rows, whole) = asked(store, both(decide(), PULL))
        np.testing.assert_array_equal(rows, np.ones((2, 2), np.float32))
        np.testing.assert_array_equal(whole, np.ones((8, 2), np.float32))
    assert reply["first"] == {"applied": False}
    reply, arrays = asked(store, both(COMMIT, PULL))
    assert (reply["first"], len(arrays)) == ({}, 2)


@pytest.mark.parametrize("kind", [prepare, decide])
def test_commits_that_go_along_are_made_once_and_before_the_pull(store: Store, kind: Any) -> None:
    for closure in (0, 1):
        asked(store, prepare(closure, []))
    message = kind(closure=2, commits=(0, 1))
    for _ in range(2):
        _, (rows, _) = asked(store, both(message, PULL))
        np.testing.assert_array_equal(rows, np.full((2, 2), 2 if kind is prepare else 3))
    assert store.commit_counts()["held"] == (kind is prepare)


def test_commits_that_go_along_are_made_before_the_part(store: Store) -> None:
    asked(store, prepare(0, []))
    header, body = decide(closure=1, commits=(0,))
    header["changes"][0]["op"] = "set"
    _, (rows, _) = asked(store, both((header, body), PULL))
    np.testing.assert_array_equal(rows, np.ones((2, 2)))


def test_refused_message_makes_none_of_the_commits_that_go_along(store: Store) -> None:
    asked(store, prepare(0, []))
    for message in (prepare(1, [0], (9, 2)), decide((9, 2), 1, (0,))):
        with pytest.raises(InvalidArgumentError):
            asked(store, message)
    assert store.commit_counts()["held"] == 1
    asked(store, COMMIT)
    _, (rows, _) = asked(store, PULL)
    assert rows.all()


def test_pull_is_answered_when_joined_decide_is_refused(store: Store) -> None:
    reply, (rows, _) = asked(store, both(decide((9, 2)), PULL))
    with pytest.raises(InvalidArgumentError):
        messages.checked(reply["first"])
    messages.checked(reply["then"])
    assert not rows.any()


@pytest.mark.parametrize(
    "malformed",
    [
        {"rows": [{}]},
        {"rows": 5},
        {"rows": [{"reader": []}]},
        {"entries": 5},
        {"entries": [[0, 0]]},
        {"entries": [[[0], 0, 0, None, 0]]},
        {"key": [0, 0]},
        {"key": 5, "low_water": 1},
        {"key": [0, "0", 0], "low_water": 1},
        {"low_water": "0"},
    ],
)
def test_malformed_decide_is_refused_and_part_can_still_be_applied(
    store: Store, malformed: dict[str, Any]
) -> None:
    header, body = decide()
    with pytest.raises(InvalidArgumentError, match="got"):
        asked(store, ({**header, **malformed}, body))
    assert asked(store, (header, body))[0] == {"applied": True}


def test_decide_is_applied_when_joined_pull_is_refused(store: Store) -> None:
    elsewhere: Message = ({"kind": "pull", "items": [[4, 0, WHOLE, -1]]}, None)
    reply, arrays = asked(store, both(decide(), elsewhere))
    assert messages.checked(reply["first"]) == {"applied": True}
    with pytest.raises(NotFoundError):
        messages.checked(reply["then"])
    assert arrays == []
    _, (rows, _) = asked(store, PULL)
    assert rows.all()


@pytest.mark.parametrize(
    ("first", "then"),
    [(PULL, PULL), (COMMIT, COMMIT), (both(COMMIT, PULL), PULL), (COMMIT, both(COMMIT, PULL))],
)
def test_unsupported_request_pairs_are_refused_without_effect(
    store: Store, first: Message, then: Message
) -> None:
    with pytest.raises(InvalidArgumentError, match="decide or commit, then to pull"):
        asked(store, both(first, then))


def test_too_short_body_is_refused_without_effect(store: Store) -> None:
    header, _ = both(decide(), PULL)
    with pytest.raises(DataLossError, match="expected 16 and more"):
        answer(store, Call(header, LateBody.of([IDS[:1]]).to_buffer()))  # type: ignore[union-attr]
    with pytest.raises(DataLossError, match="large arrays"):
        split_body(SplitBody([], None), [("float32", (1 << 20,))])
    _, (rows, _) = asked(store, PULL)
    assert not rows.any()


COUNTS = st.lists(st.integers(0, 40), max_size=3)


@given(COUNTS, COUNTS, st.booleans())
def test_joined_body_is_split_into_arrays_of_each_request(
    first: list[int], second: list[int], in_pieces: bool
) -> None:
    mine = [np.arange(count, dtype=np.int64) for count in first]
    others = [np.full((count, 3), 2.0, np.float32) for count in second]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messages, "LARGE_BYTES", 200 if in_pieces else 1 << 20)
        body = _received([body for body in (LateBody.of(mine), LateBody.of(others)) if body])
        own, rest = split_body(body, _parts(mine))
        for received, arrays in ((own, mine), (rest, others)):
            found = body_arrays(received, _parts(arrays))
            assert len(found) == len(arrays)
            for one, other in zip(found, arrays, strict=True):
                np.testing.assert_array_equal(one, other)


def _parts(arrays: list[Any]) -> list[messages.BodyPart]:
    return [(array.dtype.str, array.shape) for array in arrays]


def _received(bodies: list[LateBody]) -> Received:
    """Returns the joined bodies as a receiver gets them, with large arrays apart."""
    if not bodies:
        return None
    joined = LateBody.joined(bodies)
    large = [part for part, each in enumerate(joined.parts) if messages.is_large(each)]
    if not large:
        return joined.to_buffer()
    rest = joined.without(large)
    pieces = [joined.rows(part, 0, joined.parts[part][1][0]) for part in large]
    return SplitBody(pieces, None if rest is None else rest.to_buffer())
