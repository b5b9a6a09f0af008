"""Reads the files of a checkpoint into shards by ranges of rows, however either is cut.

Knows nothing of manifests, models or the network. Invariant: restoring gives each row the values
and slots with which it was saved. If it cannot, it raises an error before any row has changed, or
after shards that had their initial values have them again.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dataservice.runtime.number_arrays import to_numbers
from pstrain.errors import DataLossError, NotFoundError
from pstrain.paramserver import safetensors
from pstrain.paramserver.checkpoint import DENSE, tensors_of
from pstrain.paramserver.input_file import InputFile
from pstrain.paramserver.output_file import size_and_checksum
from pstrain.paramserver.saved import SavedShard, check_shape
from pstrain.paramserver.shard import Shard
from pstrain.paramserver.table_file import ROW

logger = logging.getLogger(__name__)

Array = NDArray[Any]
Targets = Sequence[tuple[str, Shard]]
# The first row number, or an array of row numbers, and the columns of these rows.
_Rows = tuple[int | NDArray[np.int64], list[Array]]
# Reads the blocks that an open file has of one part of a variable.
_BlocksOf = Callable[[SavedShard], Iterator[_Rows]]


class _Pair(NamedTuple):
    """A shard, a part in a file that has rows of it, and the part whose kinds of slots it gets."""

    shard: Shard
    part: SavedShard
    layout: SavedShard


_Pairs = list[_Pair]


class ReadAhead(NamedTuple):
    """The files that :func:`read_ahead` has read, and the versions that the shards had then."""

    files: frozenset[str] = frozenset()
    versions: tuple[tuple[Shard, int], ...] = ()

    @property
    def is_current(self) -> bool:
        """Whether no shard has changed since."""
        return all(shard.version == version for shard, version in self.versions)

    def undo(self) -> None:
        """Gives the shards that have not changed since their initial values again."""
        for shard, version in self.versions:
            if shard.version == version:
                shard.reset()


NOTHING = ReadAhead()


def verify(directory: str, targets: Targets, saved: Sequence[SavedShard]) -> None:
    """Checks names, shapes and checksums of files, so that :func:`read_into` can be done; blocks.

    Raises NotFoundError for a missing variable or file, InvalidArgumentError for another shape or
    dtype, and DataLossError for damaged or missing rows.
    """
    for pairs in _by_file(targets, saved).values():
        _verify(directory, pairs[0].part)


def can_read_ahead(targets: Targets, saved: Sequence[SavedShard]) -> bool:
    """True if :func:`read_ahead` can be used: all shards in tables still have their initial values.

    False also if no shard is in a table, or if the checkpoint lacks checksums of pieces.
    """
    tables = _tables(_by_file(targets, saved))
    pairs = [pair for each in tables.values() for pair in each]
    return bool(pairs) and all(pair.shard.is_initial and pair.part.sums for pair in pairs)


def read_ahead(directory: str, targets: Targets, saved: Sequence[SavedShard]) -> ReadAhead:
    """Checks as :func:`verify` does, but reads tables into their shards while checking; blocks.

    Tables are then read only once. No change may be made meanwhile. If it fails, the shards have
    their initial values again.
    """
    files = _by_file(targets, saved)
    tables = _tables(files)
    for file, pairs in files.items():
        if file not in tables:
            _verify(directory, pairs[0].part)
    shards = {pair.shard: None for pairs in tables.values() for pair in pairs}
    try:
        for pairs in tables.values():
            _read_checked(directory, pairs)
    except BaseException:
        for shard in shards:
            shard.reset()
        raise
    return ReadAhead(frozenset(tables), tuple((shard, shard.version) for shard in shards))


def read_into(
    directory: str, targets: Targets, saved: Sequence[SavedShard], ahead: ReadAhead = NOTHING
) -> None:
    """Overwrites each target, named as in the checkpoint, with its rows and slots; blocks.

    The files must be verified or read ahead first: damage is not noticed here. What was read
    ``ahead`` is read again only if a shard of it has changed since.
    """
    done = ahead.files if ahead.is_current else frozenset()
    for file, pairs in _by_file(targets, saved).items():
        if file not in done:
            blocks_of = _dense_file if file.endswith(DENSE) else _table_file
            with pa.memory_map(os.path.join(directory, file)) as source:
                _restore_parts(pairs, blocks_of(source, file))


def _read_checked(directory: str, pairs: _Pairs) -> None:
    part = pairs[0].part
    try:
        with InputFile(directory, part) as source, pa.PythonFile(source, mode="r") as file:
            _restore_parts(pairs, _table_file(file, part.file))
    except FileNotFoundError:
        raise _missing(os.path.join(directory, part.file), part) from None


def _tables(files: Mapping[str, _Pairs]) -> dict[str, _Pairs]:
    return {file: pairs for file, pairs in files.items() if not file.endswith(DENSE)}


def _restore_parts(pairs: _Pairs, blocks_of: _BlocksOf) -> None:
    """Restores the rows that a file holds into the shards that want them."""
    by_part: dict[SavedShard, _Pairs] = {}
    for pair in pairs:
        by_part.setdefault(pair.part, []).append(pair)
    for part, mine in by_part.items():
        _warn_of_lost_slots(mine)
        for rows, columns in blocks_of(part):
            if isinstance(rows, int):
                _restore(mine, rows, columns)
            else:
                _restore_rows(mine, rows, columns)


def _by_file(targets: Targets, saved: Sequence[SavedShard]) -> dict[str, _Pairs]:
    """Returns, by file in the order of reading, the shards that want rows of that file."""
    files: dict[str, _Pairs] = {}
    by_name: dict[str, list[SavedShard]] = {}
    for each in saved:
        by_name.setdefault(each.name, []).append(each)
    for name, shard in targets:
        parts = _parts(name, shard, by_name.get(name, ()))
        if not parts:
            continue
        layout = _slot_layout(shard, parts)
        for each in (file for part in parts for file in part.files):
            files.setdefault(each.file, []).append(_Pair(shard, each, layout))
    return files


def _parts(name: str, shard: Shard, of_name: Sequence[SavedShard]) -> list[SavedShard]:
    mine = sorted(of_name, key=lambda s: s.row_start)
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
        raise _missing(path, part) from None
    if found != (part.size_bytes, part.checksum):
        raise DataLossError(
            f"file {path} of variable {part.name!r} is damaged: {found[0]} bytes with checksum "
            f"{found[1]:#x}, expected {part.size_bytes} with {part.checksum:#x}; restore an older "
            "checkpoint"
        )


def _missing(path: str, part: SavedShard) -> NotFoundError:
    return NotFoundError(f"file {path} of variable {part.name!r} is missing from the checkpoint")


def _table_file(source: pa.NativeFile, _name: str) -> _BlocksOf:
    reader = pa.ipc.open_file(source)
    is_numbered = reader.schema.names[0] == ROW

    def blocks_of(part: SavedShard) -> Iterator[_Rows]:
        start = part.row_start
        for position in range(reader.num_record_batches):
            batch = reader.get_batch(position)
            columns = [_column(batch, index) for index in range(is_numbered, batch.num_columns)]
            yield to_numbers(batch.column(0)) + part.shift if is_numbered else start, columns
            start += batch.num_rows

    return blocks_of


def _dense_file(source: pa.NativeFile, name: str) -> _BlocksOf:
    # Parsed once for all variables in the file: its header describes all of them, maybe thousands.
    found = safetensors.read(np.frombuffer(source.read_buffer(), np.uint8), name)

    def blocks_of(part: SavedShard) -> Iterator[_Rows]:
        rows = part.row_stop - part.row_start
        yield part.row_start, [found[tensor.name].reshape(rows, -1) for tensor in tensors_of(part)]

    return blocks_of


def _slot_layout(shard: Shard, parts: Sequence[SavedShard]) -> SavedShard:
    """Returns the part whose kinds of slots all rows of the shard get, of those it gets rows from.

    Parts that were never trained have no slots. If the parts had several optimizers, the one of
    most rows wins; the next step of another optimizer begins with slots of its own. A part with
    initial values of slots is preferred, since checkpoints of earlier versions lack them.
    """
    rows: Counter[str | None] = Counter()
    for part in parts:
        if part.firsts or len(part.columns) > 1:
            last = min(part.row_stop, shard.row_stop)
            rows[part.optimizer] += last - max(part.row_start, shard.row_start)
    if not rows:
        return parts[0]
    ((optimizer, _),) = rows.most_common(1)
    same = [part for part in parts if part.optimizer == optimizer]
    return next((part for part in same if part.firsts), same[0])


def _has_slots_of(part: SavedShard, layout: SavedShard) -> bool:
    return part.optimizer == layout.optimizer and part.columns == layout.columns


def _warn_of_lost_slots(pairs: _Pairs) -> None:
    for shard, part, layout in pairs:
        if len(part.columns) > 1 and not _has_slots_of(part, layout):
            logger.warning(
                "rows [%d, %d) of variable %r were saved with optimizer slots of %s, but the "
                "other rows of shard %d have slots of %s, so these rows start with fresh slots "
                "of that kind",
                part.row_start, part.row_stop, part.name, part.optimizer, shard.index,
                layout.optimizer,
            )  # fmt: skip


def _with_slots_of(layout: SavedShard, part: SavedShard, columns: list[Array]) -> list[Array]:
    """Returns the columns of ``part`` with the slots of ``layout``, initial ones if need be."""
    if _has_slots_of(part, layout):
        return columns
    values = columns[0]
    widths = [values.shape[1]] * layout.slots + [1] * layout.row_slots
    firsts = layout.firsts or [0.0] * len(widths)
    slots = [
        np.broadcast_to(values.dtype.type(first), (len(values), width))
        for first, width in zip(firsts, widths, strict=True)
    ]
    return [values, *slots]


def _restore(pairs: _Pairs, start: int, columns: list[Array]) -> None:
    for shard, part, layout in pairs:
        a, b = max(start, shard.row_start), min(start + len(columns[0]), shard.row_stop)
        if a < b:
            rows = [
                column[a - start : b - start] for column in _with_slots_of(layout, part, columns)
            ]
            shard.restore(
                a, rows, layout.optimizer, row_slots=layout.row_slots, firsts=layout.firsts
            )


def _restore_rows(pairs: _Pairs, ids: NDArray[np.int64], columns: list[Array]) -> None:
    for shard, part, layout in pairs:
        mine = (ids >= shard.row_start) & (ids < shard.row_stop)
        if mine.any():
            rows = [column[mine] for column in _with_slots_of(layout, part, columns)]
            shard.restore_rows(
                ids[mine], rows, layout.optimizer, row_slots=layout.row_slots, firsts=layout.firsts
            )


def _column(batch: pa.RecordBatch, index: int) -> Array:
    column = batch.column(index)
    return to_numbers(column.flatten()).reshape(len(column), -1)
