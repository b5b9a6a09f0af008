"""Saving a dataset: the function that users call, and the handle by which they follow the snapshot.

Responsible for checking the arguments and the folder, registering the plan and asking the
dispatcher. Writes no data itself. Invariant: an error that can be foreseen is raised here, in the
user's process, and names the remedy.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dataservice.client.arguments import check_saved_compression, checked_timeout_s
from dataservice.client.connection import DEFAULT_TIMEOUT_S, DispatcherConnection
from dataservice.client.registration import Service, register_quietly
from dataservice.dataset.dataset import Dataset
from dataservice.dataset.snapshots.folder import SnapshotFolder
from dataservice.dataset.snapshots.waiting import failure_of
from dataservice.dataset.sources.paths import check_storage_options, is_local
from dataservice.errors import (
    DeadlineExceededError,
    ExistingFileError,
    InvalidArgumentError,
    InvalidTypeError,
)
from dataservice.runtime.arguments import limit_s
from dataservice.runtime.identity import new_id
from dataservice.runtime.refused_arguments import refuse_arguments
from dataservice.runtime.refused_timeouts import TIMEOUT, refuse_timeout
from dataservice.vocabulary import parse_target
from dataservice.wire import dispatcher_pb2 as pb

logger = logging.getLogger(__name__)

OF_SAVE: Final = {"data_service_address": "write service="} | TIMEOUT
"""What tf.data calls the arguments of `save`."""
_UNKNOWN: Final = "unknown"
_FIRST_PAUSE_S: Final = 0.02
_MAX_PAUSE_S: Final = 0.5
_NOTICE_INTERVAL_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotProgress:
    """The progress of a snapshot.

    `state` is "writing", "done" or "failed". `windows` counts the windows planned so far: in a
    dataset that repeats, each pass is planned when all windows of the pass before it have been
    handed out, and `more_rounds` says that further passes follow. `workers` counts the workers that
    are writing.
    """

    state: str
    windows_done: int
    windows: int
    more_rounds: bool
    rows: int
    size_bytes: int
    workers: int


class Snapshot:
    """A handle on a dataset that the data workers save to `path`.

    The workers write it whether or not the handle still exists.
    """

    def __init__(self, path: str, snapshot_id: str, target: str, timeout_s: float) -> None:
        self.path = path
        self.snapshot_id = snapshot_id
        self._target = target
        self._timeout_s = timeout_s

    def progress(self) -> SnapshotProgress:
        """Asks the dispatcher for the progress; waits for a dispatcher that is down."""
        with DispatcherConnection(self._target) as connection:
            return _progress_of(self._ask(connection))

    @refuse_timeout("wait")
    def wait(self, timeout_s: float | None = None) -> SnapshotProgress:
        """Waits until everything is written; raises the error that the snapshot failed with.

        Raises DeadlineExceededError after `timeout_s`. Without a time-out, waits as long as the
        dispatcher can be reached. Logs the progress every 10 s.
        """
        timeout_s = limit_s(timeout_s, "timeout_s")
        began_s = noticed_s = time.monotonic()
        pause_s = _FIRST_PAUSE_S
        with DispatcherConnection(self._target) as connection:
            while True:
                reply = self._ask(connection)
                if reply.error:
                    raise failure_of(self.path, json.loads(reply.error))
                progress = _progress_of(reply)
                if progress.state == "done":
                    return progress
                now_s = time.monotonic()
                if timeout_s is not None and now_s - began_s >= timeout_s:
                    raise DeadlineExceededError(
                        f"the snapshot {self.path} is not finished after {timeout_s:g} s: "
                        f"{_described(progress)}"
                    )
                if now_s - noticed_s >= _NOTICE_INTERVAL_S:
                    noticed_s = now_s
                    logger.info("waiting for %s: %s", self.path, _described(progress))
                left_s = pause_s if timeout_s is None else began_s + timeout_s - now_s
                time.sleep(max(0.0, min(pause_s, left_s)))
                pause_s = min(2 * pause_s, _MAX_PAUSE_S)

    def cancel(self) -> None:
        """Ends the snapshot with an ERROR that says so; has no effect on one that is over."""
        with DispatcherConnection(self._target) as connection:
            connection.cancel_snapshot(self.snapshot_id, timeout_s=self._timeout_s)

    def __repr__(self) -> str:
        return f"Snapshot({self.path!r}, {self.snapshot_id})"

    def _ask(self, connection: DispatcherConnection) -> pb.GetSnapshotReply:
        return connection.get_snapshot(self.snapshot_id, timeout_s=self._timeout_s)


@refuse_arguments("save", OF_SAVE)
def save(
    dataset: Dataset,
    path: str,
    service: Service,
    compression: str | None = "AUTO",
    *,
    storage_options: Mapping[str, Any] | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> Snapshot:
    """Has the data workers of `service` write the dataset to `path`, and returns at once.

    Every element is written once, even if workers or a fault-tolerant dispatcher restart meanwhile.
    `path` is a folder or an fsspec URL that all data workers can reach. `storage_options` travel
    with the request, so prefer credentials of the machines that write. Repeating the call attaches
    to a snapshot that is not finished. Raises ExistingFileError if the folder holds another
    snapshot or a finished one. `compression` is as in `register_dataset`; "GZIP", which tf.data
    also has, is taken as "ZSTD". Read the snapshot with `Dataset.load`.
    """
    target = parse_target(service)
    checked = _checked_path(path)
    check_storage_options(storage_options)
    codec = check_saved_compression(compression)
    timeout_s = checked_timeout_s(timeout_s)
    if not isinstance(dataset, Dataset):
        raise InvalidTypeError(f"dataset must be a Dataset, got {type(dataset).__name__}")
    if dataset.is_endless:
        raise InvalidArgumentError(
            "Saving an infinite dataset is not allowed; put take(n) after repeat(), or give "
            "repeat a count"
        )
    found_id = _snapshot_at(checked, storage_options)
    # Quietly: the warning about replay is for readers. Here a window is committed once, however
    # often its writing was begun.
    dataset_id = register_quietly(target, dataset, None, None, timeout_s)
    request = pb.StartSnapshotRequest(
        dataset_id=dataset_id,
        path=checked,
        compression="NONE" if codec == "AUTO" else codec,
        storage_options=json.dumps(dict(storage_options or {})),
        found_id=found_id,
        snapshot_id=new_id("snapshot"),
    )
    with DispatcherConnection(target) as connection:
        reply = connection.start_snapshot(request, timeout_s=timeout_s)
    return Snapshot(checked, reply.snapshot_id, target, timeout_s)


def _checked_path(path: Any) -> str:
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise InvalidTypeError(f"path must be a folder or a URL, got {path!r}")
    text = str(os.fspath(path))
    # Absolute, since workers have other working directories.
    return os.path.abspath(text) if is_local(text) else text.rstrip("/")


def _snapshot_at(path: str, options: Mapping[str, Any] | None) -> str:
    """Returns the id of the snapshot in a folder, "" if there is none.

    Returns "unknown" if there is a marker file but no metadata.
    """
    folder = SnapshotFolder(path, options)
    found = folder.metadata()
    if found is not None:
        return found.snapshot_id
    if folder.holds_marker():
        return _UNKNOWN
    foreign = folder.foreign_files()
    if foreign:
        raise ExistingFileError(
            f"{path} holds other files ({', '.join(foreign[:3])}); save to a folder of its own"
        )
    return ""


def _progress_of(reply: pb.GetSnapshotReply) -> SnapshotProgress:
    values = json.loads(reply.json)
    return SnapshotProgress(**{name: values[name] for name in SnapshotProgress.__slots__})


def _described(progress: SnapshotProgress) -> str:
    more = " and more" if progress.more_rounds else ""
    return (
        f"{progress.windows_done} of {progress.windows}{more} windows, {progress.rows:,} rows, "
        f"{progress.size_bytes:,} bytes, {progress.workers} workers writing"
    )
