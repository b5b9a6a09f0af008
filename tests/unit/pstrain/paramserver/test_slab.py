"""Slabs: readers see the right values while rows move, and memory is given back."""

from __future__ import annotations

import itertools
import math
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataservice.runtime.exchanges.message import Message
from pstrain.config import ParameterConfig
from pstrain.paramserver import messages
from pstrain.paramserver import slab as module
from pstrain.paramserver.messages import Call, LateBody
from pstrain.paramserver.requests import answer
from pstrain.paramserver.shard import Shard
from pstrain.paramserver.slab import Slab
from pstrain.paramserver.store import Store
from pstrain.trainer.client import RemoteParameters
from pstrain.trainer.connections import Request
from pstrain.vocabulary import Fetch, Update
from tests.unit.pstrain.paramserver.shard_cases import ADAGRAD, ADAM, SGD, ids, make_spec, ones


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PART_BYTES", 1024)


def filled(rows: int, width: int, dtype: str = "float32") -> tuple[Slab, np.ndarray]:
    slab = Slab((rows, width), dtype)
    slab.array[...] = np.arange(rows * width).reshape(rows, width)
    return slab, slab.array.copy()


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(0, 300),
    width=st.sampled_from([1, 3, 16]),
    slots=st.integers(0, 20),
    steps=st.lists(st.integers(1, 5_000), max_size=5),
    dtype=st.sampled_from(["float32", "int64"]),
    seed=st.integers(0, 99),
)
def test_rows_are_read_while_they_move(
    rows: int, width: int, slots: int, steps: list[int], dtype: str, seed: int
) -> None:
    slab, expected = filled(rows, width, dtype)
    firsts = np.arange(slots).astype(dtype)
    slab.widen(width, firsts, is_kept=False)
    chance = np.random.default_rng(seed)
    for most_bytes in [*steps, None]:
        slab.move(most_bytes)
        picked = chance.integers(0, rows, 20 if rows else 0)
        out = np.empty((len(picked), width), dtype)
        slab.gather(width, picked + 7, 7, out)
        np.testing.assert_array_equal(out, expected[picked])
        start, stop = sorted(chance.integers(0, rows + 1, 2))
        out = np.empty((stop - start, width), dtype)
        slab.read(int(start), int(stop), out)
        np.testing.assert_array_equal(out, expected[start:stop])
    np.testing.assert_array_equal(slab.array[:, :width], expected)
    np.testing.assert_array_equal(slab.array[:, width:], np.tile(firsts, (rows, 1)))
    assert slab.move() == 0


def test_memory_of_moved_rows_is_released_unless_kept_for_readers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_PART_BYTES", 1 << 20)
    for is_kept in (False, True):
        slab, expected = filled(200_000, 16)
        old = slab.array
        slab.widen(16, np.zeros(16, np.float32), is_kept=is_kept)
        while slab.move(1):
            pass
        np.testing.assert_array_equal(slab.array[:, :16], expected)
        assert old[: 8 << 14].any() == is_kept


def test_readers_do_not_see_released_memory() -> None:
    shard = Shard(make_spec(100_000, 16), 0)
    expected, failures = shard.slab.copy(), []
    stopping = threading.Event()

    def read_on() -> None:
        chance = np.random.default_rng(0)
        out = np.empty((500, 16), np.float32)
        while not stopping.is_set():
            picked = chance.integers(0, 100_000, 500)
            shard.gather(picked, out)
            if not np.array_equal(out, expected[picked]):
                failures.append("gather")
            shard.read(90_000, 90_500, out)
            if not np.array_equal(out, expected[90_000:90_500]):
                failures.append("read")

    reading = threading.Thread(target=read_on)
    reading.start()
    try:
        for optimizer in [ADAGRAD, ADAM] * 5:
            while shard.make_slots(optimizer, 1 << 20):
                pass
    finally:
        stopping.set()
        reading.join(30)
    assert not failures


@pytest.mark.parametrize("then", ["update", "other", "assign", "scatter", "snapshot", "restore"])
def test_operation_during_slot_creation_completes_it_first(then: str) -> None:
    shard, twin = (Shard(make_spec(1_000, 16), 0) for _ in range(2))
    assert shard.make_slots(ADAGRAD, 1) > 0
    twin.make_slots(ADAGRAD)
    for one in (shard, twin):
        change(one, then)
    np.testing.assert_array_equal(shard.slab, twin.slab)
    assert shard.make_slots(ADAGRAD if then != "other" else SGD, 1) == 0
    assert (shard.optimizer, shard.column_widths) == (twin.optimizer, twin.column_widths)


def change(shard: Shard, then: str) -> None:
    match then:
        case "update":
            shard.update(ADAGRAD, ids(3, 900), ones(2, 16))
        case "other":
            shard.update(SGD, ids(3, 900), ones(2, 16))
        case "assign":
            shard.assign("add", 990, ones(5, 16))
        case "scatter":
            shard.scatter("mul", ids(3, 900), ones(2, 16) * 3)
        case "snapshot":
            read: list[Any] = [block.columns() for block in shard.snapshot().blocks()]
            np.testing.assert_array_equal(read[0][0], shard.slab[:, :16])
        case "restore":
            shard.restore(5, [ones(2, 16), ones(2, 16)], "adagrad")


def test_table_and_slots_are_created_in_bounded_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pstrain.paramserver.store._WORK_BYTES", 64_000)
    monkeypatch.setattr("pstrain.paramserver.store._WORK_S", 0)
    store, whole = Store(), Store()
    spec = make_spec(10_000, 16)
    left = [store.make(spec, 0)]
    assert store.shards() == []
    while left[-1]:
        left.append(store.make(spec, 0))
    assert left == sorted(left, reverse=True)
    assert len(set(left)) == 10
    np.testing.assert_array_equal(store.shard(spec.id, 0).slab, whole.create(spec, 0).slab)
    assert store.make(spec, 0) == 0
    left = [store.make_slots(store.shards(), ADAGRAD)]
    while left[-1]:
        left.append(store.make_slots(store.shards(), ADAGRAD))
    assert len(left) > 5


class _LocalConnections:
    """Connections to a store in this process."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.asked: list[str] = []

    def ask(self, requests: Any, _timeout_s: float, *, repeat: bool) -> dict[int, Message]:  # noqa: ARG002
        return {ps: self._answer(request) for ps, request in requests.items()}

    def _answer(self, request: Request) -> Message:
        header = messages.decode_header(request.header)
        self.asked.append(header["kind"])
        body = request.body.to_buffer() if isinstance(request.body, LateBody) else request.body
        reply, answered = answer(self.store, Call(header, body))
        if isinstance(answered, LateBody):
            answered = answered.to_buffer()
        return Message(messages.encode_header(reply), answered)


@pytest.mark.parametrize("shape", [(), (5,), (5, 2), (0, 3), (3, 0)])
@pytest.mark.parametrize("dtype", ["float32", "int8", "bool"])
def test_small_variable_is_created_with_its_values_by_one_message(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], dtype: str
) -> None:
    parameters = RemoteParameters(["nowhere:1"], token="t", session="s")
    bound = _LocalConnections(Store())
    monkeypatch.setattr(parameters, "_connections", bound)
    # All rows are in three shards, the last of which has none.
    rows = shape[0] if shape else 1
    width = math.prod(shape[1:])
    spec = make_spec(rows, width, cuts=(rows // 2, rows), shape=shape, dtype=dtype)
    value = (np.arange(rows * width) % 2).reshape(shape).astype(dtype)
    for _ in range(2):  # the second time as after a lost reply
        parameters.create(spec, value)
    assert bound.asked == ["create"] * 2
    np.testing.assert_array_equal(parameters.read(spec), value)
    parameters.assign(spec, "set", np.zeros(shape, dtype))
    parameters.create(spec, value)
    assert not parameters.read(spec).any()


def test_large_table_is_created_by_several_bounded_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pstrain.paramserver.store._WORK_BYTES", 64_000)
    monkeypatch.setattr("pstrain.paramserver.store._WORK_S", 0)
    config = ParameterConfig(chunk_bytes=1_000)
    parameters = RemoteParameters(["nowhere:1"], token="t", session="s", config=config)
    bound = _LocalConnections(Store())
    monkeypatch.setattr(parameters, "_connections", bound)
    spec = make_spec(10_000, 16)
    parameters.create(spec)
    assert bound.asked == ["create"] * 10
    lookup: Any = parameters.fetch([Fetch(spec, np.array([7]))])[0]
    for _ in range(2):
        parameters.apply([Update(spec, ones(1, 16), lookup)], ADAGRAD)
    kinds = [kind for kind, _ in itertools.groupby(bound.asked)]
    assert kinds == ["create", "pull", "slots", "push"]
    assert bound.asked.count("slots") > 10
    twin = Shard(spec, 0)
    for _ in range(2):
        twin.update(ADAGRAD, ids(7), ones(1, 16))
    np.testing.assert_array_equal(bound.store.shard(1, 0).slab, twin.slab)
