"""The folder of a saved dataset: what is in it, and how files come to be there whole.

    snapshot.json                             what is saved: schema, plan, batch; written first
    chunks/chunk_<number>_<rows>_<tag>.arrow  Arrow IPC files
    uncommitted_<snapshot>/                   files that are being written
    DONE_<snapshot> or ERROR_<snapshot>       written last: the list of chunks, or what went wrong

Shared by those who write and those who read. Invariants: a file under its final name is whole and
never written again, since each attempt to write a chunk has a tag of its own; a chunk counts only
if DONE lists it, and DONE only if it is of the snapshot that snapshot.json names. Names after that
one say whose they are, and writers touch none of another: who was taken for dead and goes on
writing changes nothing, also where another snapshot has come to stand in the folder. That one is
made only where none is, which only local file systems with hard links assure: on others, such as
object stores, who was frozen while it wrote may write over it.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import os
import tempfile
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import fsspec
import pyarrow as pa

from dataservice.dataset.sources.files import unreadable
from dataservice.errors import (
    AlreadyExistsError,
    DataLossError,
    DataServiceError,
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
    SchemaError,
    UnavailableError,
)
from dataservice.runtime.durable import sync_folder

FORMAT_VERSION: Final = 1
METADATA: Final = "snapshot.json"
CHUNKS: Final = "chunks"
UNCOMMITTED: Final = "uncommitted"
DONE: Final = "DONE"
ERROR: Final = "ERROR"

# Object stores: an object appears once it is whole, and a rename would copy it.
_APPEARS_WHOLE: Final = frozenset(
    {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "cos", "r2"}
)
# What file systems say that have no hard links.
_NO_LINKS: Final = (
    errno.EPERM,
    errno.ENOTSUP,
    errno.EOPNOTSUPP,
    errno.ENOSYS,
    errno.EMLINK,
    errno.EXDEV,
)
_TAG_CHARS: Final = 12
_CODECS: Final = {"LZ4": "lz4", "ZSTD": "zstd"}


class Chunk(NamedTuple):
    """A committed file; `batches` is the number of its record batches.

    `tag` tells it from the files of other attempts; "" in snapshots of earlier versions.
    """

    number: int
    rows: int
    size_bytes: int
    batches: int
    tag: str = ""

    @property
    def name(self) -> str:
        """The file's name in the folder of chunks."""
        tag = f"_{self.tag}" if self.tag else ""
        return f"chunk_{self.number:08}_{self.rows}{tag}.arrow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """What `snapshot.json` says.

    `is_batched`: every record batch is an element. `batch_size`: the rows are to be batched again.
    `windows`: how many chunks there will be at most; None when that shows only while writing.
    """

    snapshot_id: str
    schema: pa.Schema
    fingerprint: str
    cardinality: int
    is_batched: bool = False
    batch_size: int | None = None
    drop_remainder: bool = False
    compression: str = "NONE"
    windows: int | None = None

    def to_json(self) -> dict[str, Any]:
        schema = base64.b64encode(self.schema.serialize().to_pybytes()).decode()
        values = {name: getattr(self, name) for name in self.__slots__ if name != "schema"}
        columns = [f"{field.name}: {field.type}" for field in self.schema]
        return {"format": FORMAT_VERSION, **values, "columns": columns, "schema": schema}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Metadata:
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(values["schema"])))
        known = {name: values[name] for name in cls.__slots__ if name != "schema"}
        return cls(schema=schema, **known)


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What `DONE` says: the chunks, in order, and their totals."""

    snapshot_id: str
    chunks: tuple[Chunk, ...]

    @property
    def rows(self) -> int:
        return sum(chunk.rows for chunk in self.chunks)

    def to_json(self) -> dict[str, Any]:
        totals = {"rows": self.rows, "size_bytes": sum(chunk.size_bytes for chunk in self.chunks)}
        return {"snapshot_id": self.snapshot_id, **totals, "chunks": self.chunks}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Done:
        chunks = tuple(
            Chunk(int(number), int(rows), int(size_bytes), int(batches), "".join(tag))
            for number, rows, size_bytes, batches, *tag in values["chunks"]
        )
        return cls(snapshot_id=str(values["snapshot_id"]), chunks=chunks)


class SnapshotFolder:
    """A snapshot's folder on any file system that fsspec knows."""

    def __init__(
        self, path: str, storage_options: Mapping[str, Any] | None = None, *, writes: str = ""
    ) -> None:
        """`writes`: the snapshot that will be written there."""
        self.path = path
        self._drafts = f"{UNCOMMITTED}_{writes}" if writes else UNCOMMITTED
        self._owner = f"{zlib.crc32(writes.encode()):08x}" if writes else ""
        try:
            self._files, root = fsspec.core.url_to_fs(path, **(storage_options or {}))
        except (OSError, ImportError, ValueError, TypeError) as error:
            # A TypeError is an option that the file system does not have.
            raise unreadable(path, error) from error
        self._root = str(root).rstrip("/")
        protocol = self._files.protocol
        protocols = {protocol} if isinstance(protocol, str) else set(protocol)
        self._is_local = "file" in protocols
        self._appears_whole = bool(protocols & _APPEARS_WHOLE)

    # Reading

    def metadata(self) -> Metadata | None:
        """What is saved here; None when nothing is. DataLossError for what cannot be read."""
        return self._parsed(METADATA, _checked_metadata)

    def done(self) -> Done | None:
        """The list of chunks; None while the snapshot is not finished."""
        return self._marker(DONE, Done.from_json)

    def failure(self) -> dict[str, Any] | None:
        """What ended the snapshot, in the form of `error_to_dict`, if something did."""
        return self._marker(ERROR, lambda values: dict(values["error"]))

    def holds_marker(self) -> bool:
        """Whether there is DONE or ERROR of any snapshot."""
        return any(name.startswith((DONE, ERROR)) for name in self._names())

    def _marker(self, kind: str, parse: Callable[[Any], Any]) -> Any:
        """What DONE or ERROR of the snapshot says; of any while nothing says which one is here."""
        metadata = self.metadata()
        if metadata is None:
            names = [name for name in self._names() if name.startswith(kind)]
        else:
            # Earlier versions did not name the snapshot.
            names = [f"{kind}_{metadata.snapshot_id}", kind]
        found = (self._parsed(name, parse) for name in names)
        return next((content for content in found if content is not None), None)

    def chunk_path(self, chunk: Chunk) -> str:
        """Where a chunk is: a local path, or a URL."""
        full = f"{self._root}/{CHUNKS}/{chunk.name}"
        return full if self._is_local else str(self._files.unstrip_protocol(full))

    def signs_of_work(self) -> tuple[int, int]:
        """Committed chunks, and the bytes of files under way: they change while work goes on."""
        committed = self._listed(CHUNKS)
        folders = [name for name in self._names() if name.startswith(UNCOMMITTED)]
        under_way = [entry for name in folders for entry in self._listed(name)]
        return len(committed), sum(int(entry.get("size") or 0) for entry in under_way)

    def foreign_files(self) -> list[str]:
        """Names of what is here and belongs to no snapshot."""
        own = (METADATA, CHUNKS, UNCOMMITTED, DONE, ERROR)
        return sorted(name for name in self._names() if not name.startswith(own))

    def _names(self) -> list[str]:
        """What is here, sorted."""
        names = {entry["name"].rstrip("/").rpartition("/")[2] for entry in self._listed("")}
        return sorted(names - {""})

    def _listed(self, name: str) -> list[dict[str, Any]]:
        where = f"{self._root}/{name}".rstrip("/")
        try:
            # Object stores answer from a cache unless told otherwise.
            self._files.invalidate_cache(where)
            return list(self._files.ls(where, detail=True))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise unreadable(f"{self.path}/{name}", error) from error

    def _parsed(self, name: str, parse: Callable[[Any], Any]) -> Any:
        where = f"{self._root}/{name}"
        try:
            content = self._files.cat_file(where)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise unreadable(f"{self.path}/{name}", error) from error
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
        rows = count = 0
        with self._draft() as draft:
            with _named_errors(f"{self.path}/{CHUNKS}/chunk_{number:08}"), open(draft, "wb") as to:
                options = pa.ipc.IpcWriteOptions(
                    compression=_CODECS.get(compression), use_threads=False
                )
                with pa.ipc.new_file(to, schema, options=options) as writer:
                    for batch in batches:
                        _write_batch(writer, batch, schema)
                        rows, count = rows + batch.num_rows, count + 1
                to.flush()
                os.fsync(to.fileno())
            if not rows:
                return None
            tag = self._owner + uuid.uuid4().hex[:_TAG_CHARS]
            chunk = Chunk(number, rows, os.path.getsize(draft), count, tag)
            self._commit(draft, f"{CHUNKS}/{chunk.name}")
        return chunk

    def write_marker(self, name: str, content: Mapping[str, Any]) -> None:
        """Writes DONE or ERROR, the last file, and tidies up behind the writers.

        ERROR takes a DONE away that could be seen before the attempt to write it failed.
        """
        self._write_json(f"{name}_{content['snapshot_id']}", content)
        if name == ERROR:
            # Where that cannot be either, readers look for ERROR first.
            with contextlib.suppress(OSError):
                self._files.rm_file(f"{self._root}/{DONE}_{content['snapshot_id']}")
        with contextlib.suppress(OSError):
            self._files.rm(f"{self._root}/{self._drafts}", recursive=True)
        if name == DONE:
            self._remove_all_but(chunk.name for chunk in Done.from_json(content).chunks)

    def _remove_all_but(self, names: Iterable[str]) -> None:
        """Chunks of attempts that came to nothing, of no other snapshot."""
        listed = set(names)
        with contextlib.suppress(OSError, DataServiceError):
            for entry in self._listed(CHUNKS):
                name = entry["name"].rpartition("/")[2]
                is_own = name.rpartition("_")[2].startswith(self._owner)
                if self._owner and is_own and name not in listed:
                    self._files.rm_file(entry["name"])

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
        with self._draft() as draft:
            with _named_errors(f"{self.path}/{name}"), open(draft, "w") as to:
                json.dump(content, to, indent=None)
                to.flush()
                os.fsync(to.fileno())
            self._commit(draft, name, replaces=replaces)

    @contextlib.contextmanager
    def _draft(self) -> Iterator[str]:
        """A local file to write to: where a rename reaches, if the folder is local."""
        folder = f"{self._root}/{self._drafts}" if self._is_local else tempfile.gettempdir()
        with _named_errors(folder):
            os.makedirs(folder, exist_ok=True)
        draft = f"{folder}/snapshot-{uuid.uuid4().hex}"
        try:
            yield draft
        finally:
            # What could be written is not undone by what cannot be tidied up behind it.
            with contextlib.suppress(OSError):
                os.remove(draft)

    def _commit(self, draft: str, name: str, *, replaces: bool = True) -> None:
        """Gives a draft its name; without `replaces` only if the name is free."""
        final = f"{self._root}/{name}"
        with _named_errors(f"{self.path}/{name}"):
            if self._is_local:
                os.makedirs(os.path.dirname(final), exist_ok=True)
                if replaces or not _link(draft, final):
                    os.replace(draft, final)
                sync_folder(os.path.dirname(final))
                return
            if self._appears_whole:
                self._files.put_file(draft, final)
                return
            passing = f"{self._root}/{self._drafts}/{os.path.basename(draft)}"
            for folder in (os.path.dirname(passing), os.path.dirname(final)):
                self._files.makedirs(folder, exist_ok=True)
            self._files.put_file(draft, passing)
            self._rename_once(passing, final, replaces=replaces)

    def _rename_once(self, passing: str, final: str, *, replaces: bool) -> None:
        """Not every file system renames over a file.

        The same, by another writer, is as good: removed for a moment, a third would miss it.
        """
        if not self._files.exists(final):
            try:
                self._files.mv(passing, final)
                return
            except OSError:
                if not self._files.exists(final):
                    raise
        if replaces and self._files.cat_file(final) != self._files.cat_file(passing):
            self._files.rm_file(final)
            self._files.mv(passing, final)
            return
        with contextlib.suppress(OSError):
            self._files.rm_file(passing)


def _link(draft: str, final: str) -> bool:
    """Gives a file a name that is free, or leaves it to its owner; False without hard links."""
    try:
        os.link(draft, final)
    except FileExistsError:
        return True
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return False
    return True


def _checked_metadata(values: Mapping[str, Any]) -> Metadata:
    if values.get("format") != FORMAT_VERSION:
        raise InvalidArgumentError(
            f"the snapshot has format {values.get('format')!r}, and this version of dataservice "
            f"reads format {FORMAT_VERSION}; read it with the version that wrote it"
        )
    return Metadata.from_json(values)


def _write_batch(writer: Any, batch: pa.RecordBatch, schema: pa.Schema) -> None:
    if not batch.schema.equals(schema):
        raise SchemaError(
            f"the dataset yields rows of other columns than it was registered with:\n"
            f"{batch.schema}\nis not\n{schema}"
        )
    writer.write_batch(batch)


@contextlib.contextmanager
def _named_errors(path: str) -> Iterator[None]:
    """Errors of storage under the name of the file; those of the rows pass as they are."""
    try:
        yield
    except DataServiceError:
        raise
    except (ConnectionError, TimeoutError) as error:
        raise UnavailableError(f"cannot write {path} at present: {error}") from error
    except PermissionError as error:
        raise FailedPreconditionError(
            f"no permission to write {path}: {error}; give the user of the data workers access"
        ) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ResourceExhaustedError(
                f"no space is left to write {path}: {error}; make room and save again"
            ) from error
        raise FailedPreconditionError(f"cannot write {path}: {error}") from error
    except ImportError as error:
        raise FailedPreconditionError(f"cannot write {path}: {error}") from error
