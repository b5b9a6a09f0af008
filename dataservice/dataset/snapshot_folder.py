"""The folder of a saved dataset: its parts in the order in which they may be written and believed.

Shared by those who write and those who read; knows what files say, not how one comes to be there
whole. Invariants: a file is never written again, since each attempt to write a chunk has a tag of
its own; a chunk counts only if DONE lists it, and DONE only if it is of the snapshot that
snapshot.json names. Names after that one say whose they are, and writers touch none of another: who
was taken for dead and goes on writing changes nothing, also where another snapshot has come to
stand in the folder. That one is made only where none is.
"""

from __future__ import annotations

import contextlib
import json
import uuid
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import pyarrow as pa

from dataservice.dataset.atomic_folder import AtomicFolder
from dataservice.dataset.snapshot_format import (
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
    AlreadyExistsError,
    DataLossError,
    DataServiceError,
    FailedPreconditionError,
    SchemaError,
)

_TAG_CHARS: Final = 12
_CODECS: Final = {"LZ4": "lz4", "ZSTD": "zstd"}


class SnapshotFolder:
    """A snapshot's folder on any file system that fsspec knows."""

    def __init__(
        self, path: str, storage_options: Mapping[str, Any] | None = None, *, writes: str = ""
    ) -> None:
        """`writes`: the snapshot that will be written there."""
        self.path = path
        self._owner = f"{zlib.crc32(writes.encode()):08x}" if writes else ""
        drafts = f"{UNCOMMITTED}_{writes}" if writes else UNCOMMITTED
        self._files = AtomicFolder(path, storage_options, drafts=drafts)

    # Reading

    def metadata(self) -> Metadata | None:
        """What is saved here; None when nothing is. DataLossError for what cannot be read."""
        return self._parsed(METADATA, Metadata.from_json)

    def done(self) -> Done | None:
        """The list of chunks; None while the snapshot is not finished."""
        return self._marker(DONE, Done.from_json)

    def failure(self) -> dict[str, Any] | None:
        """What ended the snapshot, in the form of `error_to_dict`, if something did."""
        return self._marker(ERROR, lambda values: dict(values["error"]))

    def holds_marker(self) -> bool:
        """Whether there is DONE or ERROR of any snapshot."""
        return any(name.startswith((DONE, ERROR)) for name in self._files.names())

    def _marker(self, kind: str, parse: Callable[[Any], Any]) -> Any:
        """What DONE or ERROR of the snapshot says; of any while nothing says which one is here."""
        metadata = self.metadata()
        if metadata is None:
            names = [name for name in self._files.names() if name.startswith(kind)]
        else:
            # Earlier versions did not name the snapshot.
            names = [f"{kind}_{metadata.snapshot_id}", kind]
        found = (self._parsed(name, parse) for name in names)
        return next((content for content in found if content is not None), None)

    def chunk_path(self, chunk: Chunk) -> str:
        """Where a chunk is: a local path, or a URL."""
        return self._files.location(f"{CHUNKS}/{chunk.name}")

    def signs_of_work(self) -> tuple[int, int]:
        """Committed chunks, and the bytes of files under way: they change while work goes on."""
        committed = self._files.listed(CHUNKS)
        folders = [name for name in self._files.names() if name.startswith(UNCOMMITTED)]
        under_way = [entry for name in folders for entry in self._files.listed(name)]
        return len(committed), sum(int(entry.get("size") or 0) for entry in under_way)

    def foreign_files(self) -> list[str]:
        """Names of what is here and belongs to no snapshot."""
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
        """Says what is saved here; a repeat changes nothing.

        AlreadyExistsError when another snapshot is here.
        """
        found = self.metadata()
        if found is None:
            # Not over another: it may have come since, however long this process was frozen.
            self._write_json(METADATA, metadata.to_json(), replaces=False)
            found = self.metadata()
        if found is None or found.snapshot_id != metadata.snapshot_id:
            raise AlreadyExistsError(
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
        """Writes the batches as one file; None, and no file, when there are none.

        A repeat makes another file.
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
        """Writes DONE or ERROR, the last file, and tidies up behind the writers.

        ERROR takes a DONE away that could be seen before the attempt to write it failed.
        """
        self._write_json(f"{name}_{content['snapshot_id']}", content)
        if name == ERROR:
            # Where that cannot be either, readers look for ERROR first.
            self._files.remove(f"{DONE}_{content['snapshot_id']}")
        self._files.remove_drafts()
        if name == DONE:
            self._remove_all_but(chunk.name for chunk in Done.from_json(content).chunks)

    def _remove_all_but(self, names: Iterable[str]) -> None:
        """Chunks of attempts that came to nothing, of no other snapshot."""
        listed = set(names)
        with contextlib.suppress(DataServiceError):
            for entry in self._files.listed(CHUNKS):
                name = entry["name"].rpartition("/")[2]
                is_own = name.rpartition("_")[2].startswith(self._owner)
                if self._owner and is_own and name not in listed:
                    self._files.remove(f"{CHUNKS}/{name}")

    def _write_json(self, name: str, content: Mapping[str, Any], *, replaces: bool = True) -> None:
        """Once more where the draft is gone: who was told to write the same has tidied up."""
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
