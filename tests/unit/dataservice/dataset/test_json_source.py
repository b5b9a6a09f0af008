"""JSON lines as rows: types, positions, and every way a file can be bad."""

from __future__ import annotations

import gzip
import json
import pathlib
import re

import pyarrow as pa
import pytest

from dataservice.dataset.dataset import Dataset
from dataservice.dataset.division.linearise import linearise
from dataservice.dataset.division.splits import plan_splits
from dataservice.dataset.node import UNKNOWN_CARDINALITY
from dataservice.dataset.plan import decode_plan, encode_plan
from dataservice.errors import InvalidArgumentError, SchemaError, SourceError, UnsplittableError
from tests.planned_windows import plan_windows
from tests.unit.dataservice.dataset.checkpoint_checker import check_positions, run, values


def lines(first: int, end: int) -> str:
    return "".join(json.dumps({"x": x, "s": f"n{x % 3}"}) + "\n" for x in range(first, end))


def test_json_lines_are_read_with_types_and_positions(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines(0, 500))
    (tmp_path / "b.ndjson.gz").write_bytes(gzip.compress(lines(500, 520).encode()))
    (tmp_path / "c.json").write_text("\n")
    dataset = Dataset.from_json(str(tmp_path), block_size_bytes=1_000)
    assert dataset.schema == pa.schema([("x", pa.int64()), ("s", pa.string())])
    assert values(run(dataset)) == list(range(520))
    assert len(run(dataset)) > 5
    assert dataset.cardinality() == UNKNOWN_CARDINALITY
    check_positions(dataset)
    check_positions(dataset.shuffle(100, seed=1).batch(64))
    linear = linearise(decode_plan(encode_plan(dataset.node)))
    assert [w.rows for w in plan_windows(linear, plan_splits(linear), 0)] == [None] * 3
    with pytest.raises(UnsplittableError, match="rows in json is not known"):
        linearise(dataset.take(3).node)


def test_schema_selects_orders_and_types_json_columns(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1, "b": 2, "c": [1, 2]}\n{"c": [], "a": null}\n')
    schema = pa.schema([("c", pa.list_(pa.int32())), ("a", pa.float32())])
    dataset = Dataset.from_json(str(path), schema)
    assert list(dataset.rows()) == [{"c": [1, 2], "a": 1.0}, {"c": [], "a": None}]
    assert dataset.schema == schema
    path.write_text("")
    assert run(dataset) == []


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ('{"x": 1}\n{"x": "one"}\n', SchemaError, "one schema.*Column.*schema="),
        ('{"x": 1}\nnonsense\n', SourceError, "after row 0: .*one object"),
        ('{"x": 1}\n{"x": ', SourceError, "cut short"),
        ('{"x": 1}\nnull\n{"x": 2}\n', SourceError, "a line is null.*one object"),
        (' \n null\n{"x": 1}\n', SourceError, "after row 0: a line is null.*one object"),
        ('[{"x": 1}]\n', SchemaError, "a line is an array.*each must be one object.*jq"),
        ("", SourceError, "is empty.*schema="),
    ],
)
def test_malformed_json_file_is_refused_naming_it(
    tmp_path: pathlib.Path, text: str, error: type[Exception], message: str
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(error, match=message) as caught:
        run(Dataset.from_json(str(path)))
    assert "bad.jsonl" in str(caught.value)


def test_error_tells_how_many_rows_of_the_file_were_read(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(f'{{"x": {x}}}\n' for x in range(20)) + "garbage\n")
    read: list[pa.RecordBatch] = []
    with pytest.raises(SourceError) as caught:
        read.extend(Dataset.from_json(str(tmp_path), block_size_bytes=40))
    rows = sum(batch.num_rows for batch in read)
    assert rows > 0
    assert f" after row {rows}: " in str(caught.value)


@pytest.mark.parametrize("block_size_bytes", range(12, 60, 5))
def test_null_at_the_beginning_of_a_block_is_refused(
    tmp_path: pathlib.Path, block_size_bytes: int
) -> None:
    """Arrow itself crashes there."""
    path = tmp_path / "bad.jsonl"
    path.write_text("".join(f'{{"x": {x}}}\n' for x in range(20)) + "\t null\r\n{}\n")
    dataset = Dataset.from_json(str(path), block_size_bytes=block_size_bytes)
    with pytest.raises(SourceError, match="cannot be read as JSON lines"):
        run(dataset)


@pytest.mark.parametrize(
    "line", ['{"x": "café"}', '{"x": ["café"]}', '{"x": {"y": "café"}}', '{"é": 1}']
)
def test_json_text_that_is_not_utf_8_is_refused(tmp_path: pathlib.Path, line: str) -> None:
    path = tmp_path / "latin.jsonl"
    path.write_bytes(line.encode("latin-1") + b"\n")
    with pytest.raises(SourceError, match=r"latin\.jsonl' after row 0: .*not UTF-8.*iconv"):
        run(Dataset.from_json(str(path)))


def test_json_field_absent_from_first_file_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n')
    (tmp_path / "b.jsonl").write_text('{"x": 1, "y": 2}\n')
    with pytest.raises(SchemaError, match=r"b\.jsonl' after row 0.*unexpected field.*schema="):
        run(Dataset.from_json(str(tmp_path)))


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ('{"x": 1.5}', pa.int64()),
        ('{"x": 300}', pa.int8()),
        ('{"x": [1.5]}', pa.list_(pa.int64())),
    ],
)
def test_json_value_outside_stated_type_is_schema_error(
    tmp_path: pathlib.Path, line: str, kind: pa.DataType
) -> None:
    (tmp_path / "a.jsonl").write_text(line + "\n")
    with pytest.raises(SchemaError, match=r"a\.jsonl' after row 0: .*state columns and types"):
        Dataset.from_json(str(tmp_path), pa.schema([("x", kind)])).to_table()


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int64(), 2), pa.float16(), pa.map_(pa.string(), pa.int64())]
)
def test_column_type_unsupported_by_json_is_refused_naming_remedy(
    tmp_path: pathlib.Path, kind: pa.DataType, on_error: str
) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1, "y": {"a": 1}}\n')
    schema = pa.schema([("x", pa.int64()), ("y", kind)])
    told = rf"column 'y' of type {re.escape(str(kind))}.*read it as another type"
    with pytest.raises(InvalidArgumentError, match=told):
        Dataset.from_json(str(tmp_path), schema, on_error=on_error).to_table()


def test_json_line_longer_than_block_is_refused_naming_option(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"x": "y" * 1_000}) + "\n" + json.dumps({"x": "z" * 9_000}) + "\n")
    with pytest.raises(SourceError, match="block_size_bytes="):
        run(Dataset.from_json(str(path), block_size_bytes=1_100))
    assert len(values(run(Dataset.from_json(str(path), block_size_bytes=20_000)))) == 2


def test_invalid_json_arguments_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"pyarrow\.Schema with columns, got 3"):
        Dataset.from_json("a", schema=3)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match=r"block_size_bytes must be an integer.*got 0"):
        Dataset.from_json("a", block_size_bytes=0)
    with pytest.raises(InvalidArgumentError, match="from_json takes a path"):
        Dataset.from_json(3)  # type: ignore[arg-type]


def test_integers_above_int64_are_read_exactly(tmp_path: pathlib.Path) -> None:
    large = 2**63 + 5
    lines = [f'{{"id": {large}, "x": 1e19}}', '{"id": 3, "x": 0.5}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    table = Dataset.from_json(str(tmp_path / "a.jsonl")).to_table()
    assert table.to_pydict() == {"id": [large, 3], "x": [1e19, 0.5]}
