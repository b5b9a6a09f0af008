"""Checks saved datasets at every step, whatever fails.

S1: a snapshot with a DONE file has each row of its dataset exactly once, from then on; if its plan
is not divided, the rows are those of one pass and in its order. S2: chunks that are recorded as
written exist and are whole, and a finished snapshot is in its folder unless the folder was deleted
(an object store cannot keep others from overwriting its metadata). S3: chunks that are recorded as
written never change. S4: a snapshot ends, as done or as failed, and fails only for a reason; a
program is not told that the snapshot which it began itself belongs to another. A DONE that a frozen
worker writes after the ERROR of another counts for nothing: readers look for ERROR first. S5: no
worker works on a snapshot that has ended. I5: the state is what the disk says.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

import pyarrow as pa

from dataservice.dataset.snapshots.format import CHUNKS, DONE, ERROR, METADATA, Chunk
from dataservice.dispatcher import snapshot_events as ev
from dataservice.dispatcher.events import Event
from dataservice.errors import CancelledError, DataServiceError, UserFunctionError
from tests.simulation.shadow import Shadow, Violation
from tests.simulation.snapshot_nodes import PATH, Rows
from tests.simulation.virtual_disk import Disk


class SnapshotChecker(Shadow):
    """Watches durable frames and the storage."""

    def __init__(self, plans: dict[str, Rows]) -> None:
        super().__init__()
        self._plans = plans
        self.disk: Any = None
        self.finished: set[str] = set()
        self.done_too_late: set[str] = set()
        self.may_fail = self.may_write_late = False
        self.broken: Violation | None = None
        self.savers = 0
        self._datasets: dict[str, str] = {}
        self._committed: dict[str, int] = {}
        # The snapshots begun since the folder was last deleted.
        self._begun: set[str] = set()

    # The dispatcher

    def _before(self, event: Event) -> None:
        match event:
            case ev.SnapshotStarted():
                self._datasets[event.snapshot_id] = event.dataset_id
                self._begun.add(event.snapshot_id)
            case ev.SnapshotWindowsFinished():
                if self._is_at_path(event.snapshot_id):
                    for entry in event.chunks:
                        self._note_committed(Chunk(*entry))
            case ev.SnapshotDone():
                self._note_end(event.snapshot_id)

    def _is_at_path(self, snapshot_id: str) -> bool:
        content = self.disk.content(f"{PATH}/{METADATA}")
        return content is not None and json.loads(content)["snapshot_id"] == snapshot_id

    def _note_committed(self, chunk: Chunk) -> None:
        path = f"{PATH}/{CHUNKS}/{chunk.name}"
        content = self.disk.content(path)
        if content is None or len(content) != chunk.size_bytes:
            raise Violation(f"S2: {path} is recorded as written and is not whole")
        self._committed[path] = zlib.crc32(content)

    def _note_end(self, snapshot_id: str) -> None:
        snapshot = self.shadow.snapshots.by_id[snapshot_id]  # type: ignore[index]
        if snapshot.error:
            return
        if not self._is_at_path(snapshot_id):
            if snapshot_id in self._begun and self.disk.protocol != "s3":
                raise Violation(f"S2: {snapshot_id} is done, and another stands in its folder")
            return
        if self.disk.content(f"{PATH}/{DONE}_{snapshot_id}") is None:
            raise Violation(f"S2: {snapshot_id} is done without {DONE}")
        self.finished.add(snapshot_id)

    # The storage

    def changed(self, path: str) -> None:
        """Called when a file came, changed or went.

        Keeps a violation for later, as the writer of the file would take an error for its own.
        """
        try:
            self._check_file(path)
        except Violation as violation:
            self.broken = self.broken or violation

    def _check_file(self, path: str) -> None:
        content = self.disk.content(path)
        known = self._committed.get(path)
        if known is not None and (content is None or zlib.crc32(content) != known):
            raise Violation(f"S3: {path} has changed")
        if path.startswith(f"{PATH}/{DONE}") and content is not None:
            self.check_done()

    def deleted(self) -> None:
        """Called when the user has removed the folder."""
        self._committed.clear()
        self._begun.clear()

    def check_done(self) -> None:
        """Checks the snapshot in the folder if it has a DONE file."""
        metadata = self.disk.content(f"{PATH}/{METADATA}")
        if metadata is None:
            return
        snapshot_id = json.loads(metadata)["snapshot_id"]
        content = self.disk.content(f"{PATH}/{DONE}_{snapshot_id}")
        if content is None:
            return
        done = json.loads(content)
        if self.disk.content(f"{PATH}/{ERROR}_{snapshot_id}") is not None:
            if not self.may_write_late:
                raise Violation(f"S4: both {DONE} and {ERROR}")
            self.done_too_late.add(snapshot_id)
            return
        if done["snapshot_id"] != snapshot_id:
            raise Violation(f"S1: {DONE} of {done['snapshot_id']} stands for another snapshot")
        plan = self._plans[self._datasets[done["snapshot_id"]]]
        rows = [row for entry in done["chunks"] for row in self._rows_of(Chunk(*entry))]
        ids = [row["id"] for row in rows]
        if plan.plan is None and (ids != plan.expected() or len({r["maker"] for r in rows}) > 1):
            raise Violation(f"S1: {rows} are not the rows of one pass")
        if sorted(ids) != sorted(plan.expected()):
            missing = set(plan.expected()) - set(ids)
            raise Violation(f"S1: {len(ids)} of {len(plan.expected())} rows, missing {missing}")

    def _rows_of(self, chunk: Chunk) -> list[dict[str, Any]]:
        content = self.disk.content(f"{PATH}/{CHUNKS}/{chunk.name}")
        if content is None:
            raise Violation(f"S1: {chunk.name} is listed and is not there")
        try:
            rows: list[dict[str, Any]] = pa.ipc.open_file(content).read_all().to_pylist()
        except (pa.ArrowInvalid, OSError) as error:
            raise Violation(f"S1: {chunk.name} is listed and not whole: {error}") from error
        if len(rows) != chunk.rows:
            raise Violation(f"S1: {chunk.name} has {len(rows)} rows")
        return rows

    # Programs

    def refused(self, node: Any, error: DataServiceError) -> None:
        """Called when a program is told that the folder holds a snapshot already."""
        if self.savers == 1:
            raise Violation(f"S4: {node.name} alone is told: {error}") from error

    def failed(self, node: Any, error: DataServiceError) -> None:
        """Called when a program's snapshot has failed."""
        plan = self._plans[node.dataset_id]
        if isinstance(error, UserFunctionError) and plan.failing is not None:
            return
        if self.may_fail or isinstance(error, CancelledError):
            return
        raise Violation(f"S4: {node.name} fails: {error!r}") from error

    def check_idle(self, workers: Any) -> None:
        """Checks after the end that no worker writes."""
        busy = {worker.name: worker.writers() for worker in workers if worker.writers()}
        if busy:
            raise Violation(f"S5: {busy} still write")


def watched(world: Any, layout: str, checker: SnapshotChecker) -> Disk:
    """Returns a disk that reports its changes to the checker."""
    checker.disk = Disk(world, layout, checker.changed)
    return checker.disk
