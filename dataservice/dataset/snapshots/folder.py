"""The folder of a saved dataset: its files, and the order in which they are written and trusted.

Shared by writers and readers. Knows the contents of the files, not how a file appears atomically
(`atomic_folder`). Invariants: a chunk file is never overwritten, since each attempt to write a
chunk has a tag of its own. A chunk counts only if DONE lists it, and DONE only if it is of the
snapshot that snapshot.json names. All other file names identify their snapshot, and a writer
touches no file of another snapshot: so a writer that was taken for lost and goes on writing changes
nothing, even if another snapshot has been started in the folder. snapshot.json is created only if
there is none.
"""

from __future__ import annotations

import contextlib
import json
import uuid
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import pyarrow as pa

from dataservice.dataset.snapshots.atomic_folder import AtomicFolder
from dataservice.dataset.snapshots.format import (
    CHUNKS,
    DONE,
    ERROR,
    METADATA,
    UNCOMMITTED,
    Chunk,
    Done,
    Metadata,
)
from dataservice.errors import (
    DataLossError,
    DataServiceError,
    ExistingFileError,
    FailedPreconditionError,
    SchemaError,
)

_TAG_CHARS: Final = 12
_CODECS: Final = {"LZ4": "lz4", "ZSTD": "zstd"}


class SnapshotFolder:
    """The folder of a snapshot, on any file system that fsspec knows."""

    def __init__(
        self, path: str, storage_options: Mapping[str, Any] | None = None, *, writes: str = ""
    ) -> None:
        """Opens the folder; `writes` is the id of the snapshot to be written there, if any."""
        self.path = path
        self._owner = f"{zlib.crc32(writes.encode()):08x}" if writes else ""
        drafts = f"{UNCOMMITTED}_{writes}" if writes else UNCOMMITTED
        self._files = AtomicFolder(path, storage_options, drafts=drafts)

    # Reading

    def metadata(self) -> Metadata | None:
        """Returns what is saved here, or None; raises DataLossError if it cannot be read."""
        return self._parsed(METADATA, Metadata.from_json)

    def done(self) -> Done | None:
        """Returns the list of chunks; None while the snapshot is not finished."""
        return self._marker(DONE, Done.from_json)

    def failure(self) -> dict[str, Any] | None:
        """Returns the error that ended the snapshot, in the form of `error_to_dict`, or None."""
        return self._marker(ERROR, lambda values: dict(values["error"]))

    def holds_marker(self) -> bool:
        """True if there is a DONE or ERROR file of any snapshot."""
        return any(name.startswith((DONE, ERROR)) for name in self._files.names())

    def _marker(self, kind: str, parse: Callable[[Any], Any]) -> Any:
        """Returns the content of the snapshot's DONE or ERROR, or None.

        While there is no metadata, the file of any snapshot counts.
        """
        metadata = self.metadata()
        if metadata is None:
            names = [name for name in self._files.names() if name.startswith(kind)]
        else:
            # In folders written by earlier versions the name does not contain the snapshot.
            names = [f"{kind}_{metadata.snapshot_id}", kind]
        found = (self._parsed(name, parse) for name in names)
        return next((content for content in found if content is not None), None)

    def chunk_path(self, chunk: Chunk) -> str:
        """Returns the location of a chunk: a local path, or a URL."""
        return self._files.location(f"{CHUNKS}/{chunk.name}")

    def signs_of_work(self) -> tuple[int, int]:
        """Returns the numbers of committed chunks and of uncommitted bytes, which show progress."""
        committed = self._files.listed(CHUNKS)
        folders = [name for name in self._files.names() if name.startswith(UNCOMMITTED)]
        under_way = [entry for name in folders for entry in self._files.listed(name)]
        return len(committed), sum(int(entry.get("size") or 0) for entry in under_way)

    def foreign_files(self) -> list[str]:
        """Returns the names of files in the folder that belong to no snapshot."""
        own = (METADATA, CHUNKS, UNCOMMITTED, DONE, ERROR)
        return sorted(name for name in self._files.names() if not name.startswith(own))

    def _parsed(self, name: str, parse: Callable[[Any], Any]) -> Any:
        content = self._files.content(name)
        if content is None:
            return None
        try:
            return parse(json.loads(content))
        except (ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
            if isinstance(error, DataServiceError):
                raise
            raise DataLossError(
                f"{self.path}/{name} cannot be read ({error!r}): it is damaged, or not a snapshot's"
            ) from error

    # Writing

    def write_metadata(self, metadata: Metadata) -> None:
        """Writes snapshot.json, which says what is saved here; idempotent.

        Raises ExistingFileError if the folder holds another snapshot.
        """
        found = self.metadata()
        if found is None:
            # Does not replace one that another process has written meanwhile, even if this process
            # was frozen for long.
            self._write_json(METADATA, metadata.to_json(), replaces=False)
            found = self.metadata()
        if found is None or found.snapshot_id != metadata.snapshot_id:
            raise ExistingFileError(
                f"{self.path} holds snapshot {found and found.snapshot_id}, which was saved in the "
                f"meantime or is written by another service, so {metadata.snapshot_id} cannot be "
                "written there; choose another path"
            )

    def write_chunk(
        self,
        number: int,
        schema: pa.Schema,
        batches: Iterable[pa.RecordBatch],
        compression: str = "NONE",
    ) -> Chunk | None:
        """Writes the batches as one file; returns None, and writes no file, if there are no rows.

        Each call writes another file, even for the same number.
        """
        rows = count = size_bytes = 0
        with self._files.draft() as draft:
            with self._files.synced(draft, f"{CHUNKS}/chunk_{number:08}") as to:
                options = pa.ipc.IpcWriteOptions(
                    compression=_CODECS.get(compression), use_threads=False
                )
                with pa.ipc.new_file(to, schema, options=options) as writer:
                    for batch in batches:
                        _write_batch(writer, batch, schema)
                        rows, count = rows + batch.num_rows, count + 1
                size_bytes = to.tell()
            if not rows:
                return None
            tag = self._owner + uuid.uuid4().hex[:_TAG_CHARS]
            chunk = Chunk(number, rows, size_bytes, count, tag)
            self._files.commit(draft, f"{CHUNKS}/{chunk.name}")
        return chunk

    def write_marker(self, name: str, content: Mapping[str, Any]) -> None:
        """Writes DONE or ERROR, the last file, and removes what writers left over.

        With ERROR it also removes a DONE that became visible although writing it failed.
        """
        self._write_json(f"{name}_{content['snapshot_id']}", content)
        if name == ERROR:
            # If it cannot be removed either, ERROR still counts: readers look for it first.
            self._files.remove(f"{DONE}_{content['snapshot_id']}")
        self._files.remove_drafts()
        if name == DONE:
            self._remove_all_but(chunk.name for chunk in Done.from_json(content).chunks)

    def _remove_all_but(self, names: Iterable[str]) -> None:
        """Removes chunks of failed attempts of this snapshot, but of no other snapshot."""
        listed = set(names)
        with contextlib.suppress(DataServiceError):
            for entry in self._files.listed(CHUNKS):
                name = entry["name"].rpartition("/")[2]
                is_own = name.rpartition("_")[2].startswith(self._owner)
                if self._owner and is_own and name not in listed:
                    self._files.remove(f"{CHUNKS}/{name}")

    def _write_json(self, name: str, content: Mapping[str, Any], *, replaces: bool = True) -> None:
        """Writes a JSON file; retries once if another writer of the same file removed the draft."""
        try:
            self._write_json_once(name, content, replaces)
        except FailedPreconditionError as error:
            is_deleted = name != METADATA and self.metadata() is None
            if is_deleted or not isinstance(error.__cause__, FileNotFoundError):
                raise
            self._write_json_once(name, content, replaces)

    def _write_json_once(self, name: str, content: Mapping[str, Any], replaces: bool) -> None:
        with self._files.draft() as draft:
            with self._files.synced(draft, name) as to:
                to.write(json.dumps(content).encode())
            self._files.commit(draft, name, replaces=replaces)


def _write_batch(writer: Any, batch: pa.RecordBatch, schema: pa.Schema) -> None:
    if not batch.schema.equals(schema):
        raise SchemaError(
            f"the dataset yields rows of other columns than it was registered with:\n"
            f"{batch.schema}\nis not\n{schema}"
        )
    writer.write_batch(batch)
