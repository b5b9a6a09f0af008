"""A malformed request is refused with an error that names the field, and changes nothing."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pstrain.errors import DataServiceError, InvalidArgumentError
from pstrain.kernels.keys import NO_KEY
from pstrain.paramserver.headers import ACTIONS, REQUESTS, check_header
from pstrain.paramserver.messages import Call, LateBody
from pstrain.paramserver.requests import _HANDLERS, answer
from pstrain.paramserver.server import _request
from pstrain.paramserver.store import Store
from pstrain.vocabulary import InitializerSpec, VariableSpec, spec_to_json
from tests.unit.pstrain.paramserver.shard_cases import ADAGRAD, make_spec

TABLE = make_spec()
COUNTER = make_spec(
    1, id=2, name="steps", shape=(), dtype="int64", initializer=InitializerSpec(name="constant")
)
KEYS = make_spec(
    8,
    1,
    id=3,
    name="keys",
    dtype="int64",
    initializer=InitializerSpec(name="constant", parameters={"value": NO_KEY}),
)
OTHER = make_spec(4, 2, id=9, name="other")
IDS = np.array([1, 6], np.int64)
ROWS = np.ones((2, 3), np.float32)
HELD: dict[str, Any] = {"trainer": "t", "key": [4, 0, 0], "low_water": 1, "try": 0}
PART: dict[str, Any] = {**HELD, "key": [5, 0, 0]}
PUSH: dict[str, Any] = {
    "kind": "push",
    "items": [[1, 0, 2]],
    "optimizer": ADAGRAD.text,
    "owner": 2,
    "iterations": [2, 0],
}
ASSIGN: dict[str, Any] = {"kind": "assign", "op": "add", "shard": [1, 0], "start": 3, "count": 2}
SCATTER: dict[str, Any] = {"kind": "scatter", "op": "set", "shard": [1, 0], "count": 2}
PULL: dict[str, Any] = {"kind": "pull", "items": [[1, 0, 2, -1], [1, 0, -1, 7]]}
DECIDE: dict[str, Any] = {
    **PART,
    "kind": "decide",
    "changes": [PUSH, ASSIGN],
    "entries": [[5, 0, 0, {"value": ""}, 0], [6, 0, 0, None], [7, 0, 0, None, 0, ""]],
    "rows": [{"reader": "r", "service": "s", "marks": [[0, 0, 5, False]]}],
}
LOAD: dict[str, Any] = {
    "directory": "/nowhere",
    "variables": [["elsewhere", 77]],
    "saved": {"shards": []},
    "load": "l",
}
CHANGED = [IDS, ROWS, ROWS]

WELL_FORMED: list[tuple[dict[str, Any], list[Any]]] = [
    ({"kind": "create", "spec": spec_to_json(OTHER), "shards": [0]}, []),
    (
        {"kind": "create", "spec": spec_to_json(OTHER), "shards": [0], "has_values": True},
        [np.ones((4, 2), np.float32)],
    ),
    ({"kind": "delete", "variables": [1, 7]}, []),
    ({"kind": "slots", "shards": [[1, 0]], "optimizer": ADAGRAD.text}, []),
    (PULL, [IDS]),
    ({"kind": "both", "first": DECIDE, "then": PULL}, [IDS, *CHANGED]),
    ({"kind": "read", "shard": [1, 0], "rows": [2, 5]}, []),
    (PUSH, [IDS, ROWS]),
    (ASSIGN, [ROWS]),
    (SCATTER, [IDS, ROWS]),
    ({"kind": "change", "changes": [ASSIGN, ASSIGN]}, [ROWS, ROWS]),
    (
        {"kind": "claim", "items": [[3, 0, 1]], "is_training": True},
        [*(np.array([n], np.int64) for n in (77, 0, 8)), np.ones(1, np.uint8)],
    ),
    ({"kind": "count_keys", "shards": [[3, 0]]}, []),
    ({"kind": "count_idle", "items": [[3, 0, 1, 8]]}, []),
    ({"kind": "idle_keys", "items": [[3, 0, 1, 8, 0, 1]]}, []),
    ({"kind": "reset_rows", "items": [[1, 0, 2, 0]]}, [IDS]),
    ({"kind": "remove_keys", "items": [[3, 0, 2, 2, 1]]}, [IDS, IDS, np.array([1, 8])]),
    ({"kind": "check", "changes": [PUSH, ASSIGN]}, CHANGED),
    ({**PART, "kind": "prepare", "changes": [PUSH, ASSIGN], "commits": [HELD["key"]]}, CHANGED),
    (DECIDE, CHANGED),
    ({**DECIDE, "commits": [HELD["key"]]}, CHANGED),
    ({"kind": "commit", "trainer": "t", "low_water": 1, "commits": [HELD["key"]]}, []),
    ({**HELD, "kind": "abort"}, []),
    ({"kind": "apply_round", "parts": [["t", [4, 0, 0]]], "gradients": 1}, []),
    ({"kind": "fence", "trainer": "t"}, []),
    ({"kind": "complete", "trainer": "lost", "keys": [[2, 0, 0]]}, []),
    ({"kind": "snapshot", "snapshot": "x", "variables": [["table", 1]], "ended": ["y"]}, []),
    ({"kind": "drop", "snapshot": "y"}, []),
    ({**LOAD, "kind": "verify"}, []),
    ({**LOAD, "kind": "load", "ledger": {"low_water": 0, "applied": [[0, 0, "1"]]}}, []),
    ({"kind": "give_up_load", "load": "l"}, []),
]
# Requests that write files, which the tests of this module do not send.
WITH_FILES = {"write"}

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 12) | st.floats(-3, 3) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


def new_store() -> Store:
    """Returns a store that holds one part of a live trainer and one of a lost trainer."""
    store = Store()
    for spec in (TABLE, COUNTER, KEYS):
        store.create(spec, 0)
    for trainer, key in (("t", HELD["key"]), ("lost", [2, 0, 0])):
        part = {**HELD, "trainer": trainer, "key": key, "kind": "prepare", "changes": [PUSH]}
        ask(store, part, [IDS, ROWS])
    ask(store, {"kind": "fence", "trainer": "lost"}, [])
    return store


def ask(store: Store, header: dict[str, Any], arrays: list[Any]) -> dict[str, Any]:
    body = LateBody.of(arrays)
    return answer(store, Call(header, None if body is None else body.to_buffer()))[0]


def contents_of(store: Store) -> Any:
    """Returns all that a request may change, except the low-water mark of ended closures."""
    shards = [(shard.spec, shard.version, shard.slab.tobytes()) for shard in store.shards()]
    ledger = {**store.ledger_state(), "low_water": None}
    counts = {k: n for k, n in store.commit_counts().items() if k != "ledger_blocks"}
    return shards, ledger, counts, store.snapshots, store._unfilled, store.read_ahead[0]


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the path of every value in a header, except its top-level ``kind``."""
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, each in items:
        if (*at, key) != ("kind",):
            yield (*at, key)
            yield from places(each, (*at, key))


def test_every_request_kind_has_a_schema_and_well_formed_requests_succeed() -> None:
    assert REQUESTS.keys() == _HANDLERS.keys()
    assert {header["kind"] for header, _ in WELL_FORMED} == REQUESTS.keys() - WITH_FILES
    for header, arrays in WELL_FORMED:
        assert "error" not in json.dumps(ask(new_store(), header, arrays))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_malformed_request_changes_nothing(data: st.DataObject) -> None:
    header, arrays = copy.deepcopy(data.draw(st.sampled_from(WELL_FORMED)))
    *path, last = data.draw(st.sampled_from(list(places(header))))
    holder: Any = header
    for key in path:
        holder = holder[key]
    if isinstance(holder, dict) and data.draw(st.booleans()):
        del holder[last]
    else:
        holder[last] = data.draw(JSON)
    store = new_store()
    before = contents_of(store)
    try:
        reply = ask(store, header, arrays)
    except DataServiceError:
        assert contents_of(store) == before
        return
    # The reply to ``both`` carries the error of a first request that is refused alone.
    if header["kind"] == "both" and "error" in reply["first"]:
        assert contents_of(store) == before


@pytest.mark.parametrize(
    ("kind", "changed", "named"),
    [
        ("pull", {"items": [[1, 0, "2", -1]]}, r"items\[0\]\[2\] .* got '2'"),
        ("pull", {"items": [[1, 0, -2, -1]]}, r"items\[0\]\[2\] .* got -2"),
        ("decide", {"entries": [[5, 0, 0, {"value": 1}]]}, r"entries\[0\]\[3\].value .* got 1"),
        ("decide", {"entries": [[5, 0, 0, None, 0, 1]]}, r"entries\[0\]\[5\] .* text, got 1"),
        ("decide", {"rows": [{"reader": "r"}]}, r"rows\[0\].service .* must be given, got None"),
        ("decide", {"changes": [{**PUSH, "optimizer": "{}"}]}, r"optimizer.name of .* 'push'"),
        ("apply_round", {"gradients": True}, "gradients .* got True"),
        ("apply_round", {"gradients": 0}, "gradients=0 has 1 closures"),
        ("complete", {"keys": [[2, 0]]}, r"keys\[0\] .* a list of 3, got \[2, 0\]"),
        ("create", {"shards": [0, 1]}, "shard 1 of it"),
        ("load", {"ledger": {"low_water": 0, "applied": [[0, 0, "0x"]]}}, "hexadecimal"),
        ("push", {"iterations": [1, 0]}, "cannot count an optimizer's iterations"),
    ],
)
def test_error_names_malformed_field_and_its_value(
    kind: str, changed: Mapping[str, Any], named: str
) -> None:
    header, arrays = next(pair for pair in WELL_FORMED if pair[0]["kind"] == kind)
    store = new_store()
    before = contents_of(store)
    with pytest.raises(InvalidArgumentError, match=named):
        ask(store, {**header, **changed}, arrays)
    assert contents_of(store) == before


def test_long_value_is_abbreviated_in_error() -> None:
    with pytest.raises(InvalidArgumentError, match=r"got 'x{100,250}\.\.\.: have the program"):
        check_header(REQUESTS, "pull", {"items": "x" * 1000})


@pytest.mark.parametrize("action", sorted(ACTIONS))
@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"session": 3}'])
def test_malformed_action_is_refused(action: str, body: bytes) -> None:
    with pytest.raises(DataServiceError):
        _request(action, body)


def test_failed_create_does_not_use_up_the_variable_id() -> None:
    store = Store()
    wrong: VariableSpec = make_spec(initializer=InitializerSpec(name="unheard of"))
    for spec in (wrong, wrong, TABLE):
        if spec is wrong:
            with pytest.raises(InvalidArgumentError, match="unheard of"):
                ask(store, {"kind": "create", "spec": spec_to_json(spec), "shards": [0]}, [])
    assert ask(store, {"kind": "create", "spec": spec_to_json(TABLE), "shards": [0]}, []) == {
        "left": 0
    }
