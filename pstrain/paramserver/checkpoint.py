"""Shards as files: tables as Arrow IPC, small variables together as safetensors; with checksums.

Both hold values and optimizer slots; any shard layout restores onto any other by ranges of rows.
Knows nothing of manifests, models or the network. Invariant: restoring gives each row the values
and slots it was saved with, or raises before any row has changed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pstrain.errors import DataLossError, NotFoundError, ResourceExhaustedError
from pstrain.paramserver import safetensors
from pstrain.paramserver.output import OutputFile, size_and_checksum
from pstrain.paramserver.saved import Saved, SavedShard, check_shape
from pstrain.paramserver.shard import Shard
from pstrain.paramserver.snapshot import Snapshot
from pstrain.paramserver.table_file import write_blocks

__all__ = ["Saved", "SavedShard", "check_shape", "read_into", "verify", "write"]

SMALL_BYTES: Final = 1 << 20
"""Shards of at most this size, slots included, go into one safetensors file per server."""

_DENSE: Final = "dense.safetensors"

Array = NDArray[Any]
Targets = Sequence[tuple[str, Shard]]


def write(directory: str, snapshots: Sequence[tuple[str, Snapshot]], writer: str) -> Saved:
    """Writes files into ``directory`` and syncs them to disk; blocks.

    ``writer`` is in their names, so that several may write there. Raises ResourceExhaustedError
    where the disk is full or fails.
    """
    try:
        os.makedirs(directory, exist_ok=True)
        small = [pair for pair in snapshots if _is_small(pair[1])]
        shards = _write_dense(directory, f"{writer}-{_DENSE}", small) if small else []
        for name, snapshot in snapshots:
            if not _is_small(snapshot):
                shards.append(_write_table(directory, writer, name, snapshot))
        sync_folder(directory)
    except OSError as error:
        raise ResourceExhaustedError(
            f"a checkpoint could not be written into {directory}: {error}; the one before it is "
            "untouched. Make room there, or keep fewer (max_to_keep)"
        ) from error
    return Saved(tuple(shards))


def _is_small(snapshot: Snapshot) -> bool:
    """Arrow would keep bools as bits, which are no rows."""
    return snapshot.size_bytes <= SMALL_BYTES or snapshot.spec.dtype == "bool"


def sync_folder(folder: str) -> None:
    """The names in a folder are on the disk when this returns."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_dense(
    directory: str, file: str, snapshots: Sequence[tuple[str, Snapshot]]
) -> list[SavedShard]:
    parts = [_described(name, snapshot, file) for name, snapshot in snapshots]
    tensors = [tensor for part in parts for tensor in _tensors(part)]
    with OutputFile(os.path.join(directory, file)) as output:
        output.write(safetensors.header(tensors, {"format": "np"}))
        for _, snapshot in snapshots:
            blocks = [block.columns() for block in snapshot.blocks()]
            for columns in zip(*blocks, strict=True):
                for column in columns:
                    output.write(column)
    return [p._replace(size_bytes=output.size_bytes, checksum=output.checksum) for p in parts]


def _tensors(part: SavedShard) -> list[safetensors.Tensor]:
    """The value under the variable's name, with its rows where it is not whole; slots after it."""
    rows = part.row_stop - part.row_start
    is_whole = rows == (part.shape[0] if part.shape else 1)
    name = part.name if is_whole else f"{part.name}[{part.row_start}:{part.row_stop}]"
    shape = part.shape if is_whole else (rows, *part.shape[1:])
    return [
        safetensors.Tensor(
            name if column == "values" else f"{name}::{column}",
            part.dtype,
            (rows,) if column.startswith("row_slot") else shape,
        )
        for column in part.columns
    ]


def _write_table(directory: str, writer: str, name: str, snapshot: Snapshot) -> SavedShard:
    """Columns are fixed-size lists of the variable's row width; row slots have width 1."""
    part = _described(
        name, snapshot, f"{writer}-variable-{snapshot.spec.id}-rows-{snapshot.row_start}.arrow"
    )
    with OutputFile(os.path.join(directory, part.file)) as output:
        write_blocks(output, _schema(part, snapshot.widths), snapshot.blocks())
    return part._replace(size_bytes=output.size_bytes, checksum=output.checksum)


def _described(name: str, snapshot: Snapshot, file: str) -> SavedShard:
    return SavedShard(
        name=name,
        shape=snapshot.spec.shape,
        dtype=snapshot.spec.dtype,
        row_start=snapshot.row_start,
        row_stop=snapshot.row_stop,
        file=file,
        size_bytes=0,
        checksum=0,
        optimizer=snapshot.optimizer,
        slots=len(snapshot.widths) - 1 - snapshot.row_slots,
        row_slots=snapshot.row_slots,
    )


def _schema(part: SavedShard, widths: Sequence[int]) -> pa.Schema:
    dtype = pa.from_numpy_dtype(np.dtype(part.dtype))
    fields = [
        pa.field(column, pa.list_(dtype, width), nullable=False)
        for column, width in zip(part.columns, widths, strict=True)
    ]
    metadata = {
        "variable": part.name,
        "row_start": str(part.row_start),
        "row_stop": str(part.row_stop),
        "optimizer": part.optimizer or "",
    }
    return pa.schema(fields, metadata=metadata)


def verify(directory: str, targets: Targets, saved: Sequence[SavedShard]) -> None:
    """Checks that :meth:`read_into` can be done: names, shapes, the checksums of files; blocks.

    Raises NotFoundError for a variable or file that is missing, InvalidArgumentError for another
    shape or dtype, DataLossError for damaged or missing rows.
    """
    for pairs in _by_file(targets, saved).values():
        _verify(directory, pairs[0][1])


def read_into(directory: str, targets: Targets, saved: Sequence[SavedShard]) -> None:
    """Overwrites each target, named as in the checkpoint, with its rows and slots; blocks.

    Must be verified first: a damaged file is not noticed here.
    """
    for file, pairs in _by_file(targets, saved).items():
        read = _dense_blocks if file.endswith(_DENSE) else _table_blocks
        with pa.memory_map(os.path.join(directory, file)) as source:
            parts = {part: None for _, part in pairs}
            for part in parts:
                shards = [shard for shard, of in pairs if of == part]
                for start, columns in read(source, part):
                    _restore(shards, part, start, columns)


def _by_file(
    targets: Targets, saved: Sequence[SavedShard]
) -> dict[str, list[tuple[Shard, SavedShard]]]:
    files: dict[str, list[tuple[Shard, SavedShard]]] = {}
    for name, shard in targets:
        for part in _parts(name, shard, saved):
            files.setdefault(part.file, []).append((shard, part))
    return files


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
    try:
        found = size_and_checksum(path)
    except FileNotFoundError:
        raise NotFoundError(
            f"file {path} of variable {part.name!r} is missing from the checkpoint"
        ) from None
    if found != (part.size_bytes, part.checksum):
        raise DataLossError(
            f"file {path} of variable {part.name!r} is damaged: {found[0]} bytes with checksum "
            f"{found[1]:#x}, expected {part.size_bytes} with {part.checksum:#x}; restore an older "
            "checkpoint"
        )


def _table_blocks(source: pa.NativeFile, part: SavedShard) -> Iterator[tuple[int, list[Array]]]:
    reader = pa.ipc.open_file(source)
    start = part.row_start
    for position in range(reader.num_record_batches):
        batch = reader.get_batch(position)
        yield start, [_column(batch, index) for index in range(batch.num_columns)]
        start += batch.num_rows


def _dense_blocks(source: pa.NativeFile, part: SavedShard) -> Iterator[tuple[int, list[Array]]]:
    found = safetensors.read(np.frombuffer(source.read_buffer(), np.uint8), part.file)
    source.seek(0)
    rows = part.row_stop - part.row_start
    yield part.row_start, [found[tensor.name].reshape(rows, -1) for tensor in _tensors(part)]


def _restore(shards: Sequence[Shard], part: SavedShard, start: int, columns: list[Array]) -> None:
    for shard in shards:
        a, b = max(start, shard.row_start), min(start + len(columns[0]), shard.row_stop)
        if a < b:
            rows = [column[a - start : b - start] for column in columns]
            shard.restore(a, rows, part.optimizer, row_slots=part.row_slots)


def _column(batch: pa.RecordBatch, index: int) -> Array:
    column = batch.column(index)
    return column.flatten().to_numpy(zero_copy_only=True).reshape(len(column), -1)
