"""The contents and names of the files of a saved dataset.

    snapshot.json                             what is saved: schema, plan, batch; written first
    chunks/chunk_<number>_<rows>_<tag>.arrow  Arrow IPC files
    uncommitted_<snapshot>/                   files that are being written
    DONE_<snapshot> or ERROR_<snapshot>       written last: the list of chunks, or what went wrong

Values only; knows no file system. Invariant: ``from_json(to_json(x)) == x``.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa

from dataservice.errors import InvalidArgumentError

FORMAT_VERSION: Final = 1
METADATA: Final = "snapshot.json"
CHUNKS: Final = "chunks"
UNCOMMITTED: Final = "uncommitted"
DONE: Final = "DONE"
ERROR: Final = "ERROR"


class Chunk(NamedTuple):
    """A committed chunk file; `batches` is the number of its record batches.

    `tag` distinguishes it from files of other attempts; it is "" in snapshots of earlier versions.
    """

    number: int
    rows: int
    size_bytes: int
    batches: int
    tag: str = ""

    @property
    def name(self) -> str:
        """The name of the file in the folder of chunks."""
        tag = f"_{self.tag}" if self.tag else ""
        return f"chunk_{self.number:08}_{self.rows}{tag}.arrow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """The contents of `snapshot.json`.

    `is_batched`: every record batch is an element. `batch_size`: the size of the batches that the
    rows are put into again when they are loaded, or None. `windows`: the most chunks that there
    will be, or None if that is not known before writing.
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
        """Decodes the result of `to_json`; InvalidArgumentError for another format version."""
        if values.get("format") != FORMAT_VERSION:
            raise InvalidArgumentError(
                f"the snapshot has format {values.get('format')!r}, and this version of "
                f"dataservice reads format {FORMAT_VERSION}; read it with the version that wrote it"
            )
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(values["schema"])))
        known = {name: values[name] for name in cls.__slots__ if name != "schema"}
        return cls(schema=schema, **known)


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The contents of `DONE`: the chunks, in order, and their totals."""

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
