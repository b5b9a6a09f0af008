"""Plans on the wire: round trips, hostile bytes, fingerprints, pushed-down reads."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataservice.dataset import function as function_module
from dataservice.dataset.dataset import Dataset
from dataservice.dataset.expressions import col
from dataservice.dataset.node import Node, freeze_schemas, parameters, register_node, walk
from dataservice.dataset.operators import Map
from dataservice.dataset.optimise import optimise
from dataservice.dataset.plan import decode_plan, encode_plan, fingerprint
from dataservice.dataset.sources import ParquetSource
from dataservice.errors import DataServiceError, InvalidArgumentError
from tests.unit.dataservice.dataset.checkpoint_checker import numbers, run

SCHEMA = pa.schema([("x", pa.int64()), ("y", pa.float64())])


def add_y(columns: dict[str, Any]) -> dict[str, Any]:
    return {"x": columns["x"], "y": columns["x"] + 0.5}


def every_operator() -> Dataset:
    """Returns a plan with every kind of node that runs without files."""
    return (
        Dataset.range(50)
        .rename({"id": "x"})
        .concatenate(numbers(20))
        .filter(col("x") % 3 != 1)
        .filter(lambda c: c["x"] > 2)
        .with_column("h", col("x").hash(10))
        .with_column("k", lambda c: c["x"] * 2)
        .flat_map(lambda c: {name: v[::2] for name, v in c.items()})
        .map(add_y, schema=SCHEMA)
        .map(lambda row: {"x": row["x"], "y": row["y"]}, format="rows")
        .skip(1)
        .take(25)
        .shuffle(7, seed=3)
        .shuffle(4)
        .enumerate()
        .select(["y", "x", "index"])
        .repeat(2)
        .prefetch(2)
        .batch(4, drop_remainder=True)
    )


def test_every_operator_survives_plan_encoding() -> None:
    dataset = every_operator()
    decoded = decode_plan(encode_plan(dataset.node))
    assert [node.kind for node in walk(decoded)] == [node.kind for node in walk(dataset.node)]
    assert run(decoded) == run(dataset)
    assert len(run(dataset)) > 3
    assert encode_plan(decoded) == encode_plan(dataset.node)
    assert fingerprint(decoded) == fingerprint(dataset.node)


def test_file_sources_survive_plan_encoding() -> None:
    nodes = [
        Dataset.from_parquet(["a", "b*"], ["x"], col("x") > 1, {"key": "k", "n": 3}).node,
        Dataset.from_csv("c.csv", SCHEMA, delimiter=";", header=False, null_values=["NA"]).node,
    ]
    for node in nodes:
        again = decode_plan(encode_plan(node))
        assert encode_plan(again) == encode_plan(node)
        assert again.kind == node.kind
        assert repr(list(parameters(again))) == repr(list(parameters(node)))


def test_shared_input_is_encoded_once() -> None:
    shared = numbers(5)
    both = shared.concatenate(shared)
    decoded = decode_plan(encode_plan(both.node))
    assert len(walk(decoded)) == 2
    assert run(decoded) == run(both)


def test_decoding_plan_unpickles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = encode_plan(numbers(3).map(lambda c: c).node)

    def refuse(_data: bytes) -> None:
        pytest.fail("decode_plan unpickled a function")

    monkeypatch.setattr(function_module.pickle, "loads", refuse)
    node = decode_plan(encoded)
    assert isinstance(node, Map)


def test_damaged_pickle_fails_only_when_run() -> None:
    encoded = encode_plan(numbers(3).map(lambda c: c).node)
    node = decode_plan(encoded)
    assert isinstance(node, Map)
    node.function._blob = b"not a pickle"
    with pytest.raises(DataServiceError, match="cannot be loaded here"):
        run(node)


ENCODED = encode_plan(every_operator().node)


@given(st.integers(0, len(ENCODED) - 1), st.integers(1, 255))
def test_damaged_plan_bytes_are_refused_or_decoded(position: int, flip: int) -> None:
    damaged = bytearray(ENCODED)
    damaged[position] ^= flip
    with contextlib.suppress(InvalidArgumentError):
        assert isinstance(decode_plan(bytes(damaged)), Node)


@given(st.integers(0, len(ENCODED) - 1))
def test_truncated_plan_is_refused(length: int) -> None:
    with pytest.raises(InvalidArgumentError, match="malformed plan"):
        decode_plan(ENCODED[:length])


def packed(tree: Any, magic: bytes = b"DSPLAN01") -> bytes:
    body = json.dumps(tree).encode()
    return magic + len(body).to_bytes(4, "little") + (0).to_bytes(4, "little") + body


RANGE = {"kind": "range", "inputs": [], "with": {"start": 0, "stop": 3, "step": 1}}


@pytest.mark.parametrize(
    "tree",
    [
        [],
        {},
        None,
        [RANGE, 7],
        [{**RANGE, "kind": "os.system"}],
        [{**RANGE, "kind": {}}],
        [{**RANGE, "inputs": [0]}],
        [{**RANGE, "inputs": [-1]}],
        [{**RANGE, "inputs": 5}],
        [{**RANGE, "with": {"start": 0, "stop": 3, "step": 0}}],
        [{**RANGE, "with": {"start": 0, "stop": 3, "step": 1, "more": 1}}],
        [{**RANGE, "with": []}],
        [RANGE, {"kind": "batch", "inputs": [0], "with": {"rows": -1, "drop_remainder": False}}],
        [RANGE, {"kind": "batch", "inputs": [-1], "with": {"rows": 1}}],
        [RANGE, {"kind": "batch", "inputs": [0], "with": {"input": None, "rows": 1}}],
        [RANGE, {"kind": "batch", "inputs": [], "with": {"input": 3, "rows": 1}}],
        [RANGE, {"kind": "filter", "inputs": [0], "with": {"function": {"blob": 0}}}],
        [
            RANGE,
            {
                "kind": "filter",
                "inputs": [0],
                "with": {"function": {"function": {"blob": 9, "python": "3.11", "name": "f"}}},
            },
        ],
        [{"kind": "table", "inputs": [], "with": {"table": {"table": 0}}}],
        [{"kind": "table", "inputs": [], "with": {"table": 5}}],
        [RANGE, {"kind": "select", "inputs": [0], "with": {"columns": {"list": ["id"]}}}],
        [
            RANGE,
            {
                "kind": "shuffle",
                "inputs": [0],
                "with": {"buffer_size": 2, "drawn_seed": 1, "seed": {"number": 3}},
            },
        ],
    ],
)
def test_malformed_plan_tree_is_refused(tree: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        decode_plan(packed(tree))


def test_handwritten_plan_tree_is_accepted() -> None:
    assert decode_plan(packed([RANGE])).cardinality() == 3


def test_plan_of_other_version_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="same version"):
        decode_plan(packed([RANGE], magic=b"DSPLAN99"))


def test_plan_too_large_to_send_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dataservice.dataset.plan._MAX_PLAN_BYTES", 2_000)
    with pytest.raises(InvalidArgumentError, match=r"a table of 2,400 bytes.*from_parquet"):
        encode_plan(Dataset.from_table(pa.table({"x": range(300)})).node)
    small = Dataset.from_table(pa.table({"x": range(100)}))
    assert encode_plan(small.node)
    with pytest.raises(InvalidArgumentError, match=r"the plan takes \d,\d+ bytes.*from_parquet"):
        encode_plan(small.concatenate(small.filter(col("x") > 1)).concatenate(numbers(100)).node)
    with pytest.raises(InvalidArgumentError, match=r"1,051,576 bytes are too many"):
        decode_plan(bytes(1_051_576))
    monkeypatch.setattr("dataservice.dataset.plan._MAX_NODES", 2)
    assert decode_plan(packed([RANGE] * 2))
    with pytest.raises(InvalidArgumentError, match="between 1 and 2 nodes"):
        decode_plan(packed([RANGE] * 3))


def test_fingerprint_depends_on_plan_but_not_on_drawn_seeds() -> None:
    def plan(size: int, seed: int | None) -> str:
        return fingerprint(Dataset.range(10).shuffle(5, seed).batch(size).node)

    assert plan(2, None) == plan(2, None)
    assert plan(2, 1) == plan(2, 1)
    assert len({plan(2, 1), plan(3, 1), plan(2, 2), plan(2, None)}) == 4


def test_fingerprint_depends_on_every_parameter_but_not_on_values_of_tables_and_functions() -> None:
    def plans(value: int) -> list[Dataset]:
        def double(columns: dict[str, Any]) -> dict[str, Any]:
            return {"id": columns["id"] * value}

        def triple(columns: dict[str, Any]) -> dict[str, Any]:
            return {"id": columns["id"] * value}

        ids, table = Dataset.range(10), pa.table({"x": [value, 2, 3]})
        return [
            *(ids.map(double), ids.map(triple)),
            *(ids.select(["id"]), ids.rename({"id": "a"}), ids.rename({"id": "b"})),
            *(ids.filter(col("id") > 1), ids.filter(col("id") > 2)),
            *(Dataset.from_parquet(each) for each in (["a"], ["b"], ["a", "b"])),
            *(Dataset.from_parquet("a", filter=col("x") > each) for each in (1, 2)),
            *(Dataset.from_csv("c", SCHEMA), Dataset.from_csv("c", pa.schema([SCHEMA[0]]))),
            *(Dataset.from_table(table), Dataset.from_table(table.slice(1))),
            Dataset.from_table(table.rename_columns(["y"])),
            *(ids.concatenate(ids.take(2)), ids.take(2).concatenate(ids)),
        ]

    found = [fingerprint(each.node) for each in plans(1)]
    assert len(set(found)) == len(found)
    assert [fingerprint(each.node) for each in plans(7)] == found


def test_node_kind_registered_twice_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="'range' is taken by RangeSource"):

        @register_node
        class Other(Map):
            kind = "range"


def test_freeze_schemas_fills_in_inferred_schemas() -> None:
    plan = Dataset.range(5).map(lambda c: {"x": c["id"], "y": c["id"] * 0.5}).batch(2)
    frozen = freeze_schemas(plan.node)
    assert [node.schema for node in walk(frozen) if isinstance(node, Map)] == [SCHEMA]
    assert run(frozen) == run(plan)


def test_selects_and_filters_are_pushed_into_files() -> None:
    plan = Dataset.from_parquet("p").select(["a", "b"]).filter(col("a") > 1).filter(col("b") < 2)
    source = optimise(plan.node)
    assert isinstance(source, ParquetSource)
    assert source.columns == ("a", "b")
    assert repr(source.filter) == "((col('a') > lit(1)) & (col('b') < lit(2)))"


def test_selects_and_filters_of_columns_read_are_pushed_down() -> None:
    plan = Dataset.from_parquet("p", columns=["a", "b"])
    source = optimise(plan.select(["b", "a"]).filter(col("b") < col("a")).node)
    assert isinstance(source, ParquetSource)
    assert source.columns == ("b", "a")
    assert repr(source.filter) == "(col('b') < col('a'))"
    assert optimise(Dataset.from_ipc("p").select("a").node).kind == "ipc"


def test_operators_on_unread_columns_and_function_filters_are_not_pushed_down() -> None:
    plan = Dataset.from_parquet("p", columns=["a"]).filter(col("b") < 2)
    assert optimise(plan.node).kind == "filter"
    plan = Dataset.from_parquet("p", columns=["a"]).select("b")
    assert optimise(plan.node).kind == "select"
    plan = Dataset.from_parquet("p").filter(lambda c: c["a"] > 0)
    assert optimise(plan.node).kind == "filter"
