"""What must hold of saved datasets at every step, whatever fails.

S1: a snapshot that DONE stands in has each row of its dataset exactly once, now and for ever; of a
plan that is not divided, rows of one pass and in its order. S2: what the dispatcher has recorded as
written is there and whole, and a snapshot that is done stands in its folder unless that was deleted
(an object store cannot keep others from writing over its name). S3: what is recorded as written
never changes. S4: a snapshot ends, as done or as failed, and only for a reason; whoever saves is
not told of what it began itself as of another's. S5: when it has ended, nobody works on it any
more. I5: what the disk has is the state.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

import pyarrow as pa

from dataservice.dataset.snapshot_format import CHUNKS, DONE, ERROR, METADATA, Chunk
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
        self.may_fail = False
        self.broken: Violation | None = None
        self.savers = 0
        self._datasets: dict[str, str] = {}
        self._committed: dict[str, int] = {}
        # Begun since the folder was deleted, if it ever was.
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
        """A file came, changed or went. Its writer would take an error for its own."""
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
        """The user removed the folder."""
        self._committed.clear()
        self._begun.clear()

    def check_done(self) -> None:
        """The snapshot that DONE stands in."""
        metadata = self.disk.content(f"{PATH}/{METADATA}")
        if metadata is None:
            return
        snapshot_id = json.loads(metadata)["snapshot_id"]
        content = self.disk.content(f"{PATH}/{DONE}_{snapshot_id}")
        if content is None:
            return
        done = json.loads(content)
        if self.disk.content(f"{PATH}/{ERROR}_{snapshot_id}") is not None:
            raise Violation(f"S4: both {DONE} and {ERROR}")
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
        """A program is told that there is something already."""
        if self.savers == 1:
            raise Violation(f"S4: {node.name} alone is told: {error}") from error

    def failed(self, node: Any, error: DataServiceError) -> None:
        """A snapshot failed."""
        plan = self._plans[node.dataset_id]
        if isinstance(error, UserFunctionError) and plan.failing is not None:
            return
        if self.may_fail or isinstance(error, CancelledError):
            return
        raise Violation(f"S4: {node.name} fails: {error!r}") from error

    def check_idle(self, workers: Any) -> None:
        """Everything has ended."""
        busy = {worker.name: worker.writers() for worker in workers if worker.writers()}
        if busy:
            raise Violation(f"S5: {busy} still write")


def watched(world: Any, layout: str, checker: SnapshotChecker) -> Disk:
    """A disk whose changes the checker sees."""
    checker.disk = Disk(world, layout, checker.changed)
    return checker.disk
