"""Writes shards to files: each table as Arrow IPC, small variables together as safetensors.

Both kinds of files hold values and optimizer slots. Knows nothing of manifests, models or the
network, nor of how files are read (see ``loading``). Invariant: the result has the sizes and
checksums by which any damage to a file is noticed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from dataservice.runtime.folders import sync_folder
from pstrain.paramserver import safetensors
from pstrain.paramserver.increments import Base, write_increment
from pstrain.paramserver.output_file import OutputFile, written_into
from pstrain.paramserver.saved import Saved, SavedShard
from pstrain.paramserver.snapshot import Snapshot
from pstrain.paramserver.table_file import write_blocks

SMALL_BYTES: Final = 1 << 20
"""Shards of at most this size, slots included, go into one safetensors file per server."""

DENSE: Final = "dense.safetensors"
"""The suffix of the names of files of small variables."""


def write(
    directory: str,
    snapshots: Sequence[tuple[str, Snapshot]],
    writer: str,
    base: Base | None = None,
) -> Saved:
    """Writes files into ``directory`` and syncs them to disk; blocks.

    The names of the files contain ``writer``, so that several servers can write there. A table
    whose snapshot knows the rows changed since ``base`` may share files with it. Raises
    ResourceExhaustedError if the disk is full or fails.
    """
    with written_into(directory):
        os.makedirs(directory, exist_ok=True)
        small = [pair for pair in snapshots if _is_small(pair[1])]
        shards = _write_dense(directory, f"{writer}-{DENSE}", small) if small else []
        for name, snapshot in snapshots:
            if not _is_small(snapshot):
                shards.append(_write_table(directory, writer, name, snapshot, base))
        sync_folder(directory)
    return Saved(tuple(shards))


def _is_small(snapshot: Snapshot) -> bool:
    """True if the snapshot is for the safetensors file: all bools, as Arrow packs them to bits."""
    return snapshot.size_bytes <= SMALL_BYTES or snapshot.spec.dtype == "bool"


def _write_dense(
    directory: str, file: str, snapshots: Sequence[tuple[str, Snapshot]]
) -> list[SavedShard]:
    parts = [_described(name, snapshot, file) for name, snapshot in snapshots]
    tensors = [tensor for part in parts for tensor in tensors_of(part)]
    with OutputFile(os.path.join(directory, file)) as output:
        output.write(safetensors.header(tensors, {"format": "np"}))
        for _, snapshot in snapshots:
            blocks = [block.columns() for block in snapshot.blocks()]
            for columns in zip(*blocks, strict=True):
                for column in columns:
                    output.write(column)
    return [p._replace(size_bytes=output.size_bytes, checksum=output.checksum) for p in parts]


def tensors_of(part: SavedShard) -> list[safetensors.Tensor]:
    """Returns the tensors of a part: the value, then its slots.

    They are named after the variable, with the range of rows unless the part has all rows.
    """
    rows = part.row_stop - part.row_start
    own_rows = part.shape[0] if part.shape else 1
    is_whole = rows == (own_rows if part.stored_rows is None else part.stored_rows)
    variable = part.stored_as or part.name
    start, stop = part.row_start - part.shift, part.row_stop - part.shift
    name = variable if is_whole else f"{variable}[{start}:{stop}]"
    shape = (rows, *part.shape[1:]) if part.shape else ()
    return [
        safetensors.Tensor(
            name if column == "values" else f"{name}::{column}",
            part.dtype,
            (rows,) if column.startswith("row_slot") else shape,
        )
        for column in part.columns
    ]


def _write_table(
    directory: str, writer: str, name: str, snapshot: Snapshot, base: Base | None
) -> SavedShard:
    """Writes a table with a fixed-size list column per value and slot; row slots have width 1."""
    part = _described(
        name, snapshot, f"{writer}-variable-{snapshot.spec.id}-rows-{snapshot.row_start}.arrow"
    )
    schema = _schema(part, snapshot.widths)
    increment = write_increment(directory, part, schema, snapshot, base)
    if increment is not None:
        return increment
    with OutputFile(os.path.join(directory, part.file)) as output:
        write_blocks(output, schema, snapshot.blocks())
    return part._replace(size_bytes=output.size_bytes, checksum=output.checksum, sums=output.sums)


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
        firsts=snapshot.firsts,
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
