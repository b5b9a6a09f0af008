"""Incremental tables: the rows that changed since a base checkpoint, and links to its files.

Because of the hard links each checkpoint is whole by itself, and others may be removed. Knows
files, nothing of manifests or the network. Invariant: a file of another checkpoint is linked or
left alone, never written to.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from pstrain.failpoints import reached
from pstrain.paramserver.output_file import OutputFile
from pstrain.paramserver.saved import SavedFile, SavedShard
from pstrain.paramserver.snapshot import Snapshot
from pstrain.paramserver.table_file import write_rows

logger = logging.getLogger(__name__)

# Limits, relative to the table's file: a restore reads all changes, and the disk holds them.
_MOST_PART: Final = 0.5
_MOST_FILES: Final = 64
_ROW_NUMBER_BYTES: Final = 8


class Base(NamedTuple):
    """A checkpoint on which an incremental one builds: its folder, and the shards in it."""

    folder: str
    shards: tuple[SavedShard, ...]

    def written_by(self, writer: str) -> Base:
        """Returns the base with only those shards whose files ``writer`` wrote."""
        mine = (s for s in self.shards if os.path.basename(s.file).startswith(f"{writer}-"))
        return self._replace(shards=tuple(mine))

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON form, for the wire."""
        return {"folder": self.folder, "shards": [shard.to_json() for shard in self.shards]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> Base | None:
        """Inverts :meth:`to_json`; returns None for None."""
        if value is None:
            return None
        return cls(str(value["folder"]), tuple(map(SavedShard.from_json, value["shards"])))


def size_beyond(folder: str, shards: Sequence[SavedShard], base: Base) -> int:
    """Returns the bytes of files of ``shards``, in ``folder``, that are no links to ``base``."""
    shared = {_identity(base.folder, file) for file in _files(base.shards)} - {None}
    sizes = _files(shards)
    return sum(sizes[file] for file in sizes if _identity(folder, file) not in shared)


def _files(shards: Sequence[SavedShard]) -> dict[str, int]:
    return {part.file: part.size_bytes for shard in shards for part in shard.files}


def _identity(folder: str, file: str) -> tuple[int, int] | None:
    """Returns the device and inode of a file, equal for all links to it; None if it was removed."""
    try:
        found = os.stat(os.path.join(folder, file))
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def write_increment(
    directory: str, part: SavedShard, schema: pa.Schema, snapshot: Snapshot, base: Base | None
) -> SavedShard | None:
    """Links the files that ``base`` has of a table, and writes the rows that changed since.

    ``schema`` is that of the table's file. Returns None, and leaves no file, if the whole table has
    to be written: the changed rows are unknown or too many, or the file system has no hard links.
    """
    older = None if base is None else _found(part, base.shards)
    if base is None or older is None or snapshot.changed is None:
        return None
    row_bytes = _ROW_NUMBER_BYTES + snapshot.size_bytes // max(1, part.row_stop - part.row_start)
    new_bytes = snapshot.changed.count * row_bytes
    so_far = sum(change.size_bytes for change in older.changes)
    if so_far + new_bytes > _MOST_PART * older.size_bytes or len(older.changes) >= _MOST_FILES:
        return None
    files = [older.file, *(change.file for change in older.changes)]
    if not _link(base.folder, files, directory):
        return None
    part = part._replace(
        file=os.path.basename(older.file),
        size_bytes=older.size_bytes,
        checksum=older.checksum,
        sums=older.sums,
        changes=tuple(c._replace(file=os.path.basename(c.file)) for c in older.changes),
    )
    if not snapshot.changed.count:
        return part
    return part._replace(changes=(*part.changes, _write_changes(directory, part, schema, snapshot)))


def _found(part: SavedShard, shards: Sequence[SavedShard]) -> SavedShard | None:
    """Returns the same rows of the same variable, with the same columns, from this server's files.

    File names alone are not enough, as another variable may use this file name by now.
    """
    wanted = _without_files(part)
    mine = (shard for shard in shards if os.path.basename(shard.file) == part.file)
    return next((shard for shard in mine if _without_files(shard) == wanted), None)


def _without_files(part: SavedShard) -> SavedShard:
    return part._replace(file="", size_bytes=0, checksum=0, sums="", changes=())


def _write_changes(
    directory: str, part: SavedShard, schema: pa.Schema, snapshot: Snapshot
) -> SavedFile:
    stem = part.file.removesuffix(".arrow")
    file = f"{stem}-changes-{len(part.changes) + 1}.arrow"
    with OutputFile(os.path.join(directory, file)) as output:
        write_rows(output, schema, snapshot)
    return SavedFile(file, output.size_bytes, output.checksum, output.sums)


def _link(folder: str, files: Sequence[str], directory: str) -> bool:
    """Links all ``files`` into ``directory``; returns False, and leaves none, if one fails."""
    links: list[str] = []
    try:
        for file in files:
            reached("checkpoint_write")
            link = os.path.join(directory, os.path.basename(file))
            # Noted first, because a link can exist although the call reported an error.
            links.append(link)
            os.link(os.path.join(folder, file), link)
    except OSError as error:
        # The whole table is written next, and must not find another checkpoint's file by that name.
        for link in links:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(link)
        logger.info("tables are written whole: %s", error)
        return False
    return True
