"""Rows and gradients as bfloat16: where they are rounded, and what travels as it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pstrain import buffers
from pstrain.errors import DataLossError, InvalidArgumentError
from pstrain.features.field_groups import FieldGroups
from pstrain.paramserver import messages, pieces, transport
from pstrain.paramserver.changes import WHOLE
from pstrain.paramserver.commits import PartKey
from pstrain.paramserver.messages import Call, LateBody
from pstrain.paramserver.pieces import Arrived
from pstrain.paramserver.requests import answer
from pstrain.paramserver.store import Store
from pstrain.trainer.outgoing import Push
from pstrain.trainer.pull import Pull
from pstrain.variables.rows import look_up
from pstrain.vocabulary import Fetch, OptimizerSpec, VariableSpec
from tests.unit.bfloat16_twin import rounded
from tests.unit.pstrain.paramserver.shard_cases import ADAGRAD, ADAM, SGD, make_spec, values_of

TABLE = make_spec(40, 17, cuts=(11, 30))
BIAS = make_spec(1, 9, id=2, name="bias")
COUNTS = make_spec(6, 1, dtype="int64", id=3, name="counts")
IDS = np.array([39, 3, 11, 3, 29, 30])
FOUND = look_up(TABLE, IDS)


def received(header: Any, body: Any, *, in_pieces: bool = False) -> Call:
    """Returns a message as its receiver gets it by shared memory or, ``in_pieces``, by Flight."""
    if in_pieces:
        sent: list[Any] = []
        pieces.send(lambda *each: sent.append(pieces.Message(*each)), b"", body)
        stream = iter(sent)
        arrived = pieces.receive(lambda: next(stream, None))
        assert isinstance(arrived, Arrived)
        return Call(header, arrived.body)
    return Call(header, body.to_buffer() if isinstance(body, LateBody) else body)


class Server:
    """A store of all three variables, asked by messages.

    ``sizes_bytes``: the size of the body of each reply, 0 if it has none.
    """

    def __init__(self, in_pieces: bool = False) -> None:
        self.store = Store(first_version=7)
        self.in_pieces = in_pieces
        self.sizes_bytes: list[int] = []
        for spec in (TABLE, BIAS, COUNTS):
            for index in range(len(spec.shards)):
                self.store.create(spec, index)

    def values(self, spec: VariableSpec) -> np.ndarray:
        shards = [self.store.shard(spec.id, index) for index in range(len(spec.shards))]
        return np.concatenate([values_of(shard) for shard in shards])

    def ask(self, header: Any, body: Any) -> Call:
        call = received(header, body, in_pieces=self.in_pieces)
        reply, found = answer(self.store, call)
        self.sizes_bytes.append(found.room if isinstance(found, LateBody) else 0)
        return received(reply, found, in_pieces=self.in_pieces)

    def fetch(self, fetches: list[Fetch], known: Any = None) -> list[Any]:
        pull = Pull(fetches, {} if known is None else known, 1 << 20, transport.BFLOAT16)
        for ps, message in pull.messages().items():
            reply = self.ask(*message)
            pull.receive(ps, reply.header["versions"], reply.body)
        return pull.values()


@pytest.fixture(params=[False, True], ids=["whole", "in pieces"])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Server:
    if request.param:
        monkeypatch.setattr(messages, "LARGE_BYTES", 64)
        monkeypatch.setattr(pieces, "PIECE_BYTES", 48)
    return Server(request.param)


def push(
    table: np.ndarray,
    bias: np.ndarray,
    optimizer: OptimizerSpec = SGD,
    transport_dtype: str = transport.BFLOAT16,
) -> tuple[Any, LateBody]:
    """Returns a push of gradients for the table's rows ``FOUND`` and for the whole bias."""
    made = Push(transport_dtype)
    for index in range(len(TABLE.shards)):
        part = slice(FOUND.offsets[index], FOUND.offsets[index + 1])
        made.add(TABLE, index, FOUND.unique[part], table[part])
    made.add(BIAS, 0, None, bias)
    header, body = made.message(optimizer=optimizer.text, owner=None, iterations=None)
    assert isinstance(body, LateBody)
    return header, body


def normal(rows: int, width: int) -> np.ndarray:
    return np.random.default_rng(width).normal(size=(rows, width)).astype(np.float32)


def test_pulled_float_values_are_rounded_and_integers_are_exact(server: Server) -> None:
    server.store.shard(3, 0).assign("set", 0, np.array([[1 << 40]] * 6))
    lookup, bias, counts = server.fetch([Fetch(TABLE, IDS), Fetch(BIAS), Fetch(COUNTS)])
    np.testing.assert_array_equal(lookup.unique[lookup.inverse], IDS)
    np.testing.assert_array_equal(lookup.rows, rounded(server.values(TABLE)[lookup.unique]))
    assert lookup.rows.dtype == bias.dtype == np.float32
    np.testing.assert_array_equal(bias, rounded(server.values(BIAS)))
    np.testing.assert_array_equal(counts, server.values(COUNTS))
    assert not np.array_equal(bias, server.values(BIAS))


def test_pulled_rows_of_field_groups_are_rounded(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffers, "SMALLEST_BYTES", 0)
    by_field = [IDS.reshape(3, 2), np.arange(40).reshape(-1, 4)]
    found = server.fetch([Fetch(TABLE, ids) for ids in by_field])
    for lookup, ids in zip(found, by_field, strict=True):
        assert isinstance(lookup.found, FieldGroups)
        np.testing.assert_array_equal(lookup.unique, look_up(TABLE, ids).unique)
        np.testing.assert_array_equal(lookup.rows, rounded(server.values(TABLE)[lookup.unique]))


def test_unchanged_dense_variable_is_not_sent_again(server: Server) -> None:
    known: Any = {}
    (first,) = server.fetch([Fetch(BIAS)], known)
    (second,) = server.fetch([Fetch(BIAS)], known)
    assert first is second or np.shares_memory(first, second)
    server.store.shard(2, 0).assign("add", 0, np.ones((1, 9), np.float32))
    (third,) = server.fetch([Fetch(BIAS)], known)
    np.testing.assert_array_equal(third, rounded(server.values(BIAS)))
    assert [size > 0 for size in server.sizes_bytes] == [True, False, True]


def test_pulled_rows_are_rounded_during_slot_creation() -> None:
    server = Server()
    shard = server.store.shard(1, 0)
    before = server.values(TABLE)
    shard._rows.widen(17, np.zeros(17, np.float32), is_kept=False)
    shard._rows.widening._step = 4  # type: ignore[union-attr]
    assert shard._rows.move(1) == 7
    (lookup, whole) = server.fetch([Fetch(TABLE, np.arange(11)), Fetch(TABLE)])
    np.testing.assert_array_equal(lookup.rows, rounded(before[:11]))
    np.testing.assert_array_equal(whole, rounded(before))


def test_pushed_gradients_are_rounded_and_applied_in_float32(server: Server) -> None:
    table, bias = normal(5, 17), normal(1, 9)
    expected = server.values(TABLE)
    expected[FOUND.unique] -= np.float32(0.5) * rounded(table)
    of_bias = server.values(BIAS) - np.float32(0.5) * rounded(bias)
    server.ask(*push(table, bias))
    np.testing.assert_array_equal(server.values(TABLE), expected)
    np.testing.assert_array_equal(server.values(BIAS), of_bias)


def test_gradients_of_whole_shards_are_applied_to_their_rows(server: Server) -> None:
    gradient, made = normal(40, 17), Push(transport.FLOAT32)
    for index, (start, stop) in enumerate([(0, 11), (11, 30), (30, 40)]):
        made.add(TABLE, index, None, gradient[start:stop])
    expected = server.values(TABLE) - np.float32(0.5) * gradient
    server.ask(*made.message(optimizer=SGD.text, owner=None, iterations=None))
    np.testing.assert_array_equal(server.values(TABLE), expected)


@pytest.mark.parametrize("optimizer", [ADAGRAD, ADAM], ids=["per value", "per value and row"])
def test_optimizer_slots_follow_rounded_gradients(server: Server, optimizer: OptimizerSpec) -> None:
    table, bias, other = normal(5, 17), normal(1, 9), Server()
    for _ in range(2):
        server.ask(*push(table, bias, optimizer))
        other.ask(*push(rounded(table), rounded(bias), optimizer, transport.FLOAT32))
    for one, same in zip(server.store.shards(), other.store.shards(), strict=True):
        np.testing.assert_array_equal(one.slab, same.slab)


def test_repeated_part_in_bfloat16_is_applied_once(server: Server) -> None:
    table = normal(5, 17)
    header, body = push(table, normal(1, 9))
    before = server.values(TABLE)
    part = {"trainer": "t", "low_water": 0}
    for _ in range(2):
        prepare = {**part, "kind": "prepare", "key": [0, 0, 0], "changes": [header]}
        server.ask(prepare, body)
    np.testing.assert_array_equal(server.values(TABLE), before)
    for _ in range(2):
        server.ask({**part, "kind": "commit", "commits": [[0, 0, 0]]}, None)
    before[FOUND.unique] -= np.float32(0.5) * rounded(table)
    np.testing.assert_array_equal(server.values(TABLE), before)


def test_round_sums_rounded_gradients_in_float32(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Arrays of any size use recycled memory, which a held part must keep from being reused.
    monkeypatch.setattr(buffers, "SMALLEST_BYTES", 0)
    tables = [normal(5, 17), 3 * normal(5, 17)]
    before = server.values(TABLE)
    for closure, table in enumerate(tables):
        header, body = push(table, normal(1, 9))
        part = {"trainer": "t", "key": [closure, 0, 0], "low_water": 0}
        server.ask({**part, "kind": "prepare", "changes": [header]}, body)
    server.store.apply_round([("t", PartKey(closure, 0, 0)) for closure in range(2)], 2)
    mean = (rounded(tables[0]) + rounded(tables[1])) / np.float32(2)
    before[FOUND.unique] -= np.float32(0.5) * mean
    np.testing.assert_array_equal(server.values(TABLE), before)


def test_read_is_exact_unless_it_asks_for_bfloat16(server: Server) -> None:
    header = {"kind": "read", "shard": [1, 0], "rows": [0, 11]}
    (exact,) = messages.body_arrays(server.ask(header, None).body, [("float32", (11, 17))])
    np.testing.assert_array_equal(exact, server.values(TABLE)[:11])
    named = {**header, **transport.dtype_fields(transport.BFLOAT16)}
    (narrow,) = messages.body_arrays(server.ask(named, None).body, [("uint16", (11, 17))])
    np.testing.assert_array_equal(transport.widest(narrow), rounded(exact))


def test_body_of_wrong_size_or_dtype_is_refused_and_changes_nothing(server: Server) -> None:
    header, body = push(normal(5, 17), normal(1, 9))
    before = server.values(TABLE)
    unnamed = {key: value for key, value in header.items() if key != "transport_dtype"}
    with pytest.raises(DataLossError, match="expected"):
        server.ask(unnamed, body)
    full = Push()
    full.add(BIAS, 0, None, normal(1, 9))
    header, body = full.message(optimizer=SGD.text, owner=None, iterations=None)
    with pytest.raises(DataLossError, match="expected 18"):
        server.ask({**header, **transport.dtype_fields(transport.BFLOAT16)}, body)
    ids = transport.body_of([np.array([1, 2])], transport.BFLOAT16, transport.INT32)
    with pytest.raises(DataLossError, match="8 bytes, expected 16"):
        server.ask({"kind": "pull", "items": [[1, 0, 2, -1]]}, ids)
    for kind in ("push", "pull", "read"):
        wrong = {"kind": kind, "items": [[2, 0, WHOLE, -1]], "shard": [2, 0], "rows": [0, 1]}
        with pytest.raises(InvalidArgumentError, match="'float32' or 'bfloat16', got 'int8'"):
            server.ask({**wrong, "transport_dtype": "int8", "optimizer": SGD.text}, None)
    for kind in ("push", "pull"):
        with pytest.raises(InvalidArgumentError, match="'int64' or 'int32', got 'int8'"):
            server.ask({"kind": kind, "items": [], "ids_dtype": "int8"}, None)
    np.testing.assert_array_equal(server.values(TABLE), before)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 60), max_size=4), st.integers(1, 20), st.booleans())
def test_body_arrays_are_received_rounded_for_any_content(
    rows: list[int], width: int, in_pieces: bool
) -> None:
    arrays = [
        (1 << 31) - 1 - np.arange(count, dtype=np.int64) if place % 2 else normal(count, width)
        for place, count in enumerate(rows)
    ]
    ids = transport.ids_dtype((1 << 31) + (width % 2), transport.BFLOAT16)
    assert ids == ("int64" if width % 2 else "int32")
    with pytest.MonkeyPatch.context() as patch:
        if in_pieces:
            patch.setattr(messages, "LARGE_BYTES", 256)
            patch.setattr(pieces, "PIECE_BYTES", 100)
        body = transport.body_of(arrays, transport.BFLOAT16, ids)
        parts = [] if body is None else body.parts
        found = messages.body_arrays(received({}, body, in_pieces=in_pieces).body, parts)
    for came, sent in zip(map(transport.widest, found), arrays, strict=True):
        assert came.dtype == sent.dtype
        assert not came.flags.writeable
        np.testing.assert_array_equal(came, rounded(sent) if sent.dtype == np.float32 else sent)


def test_float32_arrays_are_sent_without_copy() -> None:
    gradient = normal(3, 4)
    body = transport.body_of([gradient], transport.FLOAT32)
    assert body is not None
    assert body.to_buffer().address == gradient.ctypes.data
    ids = transport.ids_dtype(1, transport.FLOAT32)
    assert transport.dtype_fields(transport.FLOAT32, ids) == {}
    assert transport.widest(gradient) is gradient


def test_bfloat16_transport_halves_the_bytes_sent() -> None:
    sizes = {}
    for dtype in (transport.FLOAT32, transport.BFLOAT16):
        _, pushed = push(normal(5, 17), normal(1, 9), transport_dtype=dtype)
        pull = Pull([Fetch(TABLE, IDS)], {}, 0, dtype)
        ((_, ids),) = pull.messages().values()
        assert ids is not None
        parts = [*pushed.parts, *ids.parts]
        sizes[dtype] = sum(map(messages.part_bytes, parts))
    assert sizes["float32"] == 2 * sizes["bfloat16"] == 5 * 8 + 5 * 17 * 4 + 9 * 4 + 5 * 8


def test_ids_of_tables_beyond_int32_are_sent_as_int64() -> None:
    long = make_spec(1 << 32, 1, shape=(1 << 32, 1))
    ids = np.array([1 << 31, (1 << 32) - 1])
    pull = Pull([Fetch(TABLE, IDS), Fetch(long, ids)], {}, 0, transport.BFLOAT16)
    ((_, (header, body)),) = pull.messages().items()
    assert header.keys() == {"kind", "items", "transport_dtype"}
    pushed = Push(transport.BFLOAT16)
    for spec, some in ((long, ids), (TABLE, IDS)):
        pushed.add(spec, 0, some, normal(len(some), spec.width))
    of_push, pushed_body = pushed.message(optimizer=SGD.text)
    assert "ids_dtype" not in of_push
    for each, place in ((body, -1), (pushed_body, 0)):
        found = messages.body_arrays(each.to_buffer(), each.parts)
        np.testing.assert_array_equal(found[place], ids)
