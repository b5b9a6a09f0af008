"""Deliberate mistakes in saving datasets, each of which the simulation must notice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dataservice.dataset.snapshots import atomic_folder
from dataservice.dataset.snapshots.atomic_folder import AtomicFolder
from dataservice.dataset.snapshots.folder import SnapshotFolder
from dataservice.dataset.snapshots.format import METADATA, Chunk
from dataservice.dispatcher import saving
from dataservice.dispatcher.requests import Decision
from dataservice.dispatcher.snapshots import Snapshot, Snapshots
from dataservice.wire import dispatcher_pb2 as pb
from dataservice.worker.snapshot_writer import SnapshotWriter
from tests.simulation.mutants import Mutant

Patch = pytest.MonkeyPatch

SNAPSHOT_MUTANTS: list[Mutant] = []


def mutant(*signs: str) -> Callable[[Callable[[Patch], None]], None]:
    def note(apply: Callable[[Patch], None]) -> None:
        SNAPSHOT_MUTANTS.append(Mutant(apply.__name__, apply, signs))

    return note


# Files


@mutant("S1", "S2", "S3")
def attempts_share_chunk_names(patch: Patch) -> None:
    patch.setattr(Chunk, "name", property(lambda self: f"chunk_{self.number:08}_{self.rows}.arrow"))


@mutant("S1", "S2", "S3")
def file_contents_are_not_synced(patch: Patch) -> None:
    disk = atomic_folder.os
    quiet = _Without(
        disk, "fsync", lambda what: disk.fsync(what) if isinstance(what, str) else None
    )
    patch.setattr(atomic_folder, "os", quiet)


class _Without:
    """A module in which one function is replaced by another."""

    def __init__(self, module: Any, name: str, function: Callable[..., Any]) -> None:
        self._module, self._name, self._function = module, name, function

    def __getattr__(self, name: str) -> Any:
        return self._function if name == self._name else getattr(self._module, name)


@mutant("S1", "S2", "S3")
def folders_are_not_synced(patch: Patch) -> None:
    patch.setattr(atomic_folder, "sync_folder", lambda _path: None)


@mutant("S1", "S2", "S4")
def files_are_written_without_atomic_rename(patch: Patch) -> None:
    def commit(self: Any, draft: str, name: str, **_more: bool) -> None:
        self._files.put_file(draft, f"{self._root}/{name}")

    patch.setattr(AtomicFolder, "commit", commit)
    original = AtomicFolder.__init__

    def init(self: Any, *args: Any, **more: Any) -> None:
        original(self, *args, **more)
        self._is_local = False

    patch.setattr(AtomicFolder, "__init__", init)


@mutant("S2", "S4")
def metadata_of_another_snapshot_is_overwritten(patch: Patch) -> None:
    def write_metadata(self: Any, metadata: Any) -> None:
        self._write_json(METADATA, metadata.to_json())

    patch.setattr(SnapshotFolder, "write_metadata", write_metadata)


@mutant("S4")
def rename_replaces_existing_files(patch: Patch) -> None:
    def rename_once(self: Any, passing: str, final: str, **_more: bool) -> None:
        if self._files.exists(final):
            self._files.rm_file(final)
        self._files.mv(passing, final)

    patch.setattr(AtomicFolder, "_rename_once", rename_once)


@mutant("S2", "S1")
def windows_are_reported_before_their_chunks_are_committed(patch: Patch) -> None:
    original = AtomicFolder.commit

    def commit(self: Any, draft: str, name: str, **_more: bool) -> None:
        if not name.startswith("chunks") or self._files._world.dice.random() < 0.9:
            original(self, draft, name)

    patch.setattr(AtomicFolder, "commit", commit)


@mutant("S1", "S3")
def each_writer_removes_the_chunks_of_others(patch: Patch) -> None:
    original = SnapshotFolder.write_chunk

    def write_chunk(self: Any, *args: Any) -> Any:
        chunk = original(self, *args)
        self._remove_all_but([] if chunk is None else [chunk.name])
        return chunk

    patch.setattr(SnapshotFolder, "write_chunk", write_chunk)


# Windows


@mutant("S4", "I5")
def windows_of_lost_workers_are_not_freed(patch: Patch) -> None:
    patch.setattr(Snapshots, "lose_worker", lambda _self, _worker_id: None)


@mutant("S4")
def lost_lease_reply_is_not_repeated(patch: Patch) -> None:
    original = saving.lease

    def lease(state: Any, request: Any) -> Decision:
        known = saving.find(state, request.snapshot_id).leased_to(request.worker_id)
        return original(state, replace(request, holding=known))

    patch.setattr(saving, "lease", lease)


@mutant("I5", "S1")
def compaction_forgets_chunks(patch: Patch) -> None:
    original = Snapshots.facts
    patch.setattr(
        Snapshots, "facts", lambda self: (replace(fact, chunks=()) for fact in original(self))
    )


@mutant("S5", "S4")
def writers_outlive_their_snapshot(patch: Patch) -> None:
    original = SnapshotWriter._report

    def report(self: Any) -> Any:
        reply = original(self)
        if reply.over and not reply.marker:
            self._changed.wait(None)
        return reply

    def locked(self: Any) -> Any:
        with self._changed:
            return report(self)

    patch.setattr(SnapshotWriter, "_report", locked)


# The end


@mutant("S1")
def done_is_written_when_all_windows_are_leased(patch: Patch) -> None:
    def is_written(self: Any) -> bool:
        table = self.windows
        if self.error:
            return False
        return table is None or (table.is_exhausted and table.cursor == table.planned)

    patch.setattr(Snapshot, "is_written", property(is_written))


@mutant("S4", "I5")
def lost_worker_keeps_the_task_of_writing_done(patch: Patch) -> None:
    original = Snapshot.lose_worker

    def lose_worker(self: Any, worker_id: Any) -> None:
        marker_worker = self.marker_worker
        original(self, worker_id)
        self.marker_worker = marker_worker

    patch.setattr(Snapshot, "lose_worker", lose_worker)


@mutant("S2")
def done_is_reported_before_it_is_written(patch: Patch) -> None:
    def mark(self: Any, name: str, content: str) -> bool:
        request = pb.WorkOnSnapshotRequest(
            worker_id=self._worker_id, snapshot_id=self._snapshot_id, marked=True
        )
        self._link.work_on_snapshot(request, self._is_stopping)
        self._write_marker(self._folder, name, content)
        return True

    patch.setattr(SnapshotWriter, "_mark", mark)


@mutant("S1", "S2", "S3", "S4")
def repeated_save_request_starts_another_snapshot(patch: Patch) -> None:
    original = saving.attach

    def attach(state: Any, request: Any) -> Snapshot | None:
        return original(state, replace(request, snapshot_id="another"))

    patch.setattr(saving, "attach", attach)
