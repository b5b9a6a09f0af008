"""The steps of an eviction as messages to several servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from pstrain import initializers
from pstrain.features.eviction import Eviction, Table, evict
from pstrain.features.key_map import KeyFields, distinct
from pstrain.kernels.keys import NO_KEY, VACATED
from pstrain.paramserver.messages import Call
from pstrain.paramserver.requests import answer
from pstrain.paramserver.store import Store
from pstrain.trainer.key_messages import ServerSteps
from pstrain.trainer.outgoing import Answer
from pstrain.vocabulary import ShardSpec
from tests.unit.pstrain.paramserver.shard_cases import make_spec

ROWS = 3_000
KEYS = 2_000


class Servers:
    """Two servers with a mapping on three shards, and a table that is cut elsewhere."""

    def __init__(self) -> None:
        self.stores = [Store(), Store()]
        self.fields = KeyFields.of([ROWS], [1])
        cuts = [0, *self.fields.cuts()[2:], ROWS]
        self.keys = make_spec(
            1, 1, id=3, name="keys", dtype="int64", shape=(ROWS,),
            initializer=initializers.constant(NO_KEY), shards=shards(cuts),
        )  # fmt: skip
        self.table = make_spec(ROWS + 5, 2, id=4, shards=shards([0, 700, 1_000, ROWS + 5]))
        for spec in (self.keys, self.table):
            for index, shard in enumerate(spec.shards):
                self.stores[shard.ps].create(spec, index)
        self.sent: list[dict[str, Any]] = []

    def ask(self, messages: Mapping[int, Any]) -> dict[int, Answer]:
        replies = {}
        for ps, (header, body) in messages.items():
            self.sent.append(header)
            call = Call(header, None if body is None else body.to_buffer())
            reply, late = answer(self.stores[ps], call)
            replies[ps] = Answer(reply, None if late is None else late.to_buffer())
        return replies

    def claim(self, keys: Any) -> np.ndarray:
        """Trains on keys; returns their rows."""
        given = np.asarray(keys, np.int64)
        query, _, inverse = distinct(given, np.zeros_like(given), self.fields)
        query = query._replace(may_claim=np.ones(len(query.keys), np.uint8))
        rows = np.empty(len(query.keys), np.int64)
        for index, part, (asked, _, starts, stops, may) in query.by_shard(self.keys):
            store = self.stores[self.keys.shards[index].ps]
            shard = store.shard(3, index)
            rows[part] = store.claim(shard, asked, starts, stops, may, is_training=True)
        return rows[inverse]

    def values(self, spec: Any) -> np.ndarray:
        slabs = [
            self.stores[shard.ps].shard(spec.id, i).slab for i, shard in enumerate(spec.shards)
        ]
        return np.concatenate(slabs)


def shards(cuts: list[int]) -> tuple[ShardSpec, ...]:
    return tuple(
        ShardSpec(ps=k % 2, row_start=cuts[k], row_stop=cuts[k + 1]) for k in range(len(cuts) - 1)
    )


@pytest.mark.parametrize("chunk_bytes", [1, 700, 32 << 20])
def test_eviction_is_the_same_in_small_messages(chunk_bytes: int) -> None:
    servers = Servers()
    rows, initial = servers.claim(range(KEYS)), servers.values(servers.table)
    assert (rows > 0).all()
    steps = ServerSteps(servers.ask, "session", chunk_bytes)
    tables = (Table(servers.table, np.array([5])),)
    everything = Eviction(servers.keys, servers.fields, (None,), tables)
    assert evict(everything, steps) == 0
    assert {store.shard(3, i).uses.period for i, store in enumerate(servers.stores)} == {1}
    for store in servers.stores:
        for shard in store.shards():
            if shard.spec.id == 4:
                shard.slab[...] = 7
    late = servers.claim(range(500, 800))
    assert evict(everything._replace(keep=(400,)), steps) == KEYS - 400
    keys = servers.values(servers.keys)[:, 0]
    np.testing.assert_array_equal(keys[late], np.arange(500, 800))
    assert np.count_nonzero(keys > VACATED) == 400
    gone = rows[keys[rows] <= VACATED]
    assert len(gone) == KEYS - 400
    expected = np.full_like(initial, 7)
    expected[gone + 5] = initial[gone + 5]
    np.testing.assert_array_equal(servers.values(servers.table), expected)
    assert {header["session"] for header in servers.sent} == {"session"}
    assert (len(servers.sent) < 20) == (chunk_bytes > 700)


@pytest.mark.parametrize("evictions", [1, 2])
def test_messages_that_arrive_again_change_no_key_that_came_back_and_no_row_of_it(
    evictions: int,
) -> None:
    servers = Servers()
    changes: list[dict[int, Any]] = []
    servers.claim(range(KEYS))

    def ask(messages: Mapping[int, Any]) -> dict[int, Answer]:
        changes.extend(
            {ps: message}
            for ps, message in messages.items()
            if message[0]["kind"] in ("reset_rows", "remove_keys")
        )
        return servers.ask(messages)

    steps = ServerSteps(ask, "session", 700)
    tables = (Table(servers.table, np.array([5])),)
    everything = Eviction(servers.keys, servers.fields, (0,), tables)
    assert evict(everything, steps) == KEYS
    late = changes[:]
    rows = servers.claim(range(KEYS))
    for _ in range(1, evictions):
        evict(everything._replace(keep=(None,)), steps)
    for store in servers.stores:
        for shard in store.shards():
            if shard.spec.id == 4:
                shard.slab[...] = 7
    for message in late:
        servers.ask(message)
    assert (servers.values(servers.table) == 7).all()
    np.testing.assert_array_equal(servers.values(servers.keys)[rows, 0], np.arange(KEYS))
