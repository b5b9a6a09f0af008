"""Loading a snapshot: rows, elements, positions, division, and errors in its files."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import pyarrow as pa
import pytest

from dataservice import ShardingPolicy
from dataservice.dataset.dataset import Dataset
from dataservice.dataset.division.linearise import linearise
from dataservice.dataset.division.splits import open_window, plan_splits
from dataservice.dataset.division.static_sharding import Share, list_sources, share_of
from dataservice.dataset.optimise import optimise
from dataservice.dataset.plan import decode_plan, encode_plan
from dataservice.dataset.snapshots.folder import SnapshotFolder
from dataservice.dataset.snapshots.format import Done, Metadata
from dataservice.dataset.stream import RunContext
from dataservice.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    NotFoundError,
    SourceError,
    UnsplittableError,
    UserFunctionError,
)
from tests.planned_windows import plan_windows
from tests.unit.dataservice.dataset.checkpoint_checker import check_positions, run, values

SCHEMA = pa.schema({"x": pa.int64()})


def batch(first: int, end: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"x": list(range(first, end))}, schema=SCHEMA)


def write(path: pathlib.Path, chunks: list[list[int]], *, done: bool = True, **more: Any) -> str:
    """Writes a snapshot whose chunks have batches of these sizes; `x` counts through all rows."""
    folder = SnapshotFolder(str(path))
    fields = {"snapshot_id": "s1", "schema": SCHEMA, "fingerprint": "f", "cardinality": -2}
    folder.write_metadata(Metadata(**{**fields, "windows": len(chunks), **more}))
    written = []
    first = 0
    for number, sizes in enumerate(chunks):
        batches = []
        for size in sizes:
            batches.append(batch(first, first + size))
            first += size
        chunk = folder.write_chunk(2 * number, SCHEMA, batches)
        assert chunk is not None
        written.append(chunk)
    if done:
        folder.write_marker("DONE", Done(snapshot_id="s1", chunks=tuple(written)).to_json())
    return str(path)


@pytest.fixture
def saved(tmp_path: pathlib.Path) -> str:
    return write(tmp_path / "s", [[3, 1, 4], [1, 5], [9, 2, 6]])


def test_loaded_snapshot_yields_rows_in_order_with_positions(saved: str) -> None:
    dataset = Dataset.load(saved)
    assert values(run(dataset)) == list(range(31))
    assert dataset.cardinality() == 31
    assert dataset.schema == SCHEMA
    check_positions(dataset)
    check_positions(dataset.shuffle(10, seed=2).batch(4))
    assert values(run(dataset.skip(4).take(9))) == list(range(4, 13))
    assert values(run(Dataset.load(f"file://{saved}"))) == list(range(31))


def test_element_spec_other_than_snapshot_schema_is_refused(saved: str) -> None:
    assert values(run(Dataset.load(saved, element_spec=SCHEMA))) == list(range(31))
    other = pa.schema({"x": pa.string()})
    with pytest.raises(ValueError, match=r"element_spec is\nx: string\nbut .*\nx: int64"):
        Dataset.load(saved, element_spec=other)
    with pytest.raises(InvalidTypeError, match=r"must be a pyarrow\.Schema, got 3"):
        Dataset.load(saved, element_spec=3)  # type: ignore[arg-type]


def test_large_snapshot_batches_are_cut_without_copy(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path, [[50_000]])
    before = pa.total_allocated_bytes()
    batches = run(Dataset.load(path))
    assert pa.total_allocated_bytes() - before < 10_000
    assert [b.num_rows for b in batches] == [16_384, 16_384, 16_384, 848]
    check_positions(Dataset.load(path))


def test_batched_rows_of_snapshot_are_batched_again(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path, [[5, 5], [5, 5, 3]], batch_size=4, drop_remainder=True)
    dataset = Dataset.load(path)
    assert [b.num_rows for b in run(dataset)] == [4] * 5
    assert dataset.cardinality() == 5
    check_positions(dataset)


def test_saved_batches_keep_their_sizes(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path, [[5, 2], [20_000]], is_batched=True)
    dataset = Dataset.load(path)
    assert [b.num_rows for b in run(dataset)] == [5, 2, 20_000]
    assert dataset.cardinality() == 3
    assert values(run(dataset.take(2))) == list(range(7))
    check_positions(dataset)


def windows_of(dataset: Dataset) -> list[list[pa.RecordBatch]]:
    linear = linearise(decode_plan(encode_plan(dataset.node)))
    read = []
    for window in plan_windows(linear, plan_splits(linear), 0):
        with open_window(
            linear, window.splits, epoch=0, window_index=window.index, context=RunContext()
        ) as stream:
            read.append(list(stream))
    return read


def test_saved_batches_are_divided_by_chunks_and_stay_whole(tmp_path: pathlib.Path) -> None:
    dataset = Dataset.load(write(tmp_path, [[5, 2, 90], [3, 4], [6]], is_batched=True))
    sizes = [[b.num_rows for b in window] for window in windows_of(dataset)]
    assert sizes == [[5, 2, 90], [3, 4], [6]]
    linear = linearise(dataset.map(lambda c: c).repeat(2).node)
    assert (linear.forms_elements, linear.batch, linear.repeat) == (True, None, 2)
    assert [operator.batched for operator in linear.segments[0].operators] == [True]
    rows = windows_of(dataset.unbatch())
    assert [value for window in rows for value in values(window)] == list(range(110))
    with pytest.raises(UnsplittableError, match=r"take cannot.*counts batches"):
        linearise(dataset.take(2).node)


def test_snapshot_is_divided_by_chunks(saved: str) -> None:
    read = [values(window) for window in windows_of(Dataset.load(saved))]
    assert read == [list(range(8)), list(range(8, 14)), list(range(14, 31))]
    limited = linearise(Dataset.load(saved).skip(9).take(10).node)
    stream = open_window(
        limited, plan_splits(limited), epoch=0, window_index=0, context=RunContext()
    )
    assert values(list(stream)) == list(range(9, 19))


def test_snapshot_files_are_dealt_out_to_shares(saved: str) -> None:
    node = Dataset.load(saved).node
    listing = list_sources(node, ShardingPolicy.FILE, 2)
    shares = [
        values(run(share_of(optimise(node), Share(ShardingPolicy.FILE, index, 2, listing))))
        for index in range(2)
    ]
    assert shares == [[*range(8), *range(14, 31)], list(range(8, 14))]


def test_empty_snapshot_has_schema_and_no_rows(tmp_path: pathlib.Path) -> None:
    dataset = Dataset.load(write(tmp_path, []))
    assert run(dataset) == []
    assert (dataset.cardinality(), dataset.schema) == (0, SCHEMA)


def test_unlisted_chunk_files_are_ignored(saved: str) -> None:
    SnapshotFolder(saved).write_chunk(1, SCHEMA, [batch(90, 99)])
    assert values(run(Dataset.load(saved))) == list(range(31))


def test_missing_damaged_or_replaced_chunk_is_refused(saved: str) -> None:
    (chunk,) = pathlib.Path(saved, "chunks").glob("chunk_00000002_6_*.arrow")
    dataset = Dataset.load(saved)
    whole = chunk.read_bytes()
    chunk.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SourceError, match=r"chunk_00000002_6_\w+\.arrow.*cannot be read.*damaged"):
        run(dataset)
    chunk.write_bytes(b"")
    with pytest.raises(SourceError, match=r"chunk_00000002_6_\w+\.arrow"):
        run(dataset)
    short = SnapshotFolder(saved).write_chunk(2, SCHEMA, [batch(0, 2)])
    assert short is not None
    pathlib.Path(saved, "chunks", short.name).rename(chunk)
    with pytest.raises(SourceError, match="has 2 rows, and the snapshot lists it with more"):
        run(dataset)
    chunk.unlink()
    with pytest.raises(SourceError, match=r"no file.*chunk_00000002_6_\w+\.arrow"):
        run(dataset)


def test_done_marker_of_other_snapshot_finishes_nothing(tmp_path: pathlib.Path) -> None:
    saved = write(tmp_path / "s", [[3]], done=False)
    zombie = SnapshotFolder(saved, writes="s0")
    zombie.write_marker("DONE", Done(snapshot_id="s0", chunks=()).to_json())
    with pytest.raises(FailedPreconditionError, match="not finished"):
        Dataset.load(saved)
    assert SnapshotFolder(saved).signs_of_work() == (1, 0)


def test_snapshot_replaced_since_load_is_refused(saved: str) -> None:
    dataset = Dataset.load(saved)
    metadata = SnapshotFolder(saved).metadata()
    assert metadata is not None
    pathlib.Path(saved, "snapshot.json").unlink()
    other = SnapshotFolder(saved, writes="s2")
    other.write_metadata(dataclasses.replace(metadata, snapshot_id="s2"))
    other.write_marker("DONE", Done(snapshot_id="s2", chunks=()).to_json())
    with pytest.raises(SourceError, match="held snapshot s1 when it was loaded, and holds s"):
        run(dataset)


def test_missing_or_unfinished_snapshot_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(NotFoundError, match="no snapshot at"):
        Dataset.load(str(tmp_path / "s"))
    path = write(tmp_path / "s", [[1], [2]], done=False, windows=9)
    with pytest.raises(FailedPreconditionError, match=r"2 of at most 9 chunks.*wait=True"):
        Dataset.load(path)


def test_error_of_failed_snapshot_is_raised_on_load(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path, [[1]], done=False)
    error = {
        "code": "USER_FUNCTION",
        "message": "it raised",
        "details": {"user_traceback": "line 7", "worker": "w:1"},
    }
    SnapshotFolder(path).write_marker("ERROR", {"snapshot_id": "s1", "error": error})
    for wait in (False, True):
        with pytest.raises(UserFunctionError, match=r"the snapshot .* failed: it raised") as caught:
            Dataset.load(path, wait=wait)
        assert (caught.value.user_traceback, caught.value.worker) == ("line 7", "w:1")


def test_invalid_load_arguments_are_refused(saved: str) -> None:
    with pytest.raises(InvalidArgumentError, match="the path of a snapshot, got ''"):
        Dataset.load("")
    with pytest.raises(InvalidArgumentError, match="wait must be True or False, got 'yes'"):
        Dataset.load(saved, wait="yes")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="storage_options"):
        Dataset.load(saved, storage_options={1: 2})  # type: ignore[dict-item]
