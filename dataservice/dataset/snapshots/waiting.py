"""Finds a finished snapshot, or waits until it is finished.

Looks only at the folder, so any process can wait for a snapshot, whether or not it can reach the
service that writes it. Invariant: waiting ends when the snapshot is finished or failed, and when
there was no progress for the given time.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Mapping
from typing import Any, Final

from dataservice.dataset.snapshots.folder import SnapshotFolder
from dataservice.dataset.snapshots.format import Metadata
from dataservice.dataset.sources.paths import check_storage_options
from dataservice.errors import (
    DataServiceError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidTypeError,
    MissingFileError,
    error_from_dict,
)
from dataservice.runtime.arguments import limit_s

logger = logging.getLogger(__name__)

# Files appear window by window, and a window may take long if functions are slow.
DEFAULT_LOAD_TIMEOUT_S: Final = 300.0
_NOTICE_INTERVAL_S: Final = 10.0
_FIRST_PAUSE_S: Final = 0.05
_MAX_PAUSE_S: Final = 1.0


def find_snapshot(
    path: str, options: Mapping[str, Any] | None, *, wait: bool, timeout_s: float
) -> Metadata:
    """Returns what was saved at `path`, once it is finished; with the errors of `Dataset.load`."""
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise InvalidTypeError(f"load takes the path of a snapshot, got {path!r}")
    check_storage_options(options)
    limit = limit_s(timeout_s, "timeout_s")
    folder = SnapshotFolder(os.fspath(path), options)
    found = _finished(folder)
    if found is not None:
        return found
    if wait:
        return _await(folder, math.inf if limit is None else limit)
    if folder.metadata() is None:
        raise MissingFileError(
            f"there is no snapshot at {folder.path}; check the path, or pass wait=True when one is "
            "about to be saved there"
        )
    raise FailedPreconditionError(
        f"the snapshot {folder.path} is not finished: {_progress(folder)}; pass wait=True to wait "
        "for it"
    )


def failure_of(path: str, encoded: Mapping[str, Any]) -> DataServiceError:
    """Returns the error that ended a snapshot, as an instance of its own class."""
    message = f"the snapshot {path} failed: {encoded.get('message')}"
    return error_from_dict({**encoded, "message": message})


def _finished(folder: SnapshotFolder) -> Metadata | None:
    """Returns the metadata of a finished snapshot, else None; raises the error of a failed one."""
    failure = folder.failure()
    if failure is not None:
        raise failure_of(folder.path, failure)
    done, metadata = folder.done(), folder.metadata()
    if done is None or metadata is None or done.snapshot_id != metadata.snapshot_id:
        return None
    return metadata


def _await(folder: SnapshotFolder, timeout_s: float) -> Metadata:
    began_s = noticed_s = moved_s = time.monotonic()
    pause_s = _FIRST_PAUSE_S
    signs = None
    while True:
        found = _finished(folder)
        if found is not None:
            return found
        now_s = time.monotonic()
        seen = folder.signs_of_work()
        if seen != signs:
            signs, moved_s = seen, now_s
        if now_s - moved_s >= timeout_s:
            raise DeadlineExceededError(
                f"the snapshot {folder.path} made no progress for {timeout_s:g} s: "
                f"{_progress(folder)}; is its dispatcher running, and has it data workers? Look "
                "with `dataservice status`, or pass a longer timeout_s"
            )
        if now_s - noticed_s >= _NOTICE_INTERVAL_S:
            noticed_s = now_s
            waited_s = now_s - began_s
            logger.info("waited %.0f s for %s: %s", waited_s, folder.path, _progress(folder))
        time.sleep(min(pause_s, max(0.0, moved_s + timeout_s - now_s)))
        pause_s = min(2 * pause_s, _MAX_PAUSE_S)


def _progress(folder: SnapshotFolder) -> str:
    metadata = folder.metadata()
    if metadata is None:
        return "nothing has been written yet"
    chunks, _ = folder.signs_of_work()
    of = "" if metadata.windows is None else f" of at most {metadata.windows}"
    return f"{chunks}{of} chunks are written"
