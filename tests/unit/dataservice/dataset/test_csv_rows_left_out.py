"""CSV under on_error="skip": rows with a value of another type are left out by themselves."""

from __future__ import annotations

import csv
import io
import pathlib
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataservice import Dataset
from dataservice.dataset.omission_log import OmissionLog
from dataservice.dataset.sources.bisection import REFUSED_MAX
from dataservice.dataset.sources.csv_rows import Unfit, as_bytes, fitting_rows
from dataservice.dataset.stream import RunContext
from dataservice.omissions import Omitted
from tests.unit.dataservice.dataset.checkpoint_checker import check_positions

SCHEMA = pa.schema([("x", pa.int64()), ("s", pa.string()), ("f", pa.float32())])
GOOD = [["1", "a", "2.5"], ["-7", 'q"u,o\nte', ""], ["", "NA", "NA"], ["3", "", "1e9"]]
BAD = [["u", "a", "1"], ["1", "b", "2,5"], ["9" * 20, "c", "0"], ["1.5", "u", "u"]]


def read(dataset: Dataset, threads: int = 1) -> tuple[list[dict[str, Any]], Omitted]:
    log = OmissionLog()
    with dataset.node.run(RunContext(threads=threads, omitted=log.open_run())) as stream:
        return [row for batch in stream for row in batch.to_pylist()], log.total()


def written(rows: list[list[str]]) -> str:
    with io.StringIO(newline="") as to:
        csv.writer(to).writerows(rows)
        return to.getvalue()


def raw(rows: list[list[str]]) -> pa.RecordBatch:
    columns = [[row[at].encode() for row in rows] for at in range(len(SCHEMA))]
    return pa.RecordBatch.from_arrays(
        [pa.array(column, pa.binary()) for column in columns], schema=as_bytes(SCHEMA)
    )


@given(st.lists(st.sampled_from([*GOOD, *BAD])), st.booleans())
def test_rows_are_converted_as_in_a_file_or_refused(
    rows: list[list[str]], strings_can_be_null: bool
) -> None:
    options = pacsv.ConvertOptions(column_types=SCHEMA, strings_can_be_null=strings_can_be_null)
    refused: list[Unfit] = []
    got = [
        row
        for b in fitting_rows(raw(rows), SCHEMA, options, refused.append)
        for row in b.to_pylist()
    ]
    good = [row for row in rows if row in GOOD]
    if good:
        whole = pacsv.read_csv(
            io.BytesIO(written([SCHEMA.names, *good]).encode()),
            parse_options=pacsv.ParseOptions(newlines_in_values=True),
            convert_options=options,
        )
        assert got == whole.to_pylist()
    assert len(got) == len(good)
    assert len(refused) == len(rows) - len(good)


def test_refused_row_names_its_column_and_value() -> None:
    refused: list[Unfit] = []
    options = pacsv.ConvertOptions(column_types=SCHEMA)
    assert not list(fitting_rows(raw([["1", "a", "z"]]), SCHEMA, options, refused.append))
    assert refused == [
        Unfit('"1","a","z"', SCHEMA.field("f"), "CSV conversion error to float: invalid value 'z'")
    ]


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


def test_without_skipping_the_value_is_an_error(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\nu\n")
    data = Dataset.from_csv(str(tmp_path), pa.schema([("x", pa.int64())]))
    told = r"row 2: column 'x' of type int64 has a value of another.*on_error='skip'\) leaves out"
    with pytest.raises(ValueError, match=told):
        read(data)
