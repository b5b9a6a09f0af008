"""Types of columns that functions make are those of the first batch, also after a resume."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataservice import Dataset, col
from dataservice.dataset.node import freeze_schemas
from dataservice.dataset.plan import decode_plan, encode_plan, fingerprint
from dataservice.errors import InvalidTypeError, MissingColumnError, SchemaError

STRINGS = pa.schema([("t", pa.string())])


@pytest.fixture
def files(tmp_path: pathlib.Path) -> Dataset:
    """Writes two files of strings, then two of nulls, of ten rows each."""
    for number in range(4):
        ids = range(number * 10, number * 10 + 10)
        table = pa.table(
            {
                "id": pa.array(ids, pa.int64()),
                "s": pa.array([str(i) if i < 20 else None for i in ids], pa.string()),
            }
        )
        pq.write_table(table, tmp_path / f"{number}.parquet")
    return Dataset.from_parquet(str(tmp_path))


def exclaimed(columns: dict[str, np.ndarray]) -> np.ndarray:
    return np.array([s and s + "!" for s in columns["s"]], dtype=object)


def replaced(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"id": columns["id"], "t": exclaimed(columns)}


def replaced_row(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"], "t": row["s"] and row["s"] + "!"}


@pytest.mark.parametrize(
    "after",
    [
        lambda data: data,
        lambda data: data.batch(7),
        lambda data: data.shuffle(15, seed=1).batch(7),
        lambda data: data.bucket_by_sequence_length("id", [10], [3, 5], no_padding=True),
        lambda data: data.group_by_window(col("id") % 2, window_size=11),
        lambda data: data.cache(),
    ],
)
def test_with_column_keeps_inferred_type_in_null_batches(
    files: Dataset, after: Callable[[Dataset], Dataset]
) -> None:
    made = after(files.with_column("t", exclaimed)).to_table().sort_by("id")
    assert made["t"].type == pa.string()
    assert made["t"].to_pylist() == [f"{i}!" for i in range(20)] + [None] * 20


@pytest.mark.parametrize(
    "make",
    [
        lambda data: data.with_column("t", exclaimed).select(["id", "t"]),
        lambda data: data.map(replaced),
        lambda data: data.map(replaced_row, format="rows"),
        lambda data: data.flat_map(replaced),
        lambda data: data.map(replaced).batch(4),
        lambda data: data.map(replaced).skip(3).batch(4),
        lambda data: data.map(replaced).enumerate().batch(4).prefetch(2),
    ],
)
def test_resumed_iterator_keeps_inferred_types(
    files: Dataset, make: Callable[[Dataset], Dataset]
) -> None:
    # The first batch after a resume may hold only nulls, and later ones strings.
    paths = sorted(pathlib.Path(files.node.paths[0]).glob("*"))  # type: ignore[attr-defined]
    order = [paths[0], paths[2], paths[1], paths[3]]
    data = make(Dataset.from_parquet([str(path) for path in order]))
    whole = list(data)
    iterator = iter(data)
    for taken in range(len(whole) + 1):
        state = json.loads(json.dumps(iterator.state_dict()))
        resumed = iter(data)
        resumed.load_state_dict(state)
        # A second time, as a position may be saved again before anything is read.
        again = iter(data)
        again.load_state_dict(json.loads(json.dumps(resumed.state_dict())))
        for rest in (list(resumed), list(again)):
            assert [batch.schema for batch in rest] == [b.schema for b in whole[taken:]]
            assert [b.to_pylist() for b in rest] == [b.to_pylist() for b in whole[taken:]]
        next(iterator, None)


def test_stated_type_holds_from_first_batch_on(files: Dataset) -> None:
    paths = sorted(pathlib.Path(files.node.paths[0]).glob("*"), reverse=True)  # type: ignore[attr-defined]
    late = Dataset.from_parquet([str(path) for path in paths])
    inferred = late.with_column("t", exclaimed)
    with pytest.raises(SchemaError, match=r"with_column\('t'\).*string.*null.*schema="):
        inferred.to_table()
    declared = late.with_column("t", exclaimed, schema=STRINGS)
    found = declared.to_table().sort_by("id")["t"]
    assert found.to_pylist() == [f"{i}!" for i in range(20)] + [None] * 20
    assert (
        files.with_column("t", col("id"), schema=STRINGS).take(1).to_table()["t"][0].as_py() == "0"
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda data: data.with_column("t", exclaimed).select(["id", "t"]),
        lambda data: data.map(replaced),
        lambda data: data.map(replaced_row, format="rows"),
        lambda data: data.flat_map(replaced),
    ],
)
def test_type_is_inferred_from_sample_when_first_batch_is_null(
    files: Dataset, make: Callable[[Dataset], Dataset]
) -> None:
    # The sample is taken from the first rows, which are skipped here.
    made = make(files.skip(20))
    assert [batch.schema.field("t").type for batch in made] == [pa.string()] * 2
    both = make(files.concatenate(files).skip(20)).to_table()
    assert both["t"].to_pylist()[20:40] == [f"{i}!" for i in range(20)]


def letters(row: dict[str, Any]) -> dict[str, Any]:
    return {"t": list(row["s"] or ""), "d": {"first": row["s"] and row["s"][0]}}


def test_type_of_empty_lists_is_inferred_from_sample(files: Dataset) -> None:
    made = files.skip(20).map(letters, format="rows")
    assert all(batch.schema == made.schema for batch in made)
    assert made.schema.types == [pa.list_(pa.string()), pa.struct({"first": pa.string()})]


def test_nondeterministic_rows_are_not_sampled_for_types() -> None:
    rows = iter([{"s": None}, {"s": "a"}])
    schema = pa.schema([("s", pa.string())])
    once = Dataset.from_generator(lambda: rows, schema, deterministic=False)
    made = once.batch(1).map(lambda columns: {"t": exclaimed(columns)})
    with pytest.raises(SchemaError, match=r"string, expected null.*schema="):
        made.to_table()
    declared = Dataset.from_generator(
        lambda: iter([{"s": None}, {"s": "a"}]), schema, deterministic=False
    ).map(lambda columns: {"t": exclaimed(columns)}, schema=STRINGS)
    assert declared.to_table()["t"].to_pylist() == [None, "a!"]


def test_frozen_plan_has_inferred_type(files: Dataset) -> None:
    made = files.with_column("t", exclaimed).with_column("n", col("id") + 1)
    frozen = freeze_schemas(made.node)
    assert fingerprint(frozen) == fingerprint(made.node)
    sent = decode_plan(encode_plan(frozen))
    assert sent.input.schema == STRINGS  # type: ignore[attr-defined]
    assert sent.schema is None  # type: ignore[attr-defined]
    nothing = files.filter(col("id") >= 20).with_column("t", exclaimed)
    assert freeze_schemas(nothing.node).schema is None  # type: ignore[attr-defined]


def test_with_column_schema_without_its_column_is_refused(files: Dataset) -> None:
    with pytest.raises(MissingColumnError, match=r"with_column\('q'\).*\['t'\]"):
        files.with_column("q", exclaimed, schema=STRINGS)
    with pytest.raises(InvalidTypeError, match=r"pyarrow\.Schema.*'string'"):
        files.with_column("t", exclaimed, schema="string")  # type: ignore[arg-type]
