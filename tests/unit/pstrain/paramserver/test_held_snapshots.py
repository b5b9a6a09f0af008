"""Snapshots on a server end for good: the server keeps nothing for a dropped snapshot."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from pstrain import initializers
from pstrain.config import ParameterConfig
from pstrain.errors import NotFoundError, ServerLostError
from pstrain.features.key_map import KeyMaps
from pstrain.kernels.keys import NO_KEY
from pstrain.paramserver.held_snapshots import HeldSnapshots
from pstrain.paramserver.messages import Call
from pstrain.paramserver.requests import answer
from pstrain.paramserver.shard import Shard
from pstrain.paramserver.store import Store
from pstrain.trainer.snapshot import RemoteSnapshot
from pstrain.vocabulary import spec_to_json
from tests.unit.pstrain.paramserver.shard_cases import SGD, ids, make_spec, ones, values_of

SPEC = make_spec()


def ask(store: Store, **header: Any) -> dict[str, Any]:
    return answer(store, Call(header, None))[0]


def take(store: Store, snapshot: str = "s", **more: Any) -> dict[str, Any]:
    return ask(store, kind="snapshot", snapshot=snapshot, variables=[["v", SPEC.id]], **more)


@pytest.fixture
def store() -> Store:
    store = Store()
    ask(store, kind="create", spec=spec_to_json(SPEC), shards=[0])
    return store


def kept_bytes(shard: Shard) -> int:
    """Changes every row; returns how many bytes snapshots keep because of that."""
    shard.update(SGD, None, ones(10))
    return sum(snapshot.kept_bytes for snapshot in shard._watchers._snapshots)


def test_dropped_snapshot_keeps_no_rows(store: Store) -> None:
    take(store)
    assert store.snapshots == 1
    assert kept_bytes(store.shard(1, 0)) > 0
    for _ in range(2):
        ask(store, kind="drop", snapshot="s")
    assert store.snapshots == 0
    assert kept_bytes(store.shard(1, 0)) == 0


@pytest.mark.parametrize("was_taken", [True, False])
def test_snapshot_request_after_its_drop_is_refused(store: Store, was_taken: bool) -> None:
    if was_taken:
        take(store)
    ask(store, kind="drop", snapshot="s")
    with pytest.raises(NotFoundError, match="given up"):
        take(store)
    assert store.snapshots == 0
    assert kept_bytes(store.shard(1, 0)) == 0
    with pytest.raises(NotFoundError, match="given up"):
        ask(store, kind="write", snapshot="s", directory="x", writer="ps0")
    take(store, "another")
    assert store.snapshots == 1


def test_drop_while_snapshot_is_being_taken_leaves_no_snapshot(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The drop comes as late as possible: rows are held, but the snapshot is not registered yet."""
    snapshot_of = Shard.snapshot

    def dropped_meanwhile(shard: Shard, *arguments: Any) -> Any:
        taken = snapshot_of(shard, *arguments)
        ask(store, kind="drop", snapshot="s")
        return taken

    monkeypatch.setattr(Shard, "snapshot", dropped_meanwhile)
    with pytest.raises(NotFoundError, match="given up"):
        take(store)
    assert store.snapshots == 0
    assert kept_bytes(store.shard(1, 0)) == 0


def test_drop_while_snapshot_request_waits_for_lock_leaves_no_snapshot(store: Store) -> None:
    errors: list[NotFoundError] = []

    def late() -> None:
        with pytest.raises(NotFoundError) as told:
            take(store)
        errors.append(told.value)

    thread = threading.Thread(target=late)
    with store.quiet():
        thread.start()
        ask(store, kind="drop", snapshot="s")
    thread.join(30)
    assert errors
    assert store.snapshots == 0


def test_drops_of_the_newest_snapshots_are_remembered() -> None:
    held = HeldSnapshots()
    for _ in range(2_000):
        held.drop("a")
        held.drop("b")
    with pytest.raises(NotFoundError, match="snapshot a was given up"):
        held.find("a")
    for number in range(2_000):
        held.drop(str(number))
    assert held.find("a") is None, "the memory of drops is bounded"
    with pytest.raises(NotFoundError, match="snapshot 1999 was given up"):
        held.hold("1999", [])
    assert len(held) == 0


class Network:
    """Two servers, asked over connections that may fail."""

    session = "session"
    config = ParameterConfig()
    addresses = ("a:1", "b:1")

    def __init__(self, stores: list[Store]) -> None:
        self.undropped_snapshots: list[str] = []
        self.key_maps = KeyMaps()
        self.before_each: Callable[[], None] = lambda: None
        self.is_broken: Callable[[int, dict[str, Any]], bool] = lambda _ps, _header: False
        self._stores = stores

    def ask_all(
        self,
        headers: Mapping[int, dict[str, Any]],
        *,
        timeout_s: float,  # noqa: ARG002
        repeat: bool = True,  # noqa: ARG002
    ) -> dict[int, dict[str, Any]]:
        replies = {}
        for ps, header in headers.items():
            self.before_each()
            if self.is_broken(ps, header):
                raise ServerLostError(f"no way to {ps}")
            replies[ps] = ask(self._stores[ps], **header)
        return replies


def test_next_snapshot_repeats_drops_that_did_not_reach_server(store: Store) -> None:
    other = Store()
    network = Network([store, other])
    first = RemoteSnapshot(network, {"v": SPEC}, None)
    assert [store.snapshots, other.snapshots] == [1, 1]
    network.is_broken = lambda ps, _: ps == 1
    first.close()
    assert [store.snapshots, other.snapshots] == [0, 1]
    with pytest.raises(ServerLostError):
        RemoteSnapshot(network, {"v": SPEC}, None)
    network.is_broken = lambda _ps, _header: False
    second = RemoteSnapshot(network, {"v": SPEC}, None)
    assert [store.snapshots, other.snapshots] == [1, 1]
    assert network.undropped_snapshots == []
    second.close()
    assert [store.snapshots, other.snapshots] == [0, 0]


def test_undelivered_drops_are_bounded(store: Store) -> None:
    network = Network([store, Store()])
    network.is_broken = lambda _ps, header: header["kind"] == "drop"
    for _ in range(100):
        RemoteSnapshot(network, {"v": SPEC}, None).close()
    assert 0 < len(network.undropped_snapshots) < 100
    assert store.snapshots == 1


def test_trained_rows_are_saved_with_their_keys_when_save_takes_no_barrier() -> None:
    """The save takes no barrier, as in V1: workers go on while servers are asked in turn."""
    keys = make_spec(
        100, 1, id=7, shape=(100,), dtype="int64", initializer=initializers.constant(NO_KEY)
    )
    rows, stores = make_spec(100), [Store(), Store()]
    key_shard, table = stores[0].create(keys, 0), stores[1].create(rows, 0)
    untrained, network = values_of(table), Network(stores)
    network.key_maps.register(keys.id)

    def step() -> None:
        (row,) = key_shard.claim(
            ids(key_shard.count_keys()), ids(1), ids(100), np.ones(1, np.uint8)
        )
        table.update(SGD, ids(row), ones(1))

    network.before_each = step
    taken = RemoteSnapshot(network, {"keys": keys, "table": rows}, None)
    step()
    saved = {
        name: np.concatenate([block.columns()[0] for block in each.blocks()])
        for store in stores
        for name, each in store.snapshot(taken.moment)
    }
    trained = (saved["table"] != untrained).any(axis=1)
    assert trained.any()
    assert (saved["keys"][trained] != NO_KEY).all()
    assert taken.size_bytes == sum(values.nbytes for values in saved.values())
