"""CSV under on_error="skip": rows with a value of another type are left out by themselves."""

from __future__ import annotations

import contextlib
import io
import pathlib
import re
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.csv as pacsv
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataservice import Dataset
from dataservice.dataset.omission_log import OmissionLog
from dataservice.dataset.sources import csv_rows
from dataservice.dataset.sources.bisection import REFUSED_MAX
from dataservice.dataset.sources.csv_rows import Unfit, as_bytes, fitting_rows
from dataservice.dataset.stream import RunContext
from dataservice.errors import SchemaError
from dataservice.omissions import Omitted
from tests.unit.dataservice.dataset.checkpoint_checker import check_positions

SCHEMA = pa.schema([("x", pa.int64()), ("s", pa.string()), ("f", pa.float32())])


def read(dataset: Dataset, threads: int = 1) -> tuple[list[dict[str, Any]], Omitted]:
    log = OmissionLog()
    with dataset.node.run(RunContext(threads=threads, omitted=log.open_run())) as stream:
        return [row for batch in stream for row in batch.to_pylist()], log.total()


VALUES = {
    pa.null(): ["", "NA"],
    pa.bool_(): ["true", "false", "1", "0", "True", "yes"],
    pa.int8(): ["1", " 7", "-128", "128", "+1", "0x1f", "1.0", "007"],
    pa.uint64(): ["18446744073709551615", "18446744073709551616", "-1", "1"],
    pa.float32(): ["1", "1.5", "-2e9", "1e99", "nan", "inf", "1,5", "1_0", "."],
    pa.decimal128(5, 2): ["1.25", "1.255", "12345", "999.99", "1e2", "-.5", "--1"],
    pa.string(): ["a", 'q"u,o\nte', "\r\n", "\u00fc", "NA"],
    pa.large_string(): ["a", '"'],
    pa.binary(): ["a", ""],
    pa.binary(2): ["ab", "a", ""],
    pa.date32(): ["2024-02-29", "2023-02-29", "2024-1-1", "29.2.2024"],
    pa.time32("s"): ["10:11:12", "10:11", "25:00:00", "10:11:12.5"],
    pa.timestamp("ms"): ["2024-02-29", "2024-02-29T10:11:12.5", "2024-02-29 10:11Z", "1709200000"],
    pa.timestamp("us", "UTC"): ["2024-02-29 10:11:12Z", "2024-02-29 10:11+0130", "2024-02-29"],
    pa.duration("s"): ["5", "5s"],
}
RAW_VALUES = st.one_of(
    st.sampled_from([b"", b"NA", b"null", b" ", b"\xff", b"u", b"1"]), st.binary(max_size=3)
)


@st.composite
def columns(draw: st.DrawFn) -> tuple[pa.Schema, list[list[bytes]]]:
    kinds = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=3))
    of_kinds = [
        st.one_of(st.sampled_from([text.encode() for text in VALUES[kind]]), RAW_VALUES)
        for kind in kinds
    ]
    rows = draw(st.lists(st.tuples(*of_kinds).map(list), max_size=12))
    return pa.schema([(f"c{at}", kind) for at, kind in enumerate(kinds)]), rows


def quoted(value: bytes) -> bytes:
    needs_quotes = not value or any(mark in value for mark in (b'"', b",", b"\r", b"\n"))
    return b'"' + value.replace(b'"', b'""') + b'"' if needs_quotes else value


def read_alone(
    row: list[bytes], schema: pa.Schema, options: pacsv.ConvertOptions
) -> dict[str, Any] | tuple[int, str]:
    """Returns the row as it converts in a file of its own; else the column and the message."""
    read = pacsv.ReadOptions(column_names=schema.names, use_threads=False)
    parse = pacsv.ParseOptions(newlines_in_values=True)
    text = b",".join(map(quoted, row)) + b"\n"
    try:
        (converted,) = pacsv.read_csv(io.BytesIO(text), read, parse, options).to_pylist()
    except pa.ArrowInvalid as error:
        found = re.fullmatch(r"In CSV column #(\d+): Row #1: (.*)", str(error), re.DOTALL)
        assert found is not None
        return int(found[1]), found[2]
    return converted


def raw(schema: pa.Schema, rows: list[list[bytes]]) -> pa.RecordBatch:
    by_column = [pa.array([row[at] for row in rows], pa.binary()) for at in range(len(schema))]
    return pa.RecordBatch.from_arrays(by_column, schema=as_bytes(schema))


@given(columns(), st.booleans(), st.sampled_from([None, ["NA", "", "u"]]), st.integers(1, 4))
def test_rows_are_converted_as_each_in_a_file_of_its_own_or_refused(
    drawn: tuple[pa.Schema, list[list[bytes]]],
    strings_can_be_null: bool,
    null_values: list[str] | None,
    most: int,
) -> None:
    schema, rows = drawn
    options = pacsv.ConvertOptions(
        column_types=schema, strings_can_be_null=strings_can_be_null, null_values=null_values
    )
    alone = [read_alone(row, schema, options) for row in rows]
    bad = [at for at, found in enumerate(alone) if isinstance(found, tuple)]
    end = bad[most] if len(bad) > most else len(rows)
    got: list[dict[str, Any]] = []
    refused: list[Unfit] = []
    with mock.patch.object(csv_rows, "REFUSED_MAX", most), contextlib.ExitStack() as stack:
        if end < len(rows):
            told = f"In CSV column #{alone[end][0]}: {alone[end][1]}"
            stack.enter_context(pytest.raises(pa.ArrowInvalid, match=f"^{re.escape(told)}$"))
        for batch in fitting_rows(raw(schema, rows), schema, options, refused.append):
            assert batch.schema == schema
            got += batch.to_pylist()
    # Texts of NaN are equal, NaN is not.
    assert repr(got) == repr([found for found in alone[:end] if isinstance(found, dict)])
    assert [(row.column, row.message) for row in refused] == [
        (schema.field(found[0]), found[1]) for found in alone[:end] if isinstance(found, tuple)
    ]


def test_refused_row_names_its_column_and_value() -> None:
    refused: list[Unfit] = []
    options = pacsv.ConvertOptions(column_types=SCHEMA)
    rows = raw(SCHEMA, [[b"1", b"a", b"z"]])
    assert [b.num_rows for b in fitting_rows(rows, SCHEMA, options, refused.append)] == [0]
    assert refused == [
        Unfit('"1","a","z"', SCHEMA.field("f"), "CSV conversion error to float: invalid value 'z'")
    ]


def test_error_that_is_of_no_value_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(*_: Any) -> pa.Array:
        raise pa.ArrowInvalid("the options are contradictory")

    monkeypatch.setattr(csv_rows, "_converted", refusing)
    rows = fitting_rows(raw(SCHEMA, [[b"1", b"a", b"2"]]), SCHEMA, pacsv.ConvertOptions(), print)
    with pytest.raises(pa.ArrowInvalid, match="the options are contradictory"):
        next(rows)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("form", ["inferred", "stated", "no header"])
def test_only_rows_at_fault_are_left_out_and_each_is_counted_once(
    tmp_path: pathlib.Path, threads: int, form: str
) -> None:
    lines = [f"{number},{number}.5,t{number}" for number in range(200_000)]  # several blocks
    unfit = {0: "u,1,t", 80_000: "5,1,t", 120_001: "2,y,t", 199_999: "z,1,t"}
    malformed = {3: "7", 80_001: "1,2,3,4", 150_000: "bad"}
    unfit[80_000] = "5.5,1,t"
    if form == "inferred":  # the first block tells the types
        del unfit[0]
    for at, line in (unfit | malformed).items():
        lines[at] = line
    header = [] if form == "no header" else ["x,f,s"]
    (tmp_path / "a.csv").write_text("\n".join([*header, *lines]) + "\n")
    kinds = [("x", pa.int64()), ("f", pa.float64()), ("s", pa.string())]
    order = {"inferred": None, "stated": [2, 0, 1], "no header": [0, 1, 2]}[form]
    schema = None if order is None else pa.schema([kinds[at] for at in order])
    data = Dataset.from_csv(str(tmp_path), schema, header=bool(header), on_error="skip")
    rows, total = read(data, threads)
    assert data.schema == (schema or pa.schema(kinds))
    kept = [x for x in range(200_000) if x not in unfit and x not in malformed]
    assert rows == [{"x": x, "f": x + 0.5, "s": f"t{x}"} for x in kept]
    assert (total.source_rows, total.splits) == (len(unfit) + len(malformed), 0)
    messages = "\n".join(total.messages)
    assert "column 'x' of type int64 has a value of another type" in messages


def test_positions_do_not_count_rows_left_out(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\nu,2\nbad\n3,4\n5,v\n6,7\n")
    (tmp_path / "b.csv").write_text("x,y\nw,1\n7,8\n")
    schema = pa.schema([("x", pa.int64()), ("y", pa.int64())])
    data = Dataset.from_csv(str(tmp_path), schema, on_error="skip")
    assert data.to_table()["x"].to_pylist() == [1, 3, 6, 7]
    check_positions(data)


def test_nulls_are_told_as_in_a_file_without_bad_rows(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.csv").write_text('x,s\n1,none\nu,a\nnone,"none"\n"",""\n')
    schema = pa.schema([("x", pa.int64()), ("s", pa.string())])
    data = Dataset.from_csv(str(tmp_path), schema, null_values=["none", ""], on_error="skip")
    rows, _ = read(data)
    assert rows == [{"x": 1, "s": None}, {"x": None, "s": None}, {"x": None, "s": None}]


def test_row_of_other_encoding_is_left_out(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"s\na\n\xff\nb\n")
    data = Dataset.from_csv(str(tmp_path), pa.schema([("s", pa.string())]), on_error="skip")
    rows, total = read(data)
    assert rows == [{"s": "a"}, {"s": "b"}]
    assert total.source_rows == 1
    assert "invalid UTF8" in total.messages[0]


def test_file_of_other_types_is_left_out_as_a_whole(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n" + "u\n" * (REFUSED_MAX + 1) + "2\n")
    (tmp_path / "b.csv").write_text("x\n" + "u\n" * REFUSED_MAX + "3\n")
    data = Dataset.from_csv(str(tmp_path), pa.schema([("x", pa.int64())]), on_error="skip")
    rows, total = read(data)
    assert rows == [{"x": 1}, {"x": 3}]
    assert (total.splits, total.source_rows) == (1, 2 * REFUSED_MAX)
    told = "after row 1: column 'x' of type int64 has a value of another type (In CSV column #0: "
    assert any(told in message for message in total.messages)


def test_without_skipping_the_value_is_an_error(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\nu\n")
    data = Dataset.from_csv(str(tmp_path), pa.schema([("x", pa.int64())]))
    told = r"row 2: column 'x' of type int64 has a value of another.*on_error='skip'\) leaves out"
    with pytest.raises(ValueError, match=told):
        read(data)


def test_decimal_with_more_digits_is_a_value_of_another_type(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1.25\n1.255\n2.5\n")
    schema = pa.schema([("x", pa.decimal128(5, 2))])
    rows, total = read(Dataset.from_csv(str(tmp_path), schema, on_error="skip"))
    assert [str(row["x"]) for row in rows] == ["1.25", "2.50"]
    assert (total.splits, total.source_rows) == (0, 1)
    with pytest.raises(SchemaError, match=r"row 2: column 'x' of type decimal128\(5, 2\) has a"):
        read(Dataset.from_csv(str(tmp_path), schema))
