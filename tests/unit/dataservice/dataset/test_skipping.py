"""on_error="skip": exactly the failing rows and parts are left out, and each counted once."""

from __future__ import annotations

import itertools
import pathlib
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataservice import Dataset
from dataservice.dataset.division.linearise import linearise
from dataservice.dataset.omission_log import OmissionLog, OmissionOutbox
from dataservice.dataset.operators import base
from dataservice.dataset.stream import RunContext
from dataservice.dataset.tolerance import narrowed, tolerant
from dataservice.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    UnsplittableError,
    UserFunctionError,
)
from dataservice.omissions import FILES_KEPT, MESSAGES_KEPT, NOTHING, Omitted
from tests.unit.dataservice.dataset.checkpoint_checker import chunked


def failing_on(bad: set[int], calls: list[int] | None = None) -> Any:
    """Returns a function of columns that fails if one of the `bad` ids is among them."""

    def apply(columns: dict[str, Any]) -> dict[str, Any]:
        ids = columns["id"]
        if calls is not None:
            calls.append(len(ids))
        found = bad & set(ids.tolist())
        if found:
            raise ValueError(f"bad id {min(found)}")
        return {"id": ids, "double": ids * 2}

    return apply


def read(dataset: Dataset) -> tuple[list[int], dict[str, Any]]:
    with iter(dataset) as iterator:
        ids = [value for batch in iterator for value in batch["id"].to_pylist()]
        return ids, iterator.stats()["skipped"]


@given(bad=st.sets(st.integers(0, 99)), batch=st.sampled_from([None, 1, 7, 100]))
def test_rows_on_which_function_fails_are_skipped_and_counted(
    bad: set[int], batch: int | None
) -> None:
    dataset = Dataset.range(100)
    dataset = dataset if batch is None else dataset.batch(batch)
    schema = pa.schema([("id", pa.int64()), ("double", pa.int64())])
    ids, skipped = read(dataset.map(failing_on(bad), schema=schema, on_error="skip"))
    assert ids == [i for i in range(100) if i not in bad]
    assert skipped["function_rows"] == len(bad)
    assert bool(skipped["messages"]) == bool(bad)


def test_single_failing_row_is_found_in_few_calls() -> None:
    calls: list[int] = []
    schema = pa.schema([("id", pa.int64()), ("double", pa.int64())])
    dataset = Dataset.range(4_096).map(failing_on({777}, calls), schema=schema, on_error="skip")
    assert len(read(dataset)[0]) == 4_095
    assert len(calls) <= 1 + 2 * 12


def test_row_function_is_called_once_per_row_when_skipping() -> None:
    calls = []

    def invert(row: dict[str, Any]) -> dict[str, Any]:
        calls.append(row["id"])
        return {"id": row["id"], "y": 10 // row["id"]}

    schema = pa.schema([("id", pa.int64()), ("y", pa.int64())])
    dataset = Dataset.range(6).map(invert, format="rows", schema=schema, on_error="skip")
    ids, skipped = read(dataset)
    assert ids == [1, 2, 3, 4, 5]
    assert calls == list(range(6))
    assert skipped["function_rows"] == 1
    assert "ZeroDivisionError" in skipped["messages"][0]
    assert "row 0" in skipped["messages"][0]


def test_filter_flat_map_and_with_column_skip_failing_rows() -> None:
    bad = failing_on({3})

    def mask(columns: dict[str, Any]) -> Any:
        return bad(columns)["id"] >= 0

    def double(columns: dict[str, Any]) -> Any:
        return bad(columns)["double"]

    for dataset in (
        Dataset.range(5).filter(mask, on_error="skip"),
        Dataset.range(5).with_column("y", double, on_error="skip"),
        Dataset.range(5).flat_map(bad, on_error="skip"),
    ):
        ids, skipped = read(dataset)
        assert (ids, skipped["function_rows"]) == ([0, 1, 2, 4], 1)


def test_without_skip_error_is_raised_and_unknown_mode_refused() -> None:
    dataset = Dataset.range(5).filter(lambda _columns: 1 // 0, on_error="raise")
    with pytest.raises(UserFunctionError, match="ZeroDivisionError"):
        read(dataset)
    with pytest.raises(InvalidArgumentError, match="'ignore'"):
        Dataset.range(5).map(lambda columns: columns, on_error="ignore")


def test_function_failing_on_every_row_is_refused_when_schema_is_inferred() -> None:
    dataset = Dataset.range(5).map(lambda _columns: 1 // 0, on_error="skip")
    with pytest.raises(UserFunctionError, match="ZeroDivisionError"):
        _ = dataset.schema


@pytest.mark.parametrize(
    "joined",
    [
        lambda parts: parts[0].concatenate(parts[1]),
        lambda parts: Dataset.range(2).interleave(lambda row: parts[row["id"]], cycle_length=1),
    ],
)
def test_schema_is_inferred_from_next_part_when_first_part_all_fails(
    joined: Callable[[list[Dataset]], Dataset],
) -> None:
    parts = [Dataset.range(3), Dataset.range(3, 8)]
    dataset = joined(parts).map(failing_on({0, 1, 2}), on_error="skip")
    assert dataset.schema.names == ["id", "double"]
    assert read(dataset)[0] == [3, 4, 5, 6, 7]


def test_slow_first_row_does_not_end_schema_inference() -> None:
    small = chunked(pa.table({"id": range(40)}), [1])
    dataset = Dataset.from_table(small).map(failing_on({0}), on_error="skip")
    ticks = itertools.count(0, 0.1)
    with mock.patch.object(base, "time", SimpleNamespace(monotonic=lambda: next(ticks))):
        assert dataset.schema.names == ["id", "double"]


def test_cardinality_of_skipping_operator_is_unknown() -> None:
    mapped = Dataset.range(10).map(lambda columns: columns, on_error="skip")
    assert mapped.cardinality() == -2
    with pytest.raises(UnsplittableError, match="map with on_error='skip'"):
        linearise(mapped.take(3).node)


def test_position_over_skipped_rows_resumes_exactly() -> None:
    schema = pa.schema([("id", pa.int64()), ("double", pa.int64())])
    dataset = Dataset.range(40).map(failing_on({1, 2, 11, 30}), schema=schema, on_error="skip")
    batches = dataset.batch(5)
    expected = [batch["id"].to_pylist() for batch in batches]
    for taken in range(len(expected)):
        with iter(batches) as iterator:
            for _ in range(taken):
                next(iterator)
            state = iterator.state_dict()
        with iter(batches) as iterator:
            iterator.load_state_dict(state)
            assert [batch["id"].to_pylist() for batch in iterator] == expected[taken:]


def write_parts(folder: pathlib.Path) -> list[pathlib.Path]:
    paths = []
    for index in range(3):
        path = folder / f"part-{index}.parquet"
        ids = np.arange(index * 100, (index + 1) * 100)
        pq.write_table(pa.table({"id": ids}), path, row_group_size=50, compression="none")
        paths.append(path)
    return paths


@pytest.mark.parametrize(
    ("damage", "which"),
    # The first file defines the columns: it cannot be of another schema.
    [("vanished", 0), ("vanished", 1), ("cut", 0), ("cut", 1), ("other schema", 1)],
)
def test_unreadable_files_are_skipped_and_counted(
    tmp_path: pathlib.Path, damage: str, which: int
) -> None:
    paths = write_parts(tmp_path)
    if damage == "vanished":
        paths[which].unlink()
    elif damage == "cut":
        paths[which].write_bytes(paths[which].read_bytes()[:-20])
    else:
        pq.write_table(pa.table({"other": [1]}), paths[which])
    node = tolerant(Dataset.from_parquet([str(path) for path in paths]).select("id").node)
    ids, skipped = read(Dataset(node))
    assert ids == [i for i in range(300) if i // 100 != which]
    assert (skipped["splits"], skipped["files"]) == (1, [str(paths[which])])


def test_damaged_row_group_is_skipped_and_counted(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "wide.parquet"
    ids = np.random.default_rng(0).integers(0, 1 << 60, 60_000)
    pq.write_table(pa.table({"id": ids}), path, row_group_size=20_000, use_dictionary=False)
    at = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    data = bytearray(path.read_bytes())
    data[at : at + 64] = bytes(64)
    path.write_bytes(data)
    got, skipped = read(Dataset(tolerant(Dataset.from_parquet(str(path)).node)))
    assert got == [*ids[:20_000].tolist(), *ids[40_000:].tolist()]
    assert (skipped["splits"], skipped["source_rows"]) == (1, 20_000)
    assert "row group 1" in skipped["messages"][0]


def test_skipping_all_files_is_an_error(tmp_path: pathlib.Path) -> None:
    missing = [str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet")]
    with pytest.raises(FailedPreconditionError, match="none of the files"):
        read(Dataset(tolerant(Dataset.from_parquet(missing).node)))


def test_tolerant_plan_does_not_skip_rows_of_zipped_inputs() -> None:
    def fail(_columns: dict[str, Any]) -> dict[str, Any]:
        raise ValueError

    left = Dataset.range(5).map(fail, schema=pa.schema([("id", pa.int64())]))
    zipped = left.zip(Dataset.range(5).rename({"id": "other"}))
    with pytest.raises(UserFunctionError):
        read(Dataset(tolerant(zipped.node)))


def test_omissions_of_repeated_run_are_counted_once() -> None:
    log = OmissionLog()
    for _ in range(3):
        run = log.open_run("7")
        run.function_rows(2, "map", "two")
        run.split("a.parquet", 10, "torn")
    log.open_run("8").function_rows(1, "map", "one")
    log.add(Omitted.of_split("b.parquet", None, "gone"))
    assert log.total() == Omitted(
        function_rows=3,
        source_rows=10,
        splits=2,
        files=("b.parquet", "a.parquet"),
        messages=("gone", "two", "torn", "one"),
    )


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.sampled_from("xy"))))
def test_omission_total_is_that_of_last_page_of_each_key(notes: list[tuple[str, int, str]]) -> None:
    log, pages = OmissionLog(), dict[str, Omitted]()
    for key, rows, word in notes:
        pages[key] = Omitted.of_split(word, rows, word)
        log.record(key, pages[key])
        total, expected = log.total(), sum(pages.values(), NOTHING)
        assert (total.splits, total.source_rows) == (expected.splits, expected.source_rows)
        assert set(total.files) == set(expected.files)
        assert set(total.messages) == set(expected.messages)


def test_omission_total_is_updated_incrementally() -> None:
    log, added = OmissionLog(), mock.Mock(side_effect=Omitted.__add__)
    for window in range(100):
        log.record(str(window), Omitted.of_function(1, f"{window}"))
    with mock.patch.object(Omitted, "__add__", lambda one, other: added(one, other)):
        for rows in range(2, 12):
            log.record("7", Omitted.of_function(rows, "7"))
            assert log.total().function_rows == 99 + rows
    assert added.call_count <= 20


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9)), max_size=60))
def test_omission_outbox_hands_over_all_records(notes: list[tuple[str, int]]) -> None:
    outbox, log = OmissionOutbox(), OmissionLog()
    for key, rows in notes:
        outbox.record(key, Omitted.of_function(rows, key))
        outbox.add(Omitted.of_function(1, "more"))
        if rows == 1:
            log.record_all(outbox.take() or b"[]")
    while (taken := outbox.take()) is not None:
        log.record_all(taken)
    assert log.total().function_rows == len(notes) + sum(dict(notes).values())


@given(st.integers(0, 200), st.integers(0, 200))
def test_sum_of_omissions_keeps_counts_and_bounded_messages(splits: int, rows: int) -> None:
    total = NOTHING
    for index in range(splits):
        total += Omitted.of_split(f"{index}", 3, f"{index}")
    for index in range(rows):
        total += Omitted.of_function(1, f"row {index}")
    assert (total.splits, total.source_rows, total.function_rows) == (splits, 3 * splits, rows)
    assert len(total.files) == min(splits, FILES_KEPT)
    assert len(total.messages) == min(splits + rows, MESSAGES_KEPT)
    assert Omitted.from_json(total.to_json()) == total
    assert bool(total) == bool(splits or rows)


def test_failing_rows_are_narrowed_down_without_chained_errors() -> None:
    """An error raised while another is handled would carry that one along, with its whole text."""

    def fails(batch: pa.RecordBatch, _location: Any) -> pa.RecordBatch:
        assert sys.exc_info()[1] is None
        raise UserFunctionError(f"on {batch.num_rows} rows")

    transform = narrowed(fails, "map", RunContext(omitted=OmissionLog().open_run()))
    assert transform(pa.record_batch({"id": range(64)}), lambda: "").num_rows == 0


def test_log_at_end_of_pass_says_what_is_missing_with_one_example(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = OmissionLog()
    run = log.open_run("0")
    run.source_rows("a.csv", 2, "a bad line")
    run.split("b.csv", None, "torn")
    run.function_rows(3, "map", "raised")
    caplog.clear()
    log.announce_total()
    assert [record.getMessage() for record in caplog.records] == [
        "the pass is complete but for 3 rows that a function failed on and 2 rows and 1 parts of "
        "sources that could not be read, such as: a bad line; stats()['skipped'] has more"
    ]
