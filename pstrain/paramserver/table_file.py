"""Writes tables as Arrow IPC files; columns go from the slab directly to the file's write buffer.

Arrow decides on the layout of the file, but never sees the values of a whole table. Knows snapshots
and open files, nothing of checkpoints. Invariant: the bytes of a column in the file were read from
its block, or the write fails.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dataservice.runtime.number_arrays import from_numbers
from pstrain.errors import InternalError
from pstrain.paramserver.output_file import OutputFile
from pstrain.paramserver.snapshot import Block, Snapshot

ROW = "row"
"""The first column of a file of single rows: the row numbers in the variable, int64."""


def write_blocks(output: OutputFile, schema: pa.Schema, blocks: Iterable[Block]) -> None:
    """Writes each block as a record batch; the columns of ``schema`` are fixed-size lists."""
    sink = _Sink(output)
    with pa.ipc.new_file(pa.PythonFile(sink, mode="w"), schema) as writing:
        for block in blocks:
            writing.write_batch(sink.promise(block, schema))
            sink.check()


def write_rows(output: OutputFile, schema: pa.Schema, snapshot: Snapshot) -> None:
    """Writes the changed rows, each after its number; ``schema`` is that of the whole table."""
    assert snapshot.changed is not None
    numbered = pa.schema([pa.field(ROW, pa.int64(), nullable=False), *schema], schema.metadata)
    with pa.ipc.new_file(pa.PythonFile(_Sink(output), mode="w"), numbered) as writing:
        for block in snapshot.blocks():
            rows = snapshot.changed.between(block.first, block.first + block.rows)
            if len(rows):
                writing.write_batch(_rows_of(block, rows, numbered, snapshot.row_start))


def _rows_of(
    block: Block, rows: NDArray[np.int64], schema: pa.Schema, row_start: int
) -> pa.RecordBatch:
    columns = [from_numbers(rows + row_start)]
    for column, field in zip(block.columns_of(rows), list(schema)[1:], strict=True):
        values = from_numbers(column.reshape(-1))
        columns.append(pa.FixedSizeListArray.from_arrays(values, type=field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class _Sink:
    """The file object for Arrow; it also takes batches whose columns are read only when written.

    Arrow gets unfilled memory for such a batch, and decides on its layout. When Arrow writes that
    memory, the sink reads the column from the block directly into the file's write buffer instead.
    """

    def __init__(self, output: OutputFile) -> None:
        self._output = output
        self._promised: dict[int, tuple[int, int]] = {}
        self._memory = np.empty(0, np.uint8)
        self._block: Block | None = None
        self.closed = False

    def promise(self, block: Block, schema: pa.Schema) -> pa.RecordBatch:
        """Returns a batch of unfilled memory that stands for a block."""
        sizes = [block.column_bytes(index) for index in range(len(schema))]
        if self._memory.size < sum(sizes):
            self._memory = np.empty(sum(sizes), np.uint8)
        memory, at, columns = pa.py_buffer(self._memory), 0, []
        self._block, self._promised = block, {}
        for index, (field, size) in enumerate(zip(schema, sizes, strict=True)):
            buffer = memory.slice(at, size)
            self._promised[buffer.address] = (index, size)
            item = field.type.value_type
            values = pa.Array.from_buffers(item, block.rows * field.type.list_size, [None, buffer])
            columns.append(pa.Array.from_buffers(field.type, block.rows, [None], children=[values]))
            at += size
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def check(self) -> None:
        """Raises InternalError if a column of the block was not written from the block itself."""
        if self._promised:
            raise InternalError(f"Arrow copied columns {sorted(self._promised.values())}")

    def write(self, data: Any) -> int:
        index, size = -1, 0
        if isinstance(data, pa.Buffer):
            index, size = self._promised.pop(data.address, (-1, 0))
        if self._block is None or size != len(memoryview(data)):
            return self._output.write(data)
        self._output.write_from(size, functools.partial(self._block.read, index))
        return size

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        return self._output.size_bytes

    def flush(self) -> None:
        """Does nothing: the bytes are on the disk only when the file is finished."""

    def close(self) -> None:
        self.closed = True
