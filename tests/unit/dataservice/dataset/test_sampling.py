"""The schema that a dataset states is that of its rows, and so is the one in its encoded plan.

To find it, functions are tried on a few real rows, whatever operators lie below them.
"""

from __future__ import annotations

import pathlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataservice import Dataset, col
from dataservice.dataset.node import Node, freeze_schemas, walk
from dataservice.dataset.operators import Map
from dataservice.dataset.plan import decode_plan, encode_plan
from dataservice.errors import SchemaError

ROWS = 300
ID = pa.schema({"id": pa.int64()})
TEXT = pa.schema({"text": pa.string()})


def numbered(c: dict[str, Any]) -> dict[str, Any]:
    return {**c, "twice": c["id"] * 2}


def texts(c: dict[str, Any]) -> dict[str, Any]:
    # For no rows, NumPy makes an array of floats.
    return {"text": np.array([f"v{value}" for value in c["id"]])}


def stacks(c: dict[str, Any]) -> dict[str, Any]:
    # Raises for no rows.
    return {"row": np.stack([np.full(3, value, "f4") for value in c["id"]])}


def as_row(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"], "text": str(row["id"])}


def yielded() -> Iterator[dict[str, int]]:
    yield from ({"id": number} for number in range(ROWS))


def three(row: dict[str, Any]) -> Dataset:
    return Dataset.from_numpy({"id": np.full(3, row["id"])})


def few(row: dict[str, Any]) -> list[dict[str, Any]]:
    # The first rows yield nothing.
    return [{"id": row["id"], "part": part} for part in range(row["id"] // 50)]


NUMBERS = Dataset.range(1, ROWS)
GENERATED = Dataset.from_generator(yielded, ID)
BELOW = {
    "map": NUMBERS.map(numbered),
    "map with a schema": NUMBERS.map(lambda c: c, schema=ID),
    "flat_map": NUMBERS.flat_map(lambda c: {"id": np.repeat(c["id"], 2)}),
    "rows": NUMBERS.map(as_row, format="rows"),
    "generator": GENERATED,
    "interleave": NUMBERS.interleave(three),
    "interleave of a generator": GENERATED.interleave(three, schema=ID),
    "grouped": NUMBERS.group_by_window(col("id") % 3, lambda _, w: w.batch(4), window_size=8),
    "bucketed": NUMBERS.map(numbered).bucket_by_sequence_length(col("id") % 3, [1], [4, 4]),
    "batched": NUMBERS.map(numbered).batch(7),
    "empty, then rows": NUMBERS.take(0).map(numbered).concatenate(NUMBERS.map(numbered)),
    "mixed": Dataset.sample_from_datasets([NUMBERS.take(0).map(numbered), NUMBERS.map(numbered)]),
    "exploded": NUMBERS.flat_map(few, format="rows"),
    "filtered": NUMBERS.map(numbered).filter(lambda c: c["id"] > c["id"].min() - 1),
}
ABOVE: dict[str, Callable[[Dataset], Dataset]] = {
    "texts": lambda data: data.map(texts),
    "stacks": lambda data: data.map(stacks),
    "rows": lambda data: data.map(as_row, format="rows"),
    "flat rows": lambda data: data.flat_map(lambda row: [as_row(row)] * 2, format="rows"),
    "with_column": lambda data: data.with_column("text", lambda c: texts(c)["text"]),
}


def schemas_of(node: Node) -> list[pa.Schema]:
    return [inner.schema for inner in walk(node) if isinstance(inner, Map)]


@pytest.mark.parametrize("above", ABOVE)
@pytest.mark.parametrize("below", BELOW)
def test_schema_of_function_over_any_operator_is_that_of_its_rows(below: str, above: str) -> None:
    data = ABOVE[above](BELOW[below])
    found = next(iter(data)).schema
    assert data.schema == found
    sent = decode_plan(encode_plan(freeze_schemas(data.node)))
    assert Dataset(sent).to_table() == data.to_table()
    assert Dataset(sent).schema == found


def test_each_function_runs_once_while_schemas_are_frozen() -> None:
    calls: Counter[str] = Counter()

    def counted(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
        def function(c: dict[str, Any]) -> dict[str, Any]:
            calls[name] += 1
            return dict(c)

        return function

    data = NUMBERS.map(counted("a")).map(counted("b")).filter(col("id") > 3).map(counted("c"))
    freeze_schemas(data.node)
    assert calls == {"a": 1, "b": 1, "c": 1}


def test_sampled_function_sees_no_rows_dropped_by_filter(tmp_path: pathlib.Path) -> None:
    known = pa.table({"id": pa.array([None] * 100 + list(range(ROWS)), pa.int64())})
    pq.write_table(known, tmp_path / "nulls.parquet", row_group_size=16)
    for data in (Dataset.from_table(known), Dataset.from_parquet(str(tmp_path))):
        kept = data.filter(col("id").is_valid()).map(texts)
        assert kept.schema == TEXT
        assert schemas_of(freeze_schemas(kept.map(lambda c: c).node)) == [TEXT, TEXT]
        assert kept.to_table().num_rows == ROWS


def test_interleaved_files_without_rows_do_not_determine_types(
    tmp_path: pathlib.Path,
) -> None:
    for number in range(3):
        rows = {"id": pa.array([number] * number, pa.int64())}
        pq.write_table(pa.table(rows), tmp_path / f"{number}.parquet")
    files = Dataset.list_files(str(tmp_path / "*.parquet"))
    data = files.interleave(lambda row: Dataset.from_parquet(row["path"])).map(stacks)
    assert data.schema == next(iter(data)).schema


def test_interleaved_generator_element_without_rows_determines_no_types() -> None:
    def some(row: dict[str, Any]) -> Dataset:
        return Dataset.from_numpy({"id": np.full(row["id"] % 4, row["id"])})

    assert GENERATED.interleave(some).map(texts).schema == TEXT


def test_types_are_inferred_although_filter_drops_all_rows() -> None:
    assert NUMBERS.filter(col("id") < 0).map(texts).schema == TEXT


def test_stated_schema_runs_no_function() -> None:
    def fails(*_: Any) -> Any:
        raise AssertionError("was run")

    data = Dataset.from_generator(fails, ID).map(fails, schema=TEXT)
    assert data.batch(3).schema == TEXT
    assert schemas_of(freeze_schemas(data.node)) == [TEXT]


def test_nondeterministic_generator_is_not_run_to_infer_schema() -> None:
    runs = []

    def live() -> Iterator[dict[str, int]]:
        runs.append(1)
        yield {"id": 1}

    data = Dataset.from_generator(live, ID, deterministic=False)
    assert data.map(numbered).schema.names == ["id", "twice"]
    assert not runs


def test_sample_that_does_not_fit_stated_schema_is_refused() -> None:
    data = NUMBERS.map(texts, schema=ID).map(numbered)
    with pytest.raises(SchemaError, match=r"have the columns \['text'\], expected \['id'\]"):
        freeze_schemas(data.node)


def test_stated_schema_holds_where_no_sample_can_be_had() -> None:
    # As over a data service, which gives no sample; np.stack and max fail on no rows.
    none = Dataset.from_table(ID.empty_table())
    stacked = none.map(stacks, schema=pa.schema({"row": pa.list_(pa.float32(), 3)}))
    kept = stacked.filter(lambda c: c["row"].max(axis=1) > c["row"].min())
    counted = kept.with_column("n", lambda c: np.zeros(len(c["row"])))
    assert counted.schema.names == ["row", "n"]


def test_concatenation_of_known_schemas_runs_no_generator() -> None:
    def fails() -> Any:
        raise AssertionError("was run")

    never = Dataset.from_generator(fails, ID)
    joined = never.concatenate(never).batch(3)
    assert Dataset(freeze_schemas(joined.node)).schema == ID


def only_on_workers(_c: dict[str, Any]) -> dict[str, Any]:
    raise OSError("no such device on this machine")


def nowhere() -> Iterator[dict[str, int]]:
    raise OSError("no such file on this machine")
    yield {}


@pytest.mark.parametrize(
    "below",
    [
        NUMBERS.map(only_on_workers, schema=ID),
        NUMBERS.map(only_on_workers, schema=ID, format="rows"),
        Dataset.from_generator(nowhere, ID),
        Dataset.from_tfrecord("/nowhere/*.tfrecord", features=ID),
    ],
    ids=["map", "rows", "generator", "tfrecord"],
)
def test_source_with_known_schema_need_not_run_locally(below: Dataset) -> None:
    data = below.map(numbered)
    assert data.schema.names == ["id", "twice"]
    assert freeze_schemas(data.node).schema.names == ["id", "twice"]  # type: ignore[attr-defined]


def test_filters_that_drop_all_rows_are_sampled_few_times() -> None:
    seen: list[int] = []

    def note(c: dict[str, Any]) -> dict[str, Any]:
        seen.append(len(c["id"]))
        return c

    data = NUMBERS.map(note)
    for _ in range(4):
        data = data.filter(lambda c: c["id"] < 0)
    assert data.map(numbered).schema.names == ["id", "twice"]
    assert len(seen) < 40


def test_slow_function_is_sampled_on_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("dataservice.dataset.operators.base.time.monotonic", lambda: clock[0])
    seen: list[int] = []

    def slow(c: dict[str, Any]) -> dict[str, Any]:
        seen.append(len(c["id"]))
        clock[0] += 0.01 * len(c["id"])
        return c

    nothing = Dataset.range(10_000).map(slow).filter(lambda c: c["id"] < 0)
    assert nothing.map(numbered).schema.names == ["id", "twice"]
    assert max(seen) == 256
