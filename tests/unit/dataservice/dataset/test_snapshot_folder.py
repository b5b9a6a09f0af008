"""A snapshot's folder: whole files under final names, their contents, errors that name them."""

from __future__ import annotations

import errno
import json
import os
import pathlib
import shutil
import threading
from collections.abc import Iterator
from typing import NoReturn

import fsspec
import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from dataservice.dataset.snapshots.atomic_folder import AtomicFolder
from dataservice.dataset.snapshots.folder import SnapshotFolder
from dataservice.dataset.snapshots.format import Chunk, Done, Metadata
from dataservice.errors import (
    AlreadyExistsError,
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
    SchemaError,
    SourceError,
    UnavailableError,
)

SCHEMA = pa.schema([pa.field("x", pa.int64(), metadata={"k": "v"}), ("s", pa.string())])
META = Metadata(snapshot_id="s1", schema=SCHEMA, fingerprint="f", cardinality=-2, batch_size=7)


def batch(first: int, end: int) -> pa.RecordBatch:
    columns = {"x": list(range(first, end)), "s": [str(x) for x in range(first, end)]}
    return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)


@pytest.fixture(params=["plain", "file", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[SnapshotFolder]:
    paths = {
        "plain": str(tmp_path / "s"),
        "file": f"file://{tmp_path}/s",
        "memory": f"memory://{tmp_path}/s",
    }
    yield SnapshotFolder(paths[request.param], writes="s1")
    fsspec.filesystem("memory").store.clear()


def test_written_snapshot_files_can_be_read(folder: SnapshotFolder) -> None:
    assert (folder.metadata(), folder.done(), folder.failure()) == (None, None, None)
    assert folder.signs_of_work() == (0, 0)
    folder.write_metadata(META)
    folder.write_metadata(META)
    assert folder.metadata() == META
    assert folder.metadata().schema.equals(SCHEMA, check_metadata=True)  # type: ignore[union-attr]
    chunk = folder.write_chunk(3, SCHEMA, [batch(0, 5), batch(5, 7)], "LZ4")
    assert chunk is not None
    assert (chunk.number, chunk.rows, chunk.batches) == (3, 7, 2)
    assert chunk.name == f"chunk_00000003_7_{chunk.tag}.arrow"
    with fsspec.open(folder.chunk_path(chunk), "rb") as file:
        content = file.read()
    assert len(content) == chunk.size_bytes
    assert pa.ipc.open_file(content).read_all().column("x").to_pylist() == list(range(7))
    assert folder.signs_of_work() == (1, 0)
    folder.write_marker("DONE", Done(snapshot_id="s1", chunks=(chunk,)).to_json())
    assert folder.done() == Done(snapshot_id="s1", chunks=(chunk,))
    assert folder.holds_marker()
    assert folder.foreign_files() == []


def test_chunk_without_rows_writes_no_file(folder: SnapshotFolder) -> None:
    assert folder.write_chunk(0, SCHEMA, [batch(0, 5)], "ZSTD") is not None
    assert folder.write_chunk(1, SCHEMA, []) is None
    assert folder.signs_of_work() == (1, 0)


def test_failed_chunk_leaves_no_file(folder: SnapshotFolder) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield batch(0, 5)
        raise SchemaError("the rows fail")

    with pytest.raises(SchemaError, match="the rows fail"):
        folder.write_chunk(0, SCHEMA, batches())
    with pytest.raises(SchemaError, match="other columns than it was registered with"):
        folder.write_chunk(0, SCHEMA, [pa.RecordBatch.from_pydict({"x": [1]})])
    assert folder.signs_of_work() == (0, 0)


def test_metadata_of_other_snapshot_in_folder_is_refused(folder: SnapshotFolder) -> None:
    folder.write_metadata(META)
    other = Metadata(snapshot_id="s2", schema=SCHEMA, fingerprint="f", cardinality=-2)
    with pytest.raises(AlreadyExistsError, match="holds snapshot s1, which was saved in the"):
        folder.write_metadata(other)


def test_chunk_file_appears_only_when_complete(tmp_path: pathlib.Path) -> None:
    folder = SnapshotFolder(str(tmp_path))
    may_end = threading.Event()
    began = threading.Event()

    def slow() -> Iterator[pa.RecordBatch]:
        yield batch(0, 50_000)
        began.set()
        assert may_end.wait(10)
        yield batch(50_000, 50_001)

    writing = threading.Thread(target=folder.write_chunk, args=(0, SCHEMA, slow()))
    writing.start()
    assert began.wait(10)
    committed, under_way_bytes = folder.signs_of_work()
    assert committed == 0
    assert under_way_bytes > 100_000
    may_end.set()
    writing.join(10)
    assert folder.signs_of_work() == (1, 0)


def test_foreign_files_in_folder_are_listed(tmp_path: pathlib.Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    SnapshotFolder(str(tmp_path)).write_metadata(META)
    assert SnapshotFolder(str(tmp_path)).foreign_files() == ["precious.txt"]


@pytest.mark.parametrize("content", ["", "[]", '{"format": 1}', "{", '{"format": 1, "schema": 3}'])
def test_damaged_snapshot_metadata_is_refused(tmp_path: pathlib.Path, content: str) -> None:
    (tmp_path / "snapshot.json").write_text(content)
    with pytest.raises((DataLossError, InvalidArgumentError), match=r"snapshot\.json|format"):
        SnapshotFolder(str(tmp_path)).metadata()


def test_newer_snapshot_format_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "snapshot.json").write_text(json.dumps({**META.to_json(), "format": 2}))
    with pytest.raises(InvalidArgumentError, match=r"has format 2.*reads format 1"):
        SnapshotFolder(str(tmp_path)).metadata()


def test_storage_error_on_write_is_raised_naming_file(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = SnapshotFolder(str(tmp_path / "s"))
    for error, expected, message in (
        (OSError(28, "No space left"), ResourceExhaustedError, "no space is left to write"),
        (PermissionError(13, "denied"), FailedPreconditionError, "no permission to write"),
        (ConnectionError("away"), UnavailableError, "cannot write"),
        (OSError(5, "I/O error"), FailedPreconditionError, "cannot write"),
    ):

        def refuse(*_: object, error: OSError = error) -> None:
            raise error

        monkeypatch.setattr(os, "replace", refuse)
        with pytest.raises(expected, match=rf"{message} .*chunks/chunk_00000000_5_\w+\.arrow"):
            folder.write_chunk(0, SCHEMA, [batch(0, 5)])
    assert folder.signs_of_work() == (0, 0), "nothing is left of the attempts"
    (tmp_path / "file").write_text("")
    with pytest.raises(FailedPreconditionError, match="cannot write"):
        SnapshotFolder(str(tmp_path / "file")).write_metadata(META)


def test_failed_cleanup_does_not_undo_written_files(
    folder: SnapshotFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_path: str) -> None:
        raise ConnectionError("the storage is away")

    def failing() -> Iterator[pa.RecordBatch]:
        yield batch(0, 5)
        raise SchemaError("the rows fail")

    folder.write_metadata(META)
    monkeypatch.setattr(os, "remove", refuse)
    with pytest.raises(SchemaError, match="the rows fail"):
        folder.write_chunk(0, SCHEMA, failing())
    chunk = folder.write_chunk(0, SCHEMA, [batch(0, 5)])
    assert chunk is not None
    done = Done(snapshot_id="s1", chunks=(chunk,))
    folder.write_marker("DONE", done.to_json())
    assert folder.done() == done


def test_two_writers_of_done_marker_both_succeed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer is taken for dead while it writes DONE; a second one writes DONE and tidies up."""
    one, other = (SnapshotFolder(str(tmp_path / "s"), writes="s1") for _ in range(2))
    one.write_metadata(META)
    chunk = one.write_chunk(0, SCHEMA, [batch(0, 5)])
    assert chunk is not None
    done = Done(snapshot_id="s1", chunks=(chunk,))
    fsync = os.fsync

    def finish_first(descriptor: int) -> None:
        fsync(descriptor)
        monkeypatch.undo()
        other.write_marker("DONE", done.to_json())

    monkeypatch.setattr(os, "fsync", finish_first)
    one.write_marker("DONE", done.to_json())
    assert one.done() == done
    assert sorted(os.listdir(tmp_path / "s")) == ["DONE_s1", "chunks", "snapshot.json"]


def test_done_marker_is_not_written_into_deleted_folder(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = SnapshotFolder(str(tmp_path / "s"), writes="s1")
    folder.write_metadata(META)
    fsync = os.fsync

    def delete(descriptor: int) -> None:
        fsync(descriptor)
        monkeypatch.undo()
        shutil.rmtree(tmp_path / "s")

    monkeypatch.setattr(os, "fsync", delete)
    with pytest.raises(FailedPreconditionError, match="DONE_s1"):
        folder.write_marker("DONE", Done(snapshot_id="s1", chunks=()).to_json())
    assert not folder.holds_marker()


def test_chunk_is_not_written_into_deleted_folder(tmp_path: pathlib.Path) -> None:
    folder = SnapshotFolder(str(tmp_path / "s"))

    def deleting() -> Iterator[pa.RecordBatch]:
        yield batch(0, 5)
        shutil.rmtree(tmp_path / "s")

    with pytest.raises(FailedPreconditionError, match=r"cannot write .*chunk.*removed"):
        folder.write_chunk(0, SCHEMA, deleting())


class LockedStore(MemoryFileSystem):
    """A store that refuses everything, as without credentials, by an error that is no OSError."""

    protocol = "locked"

    def refuse(self, *_: object, **__: object) -> NoReturn:
        raise LookupError("Unable to locate credentials")

    cat_file = ls = put_file = makedirs = refuse


def test_store_without_credentials_is_refused_naming_path() -> None:
    fsspec.register_implementation("locked", LockedStore, clobber=True)
    folder = SnapshotFolder("locked://a/b")
    for read in (folder.metadata, folder.signs_of_work):
        with pytest.raises(SourceError, match=r"cannot read 'locked://a/b.*locate credentials"):
            read()
    with pytest.raises(FailedPreconditionError, match=r"cannot write locked://a/b/.*credentials"):
        folder.write_chunk(0, SCHEMA, [batch(0, 5)])


def test_unknown_storage_protocol_is_refused() -> None:
    with pytest.raises(OSError, match="nosuch://"):
        SnapshotFolder("nosuch://a/b")


def test_unknown_file_system_option_is_refused() -> None:
    with pytest.raises(SourceError, match=r"cannot read 'memory://a/b'.*argument 'url'"):
        SnapshotFolder("memory://a/b", {"url": "c"})


def test_repeated_chunk_has_own_file_and_unlisted_one_is_removed(
    folder: SnapshotFolder,
) -> None:
    folder.write_metadata(META)
    first = folder.write_chunk(0, SCHEMA, [batch(0, 5)])
    again = folder.write_chunk(0, SCHEMA, [batch(5, 10)])
    assert first is not None
    assert again is not None
    assert first.name != again.name
    folder.write_marker("DONE", Done(snapshot_id="s1", chunks=(first,)).to_json())
    with fsspec.open(folder.chunk_path(first), "rb") as file:
        assert pa.ipc.open_file(file.read()).read_all().column("x").to_pylist() == [0, 1, 2, 3, 4]
    assert folder.signs_of_work() == (1, 0)
    assert folder.done() == Done(snapshot_id="s1", chunks=(first,))


def test_chunk_of_earlier_version_has_no_tag() -> None:
    done = Done.from_json({"snapshot_id": "s1", "chunks": [[3, 7, 99, 1]]})
    assert done.chunks == (Chunk(3, 7, 99, 1),)
    assert done.chunks[0].name == "chunk_00000003_7.arrow"


def test_chunk_names_sort_by_number() -> None:
    names = [Chunk(number, 5, 1, 1).name for number in (2, 10, 100)]
    assert names == sorted(names)


@pytest.mark.parametrize("late", ["DONE", "ERROR"])
def test_late_marker_of_other_snapshot_in_folder_changes_nothing(
    tmp_path: pathlib.Path, late: str
) -> None:
    """The late writer was frozen after it had found its own snapshot in the folder."""
    zombie = SnapshotFolder(str(tmp_path / "s"), writes="s0")
    folder = SnapshotFolder(str(tmp_path / "s"), writes="s1")
    folder.write_metadata(META)
    lost = zombie.write_chunk(0, SCHEMA, [batch(5, 10)])
    chunk = folder.write_chunk(0, SCHEMA, [batch(0, 5)])
    assert chunk is not None
    assert lost is not None
    done = Done(snapshot_id="s1", chunks=(chunk,))

    def end_of_zombie() -> None:
        content = Done(snapshot_id="s0", chunks=(lost,)).to_json() if late == "DONE" else {}
        zombie.write_marker(late, {"snapshot_id": "s0", "error": {}, **content})

    with folder._files.draft() as draft:
        pathlib.Path(draft).write_text("under way")
        end_of_zombie()
        assert folder.done() is None
        assert folder.failure() is None
        assert pathlib.Path(draft).exists()
    folder.write_marker("DONE", done.to_json())
    end_of_zombie()
    assert (folder.done(), folder.failure()) == (done, None)
    assert pathlib.Path(folder.chunk_path(chunk)).exists()


def test_error_marker_replaces_done_of_failed_snapshot(
    folder: SnapshotFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its DONE was already visible when the disk refused to keep it."""
    folder.write_metadata(META)
    done = Done(snapshot_id="s1", chunks=()).to_json()
    commit = AtomicFolder.commit

    def fails_late(self: AtomicFolder, draft: str, name: str, **more: bool) -> None:
        commit(self, draft, name, **more)
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(AtomicFolder, "commit", fails_late)
    with pytest.raises(OSError, match="input/output"):
        folder.write_marker("DONE", done)
    monkeypatch.setattr(AtomicFolder, "commit", commit)
    assert folder.done() is not None
    folder.write_marker("ERROR", {"snapshot_id": "s1", "error": {"message": "EIO"}})
    assert (folder.done(), folder.failure()) == (None, {"message": "EIO"})
    folder.write_marker("ERROR", {"snapshot_id": "s1", "error": {"message": "EIO"}})


def test_done_marker_of_earlier_version_without_snapshot_id_is_read(tmp_path: pathlib.Path) -> None:
    folder = SnapshotFolder(str(tmp_path))
    folder.write_metadata(META)
    done = Done(snapshot_id="s1", chunks=())
    (tmp_path / "DONE").write_text(json.dumps(done.to_json()))
    assert folder.done() == done
