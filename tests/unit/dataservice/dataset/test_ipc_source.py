"""Arrow IPC files and streams as rows: splits, shared memory, positions, damage."""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dataservice.dataset.dataset import Dataset
from dataservice.dataset.division.linearise import linearise
from dataservice.dataset.division.splits import open_window, plan_splits
from dataservice.dataset.expressions import col
from dataservice.dataset.node import UNKNOWN_CARDINALITY
from dataservice.dataset.optimise import optimise
from dataservice.dataset.plan import decode_plan, encode_plan
from dataservice.dataset.stream import RunContext
from dataservice.errors import InvalidArgumentError, SchemaError, SourceError, UserFunctionError
from tests.planned_windows import plan_windows
from tests.unit.dataservice.dataset.checkpoint_checker import check_positions, run, values


def write(
    path: pathlib.Path,
    columns: dict[str, Any] | pa.Table,
    rows: int = 1 << 40,
    *,
    stream: bool = False,
    **options: Any,
) -> str:
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    opener = pa.ipc.new_stream if stream else pa.ipc.new_file
    settings = pa.ipc.IpcWriteOptions(**options)
    with pa.OSFile(str(path), "wb") as sink, opener(sink, table.schema, options=settings) as writer:
        writer.write_table(table, max_chunksize=rows)
    return str(path)


def table(first: int, end: int) -> pa.Table:
    return pa.table({"s": [f"n{x}" for x in range(first, end)], "x": np.arange(first, end)})


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    write(tmp_path / "a.arrow", table(0, 1_000), 90, compression="zstd")
    write(tmp_path / "b.feather", table(1_000, 1_500), 200)
    write(tmp_path / "c.arrows", table(1_500, 1_600), 30, stream=True)
    return tmp_path


def rows_by_windows(dataset: Dataset) -> list[int]:
    linear = linearise(decode_plan(encode_plan(dataset.node)))
    rows: list[int] = []
    for window in plan_windows(linear, plan_splits(linear), 0):
        with open_window(
            linear, window.splits, epoch=0, window_index=window.index, context=RunContext()
        ) as stream:
            rows += values(list(stream))
    return rows


def test_ipc_files_and_streams_are_read_in_order(folder: pathlib.Path) -> None:
    dataset = Dataset.from_ipc(str(folder))
    assert values(run(dataset)) == list(range(1_600))
    assert dataset.schema == pa.schema([("s", pa.string()), ("x", pa.int64())])
    assert dataset.cardinality() == UNKNOWN_CARDINALITY
    assert Dataset.from_ipc(str(folder / "[ab].*")).cardinality() == 1_500
    check_positions(dataset)
    check_positions(dataset.shuffle(100, seed=2).batch(150))
    assert sorted(rows_by_windows(dataset)) == list(range(1_600))
    remote = Dataset.from_ipc(f"file://{folder}/*.arrow*")
    assert values(run(remote)) == [*range(1_000), *range(1_500, 1_600)]
    copied = Dataset.from_ipc(str(folder), memory_map=False)
    assert values(run(copied)) == list(range(1_600))


def test_ipc_splits_are_record_batches_with_small_ones_merged(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "a.arrow", {"x": np.arange(300_000)}, 50_000)
    splits = plan_splits(linearise(Dataset.from_ipc(path).node))
    assert [split.row_groups for split in splits] == [(n,) for n in range(6)]
    small = write(tmp_path / "b.arrow", {"x": np.arange(300_000)}, 10_000)
    splits = plan_splits(linearise(Dataset.from_ipc(small).node))
    assert [split.rows for split in splits] == [60_000] * 5
    assert rows_by_windows(Dataset.from_ipc(small).skip(70_001).take(55_000)) == list(
        range(70_001, 125_001)
    )


def test_rows_of_local_ipc_file_are_not_copied(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "a.arrow", {"x": np.arange(50_000)})
    before = pa.total_allocated_bytes()
    batches = run(Dataset.from_ipc(path))
    assert pa.total_allocated_bytes() - before < 10_000, before
    assert values(batches) == list(range(50_000))
    assert len(batches) == 1


def test_ipc_columns_are_selected_and_pushed_down(folder: pathlib.Path) -> None:
    path = str(folder / "*.*")
    assert Dataset.from_ipc(path, columns=["x", "s"]).schema.names == ["x", "s"]
    pushed = optimise(Dataset.from_ipc(path).select("x").node)
    assert pushed.kind == "ipc"
    assert run(pushed)[0].schema.names == ["x"]
    assert values(run(Dataset.from_ipc(path).filter(col("x") > 1_597))) == [1_598, 1_599]
    with pytest.raises(SchemaError, match=r"no column 'y'; the columns are \['s', 'x'\]"):
        run(Dataset.from_ipc(path, columns=["y"]))


def test_ipc_files_with_reordered_encoded_or_empty_columns_are_read(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "a.arrow", {"x": [1], "s": pa.array(["u"]).dictionary_encode()})
    write(tmp_path / "b.arrow", {"s": ["v"], "x": [2]})
    write(tmp_path / "c.arrow", {"s": pa.array([], pa.string()), "x": pa.array([], pa.int64())})
    dataset = Dataset.from_ipc(str(tmp_path))
    assert dataset.to_table().to_pydict() == {"x": [1, 2], "s": ["u", "v"]}
    assert dataset.cardinality() == 2


@pytest.mark.parametrize("content", [b"", b"ARROW1", b"FEA1abcdefgh", b"hello world, not arrow"])
def test_file_that_is_not_arrow_is_refused(tmp_path: pathlib.Path, content: bytes) -> None:
    path = tmp_path / "bad.arrow"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=r"bad\.arrow' is (not a readable|a Feather file of)"):
        run(Dataset.from_ipc(str(path)))


def test_truncated_or_damaged_ipc_file_is_refused(tmp_path: pathlib.Path) -> None:
    path = pathlib.Path(write(tmp_path / "a.arrow", table(0, 500), 100))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SourceError, match=r"a\.arrow' is not a readable.*cut short"):
        run(Dataset.from_ipc(str(path)))
    damaged = bytearray(whole)
    offsets = np.arange(0, 404, 4, dtype="<i4").tobytes()  # of the strings of batches 1 to 4
    at = whole.index(offsets, whole.index(offsets) + 1)
    damaged[at + 8 : at + 12] = b"\x7f" * 4
    path.write_bytes(bytes(damaged))
    with pytest.raises(SourceError, match=r"a\.arrow', record batch 2, cannot be decoded"):
        run(Dataset.from_ipc(str(path)))


def test_error_source_of_many_record_batches_is_abbreviated(tmp_path: pathlib.Path) -> None:
    def fail(_: Any) -> Any:
        raise ValueError("no")

    path = write(tmp_path / "a.arrow", table(0, 500), 1)
    data = Dataset.from_ipc(path).batch(100).map(fail, schema=pa.schema({"x": pa.int64()}))
    with pytest.raises(UserFunctionError) as caught:
        run(data)
    assert caught.value.source.startswith(f"{path} record batch 0, 1, 2, 3 and 496 more, rows 0..")


def test_differing_or_changed_ipc_files_are_refused(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "a.arrow", {"x": [1]})
    write(tmp_path / "b.arrow", {"x": ["one"]})
    with pytest.raises(SchemaError, match=r"'x' is of type int64 in '.*a\.arrow'.*as string"):
        run(Dataset.from_ipc(str(tmp_path)))
    linear = linearise(Dataset.from_ipc(str(tmp_path / "a.arrow")).node)
    splits = plan_splits(linear)
    write(tmp_path / "a.arrow", {"x": [1, 2]})
    stream = open_window(linear, splits, epoch=0, window_index=0, context=RunContext())
    with pytest.raises(SourceError, match="has changed since it was planned"):
        next(stream)


@pytest.fixture
def mapped_paths(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Records the files that are mapped from now on, in order."""
    paths: list[str] = []
    original = pa.memory_map

    def memory_map(path: str) -> Any:
        paths.append(path)
        return original(path)

    monkeypatch.setattr(pa, "memory_map", memory_map)
    return paths


def test_mapped_file_stays_open_between_its_splits(
    tmp_path: pathlib.Path, mapped_paths: list[str]
) -> None:
    path = write(tmp_path / "a.arrow", table(0, 200_000), 66_000)
    source = linearise(Dataset.from_ipc(path).node).segments[0].source
    splits = source.plan()
    mapped_paths.clear()
    parts = [list(source.read(split, 0, RunContext())) for split in splits for _ in range(2)]
    assert len(splits) == 4
    assert sum(batch.num_rows for part in parts for batch in part) == 2 * 200_000
    assert mapped_paths == [path]


def test_concurrent_readers_map_file_separately(
    tmp_path: pathlib.Path, mapped_paths: list[str]
) -> None:
    path = write(tmp_path / "a.arrow", table(0, 200_000), 100_000)
    source = linearise(Dataset.from_ipc(path).node).segments[0].source
    splits = source.plan()
    mapped_paths.clear()
    for _ in range(2):
        first, second = (source.read(split, 0, RunContext()) for split in splits)
        assert next(first).column("x")[0].as_py() == 0
        assert next(second).column("x")[0].as_py() == 100_000
        # Both reads are abandoned in the middle.
        first.close()
        second.close()
    assert mapped_paths == [path, path]


def test_replaced_file_is_mapped_anew(tmp_path: pathlib.Path, mapped_paths: list[str]) -> None:
    path = write(tmp_path / "a.arrow", table(0, 10))
    dataset = Dataset.from_ipc(path)
    assert rows_by_windows(dataset) == list(range(10))
    write(tmp_path / "a.arrow", table(5, 30))
    mapped_paths.clear()
    assert rows_by_windows(dataset) == list(range(5, 30))
    assert mapped_paths


@pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc")
def test_number_of_mapped_files_is_bounded(tmp_path: pathlib.Path) -> None:
    for number in range(40):
        write(tmp_path / f"{number:02}.arrow", table(number, number + 1))
    source = linearise(Dataset.from_ipc(str(tmp_path)).node).segments[0].source
    found = [
        batch.column("x")[0].as_py()
        for split in source.plan()
        for batch in source.read(split, 0, RunContext())
    ]
    assert found == list(range(40))
    mapped = pathlib.Path("/proc/self/maps").read_text().count(str(tmp_path))
    assert 0 < mapped <= 16


def test_invalid_ipc_arguments_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="list of column names, got 3"):
        Dataset.from_ipc("a", columns=3)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="memory_map must be True or False, got 1"):
        Dataset.from_ipc("a", memory_map=1)  # type: ignore[arg-type]
    with pytest.raises(SourceError, match=r"no file 'nope\.arrow'"):
        run(Dataset.from_ipc("nope.arrow"))
