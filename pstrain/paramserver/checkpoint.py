"""Shards as files: Arrow IPC with values and slots, and a CRC over each file's bytes.

A file holds one shard; any shard layout restores onto any other by ranges of rows. Knows nothing
of manifests, models or the network. Invariant: restoring gives
each row the values and slots it was saved with, or raises before any row has changed.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pstrain.errors import DataLossError, InvalidArgumentError, NotFoundError
from pstrain.paramserver.shard import Shard

_BLOCK_BYTES = 16 << 20
_ROW_SLOT = "row_slot_"


class SavedShard(NamedTuple):
    """Where rows ``[row_start, row_stop)`` of a variable lie in a checkpoint.

    ``name`` is the variable's name in the checkpoint, ``file`` is relative to its folder.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    row_start: int
    row_stop: int
    file: str
    size_bytes: int
    crc32: int
    optimizer: str | None

    def to_json(self) -> dict[str, Any]:
        """JSON form, for manifests and the wire."""
        return {**self._asdict(), "shape": list(self.shape)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> SavedShard:
        """Inverse of :meth:`to_json`."""
        return cls(**{**value, "shape": tuple(value["shape"])})


class Saved(NamedTuple):
    """What a checkpoint holds: shards, and the ledger of each server by its index.

    Ledgers mean something to servers of the same session only.
    """

    shards: tuple[SavedShard, ...]
    session: str | None = None
    ledgers: dict[str, Any] = {}  # noqa: RUF012

    def to_json(self) -> dict[str, Any]:
        """JSON form, for manifests and the wire."""
        return {**self._asdict(), "shards": [shard.to_json() for shard in self.shards]}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Saved:
        """Inverse of :meth:`to_json`."""
        return cls(**{**value, "shards": tuple(map(SavedShard.from_json, value["shards"]))})


def write_shard(directory: str, name: str, shard: Shard) -> SavedShard:
    """Writes one file into ``directory`` and syncs it to disk; blocks.

    The caller keeps changes away meanwhile. Columns: ``values`` and ``slot_<i>``, fixed-size
    lists of the variable's row width, and ``row_slot_<i>``, of width 1; the file's metadata says
    which rows it holds.
    """
    file = f"variable-{shard.spec.id}-shard-{shard.index}.arrow"
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, file), "wb") as stream:
        sink = _Checksum(stream)
        with pa.ipc.new_file(pa.PythonFile(sink, mode="w"), _schema(name, shard)) as writer:
            for block in _blocks(shard):
                writer.write_batch(block)
        stream.flush()
        os.fsync(stream.fileno())
    return SavedShard(
        name=name,
        shape=shard.spec.shape,
        dtype=shard.spec.dtype,
        row_start=shard.row_start,
        row_stop=shard.row_stop,
        file=file,
        size_bytes=sink.size_bytes,
        crc32=sink.crc32,
        optimizer=shard.optimizer,
    )


Targets = Sequence[tuple[str, Shard]]


def verify(directory: str, targets: Targets, saved: Sequence[SavedShard]) -> None:
    """Checks that :meth:`read_into` can be done: names, shapes, and the CRC of every file; blocks.

    Raises NotFoundError for a variable or file that is missing, InvalidArgumentError for another
    shape or dtype, DataLossError for damaged or missing rows.
    """
    for pairs in _by_file(targets, saved).values():
        _verify(directory, pairs[0][1])


def read_into(directory: str, targets: Targets, saved: Sequence[SavedShard]) -> None:
    """Overwrites each target, named as in the checkpoint, with its rows and slots; blocks.

    Must be verified first: a damaged file is not noticed here.
    """
    for pairs in _by_file(targets, saved).values():
        _restore(directory, pairs[0][1], [shard for shard, _ in pairs])


def _by_file(
    targets: Targets, saved: Sequence[SavedShard]
) -> dict[str, list[tuple[Shard, SavedShard]]]:
    files: dict[str, list[tuple[Shard, SavedShard]]] = {}
    for name, shard in targets:
        for part in _parts(name, shard, saved):
            files.setdefault(part.file, []).append((shard, part))
    return files


def check_shape(name: str, shape: tuple[int, ...], dtype: str, saved: SavedShard) -> None:
    """Raises InvalidArgumentError unless the variable is the one that was saved."""
    if saved.shape != shape or saved.dtype != dtype:
        raise InvalidArgumentError(
            f"variable {name!r} has shape {shape} and dtype {dtype}, but the checkpoint holds "
            f"shape {saved.shape} and dtype {saved.dtype}; restore into a model of the same "
            f"architecture"
        )


def _parts(name: str, shard: Shard, saved: Sequence[SavedShard]) -> list[SavedShard]:
    mine = sorted((s for s in saved if s.name == name), key=lambda s: s.row_start)
    if not mine:
        raise NotFoundError(f"the checkpoint holds no variable {name!r}")
    for part in mine:
        check_shape(name, shard.spec.shape, shard.spec.dtype, part)
    parts = [p for p in mine if p.row_start < shard.row_stop and p.row_stop > shard.row_start]
    reached = shard.row_start
    for part in parts:
        if part.row_start > reached:
            break
        reached = max(reached, part.row_stop)
    if reached < shard.row_stop:
        raise DataLossError(f"rows from {reached} on of variable {name!r} are in no file")
    return parts


def _verify(directory: str, part: SavedShard) -> None:
    path = os.path.join(directory, part.file)
    crc = size = 0
    try:
        with open(path, "rb") as stream:
            while block := stream.read(_BLOCK_BYTES):
                crc = zlib.crc32(block, crc)
                size += len(block)
    except FileNotFoundError:
        raise NotFoundError(
            f"file {path} of variable {part.name!r} is missing from the checkpoint"
        ) from None
    if (size, crc) != (part.size_bytes, part.crc32):
        raise DataLossError(
            f"file {path} of variable {part.name!r} is damaged: {size} bytes with CRC {crc:#x}, "
            f"expected {part.size_bytes} with {part.crc32:#x}; restore an older checkpoint"
        )


def _restore(directory: str, part: SavedShard, shards: Sequence[Shard]) -> None:
    with pa.memory_map(os.path.join(directory, part.file)) as source:
        reader = pa.ipc.open_file(source)
        row_slots = sum(name.startswith(_ROW_SLOT) for name in reader.schema.names)
        start = part.row_start
        for position in range(reader.num_record_batches):
            batch = reader.get_batch(position)
            columns = [_column(batch, index) for index in range(batch.num_columns)]
            for shard in shards:
                a = max(start, shard.row_start)
                b = min(start + batch.num_rows, shard.row_stop)
                if a < b:
                    rows = [column[a - start : b - start] for column in columns]
                    shard.restore(a, rows, part.optimizer, row_slots=row_slots)
            start += batch.num_rows


def _column(batch: pa.RecordBatch, index: int) -> NDArray[Any]:
    column = batch.column(index)
    return column.flatten().to_numpy(zero_copy_only=True).reshape(len(column), -1)


def _schema(name: str, shard: Shard) -> pa.Schema:
    names = ["values", *(f"slot_{i}" for i in range(shard.slots))]
    names += [f"{_ROW_SLOT}{i}" for i in range(shard.row_slots)]
    dtype = pa.from_numpy_dtype(shard.slab.dtype)
    fields = [
        pa.field(column, pa.list_(dtype, width), nullable=False)
        for column, width in zip(names, shard.column_widths, strict=True)
    ]
    metadata = {
        "variable": name,
        "row_start": str(shard.row_start),
        "row_stop": str(shard.row_stop),
        "optimizer": shard.optimizer or "",
    }
    return pa.schema(fields, metadata=metadata)


def _blocks(shard: Shard) -> Iterator[pa.RecordBatch]:
    slab = shard.slab
    schema = _schema("", shard).remove_metadata()
    rows = max(1, _BLOCK_BYTES // max(1, slab.shape[1] * slab.itemsize))
    for start in range(0, len(slab), rows):
        block = slab[start : start + rows]
        columns, at = [], 0
        for width, field in zip(shard.column_widths, schema, strict=True):
            values = np.ascontiguousarray(block[:, at : at + width])
            lists = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), width)
            columns.append(lists.cast(field.type))
            at += width
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


class _Checksum:
    """A binary sink that counts and checksums what passes through."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.size_bytes = 0
        self.crc32 = 0
        self.closed = False

    def write(self, data: bytes) -> int:
        self.crc32 = zlib.crc32(data, self.crc32)
        self.size_bytes += len(data)
        return self._stream.write(data)

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        return self.size_bytes

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        self.closed = True
