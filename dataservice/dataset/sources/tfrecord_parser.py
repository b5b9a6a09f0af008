"""Turns the bytes of TFRecord files into columns. Imports Numba; knows no files.

A missing feature is null. Invariant: every record of a batch is checked before values are read.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dataservice.dataset.nested_arrays import fixed_size_lists
from dataservice.dataset.sources import tfrecord_kernels as kernels
from dataservice.errors import SchemaError, SourceError

_PROBLEMS = {kernels.COMPLETE: "", kernels.BAD_LENGTH: "length", kernels.BAD_DATA: "data"}
_NAMES = {kernels.BYTES: "bytes", kernels.FLOATS: "float", kernels.INTEGERS: "int64"}


def frame(data: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> tuple[int, int, str, int]:
    """Finds complete records in `data` and fills `starts` and `ends`.

    Returns their number, the bytes that they take, what is damaged after them ("" for nothing), and
    the bytes that the next record needs.
    """
    count, used, problem, needed = kernels.frame(data, kernels.CRC_TABLE, starts, ends, True)
    return int(count), int(used), _PROBLEMS[problem], int(needed)


def parse(
    data: np.ndarray, starts: np.ndarray, ends: np.ndarray, features: pa.Schema | None, where: str
) -> pa.RecordBatch:
    """Returns the records as columns; as one binary column if `features` is None.

    Errors begin with `where`.
    """
    if features is None:
        column = _binary(data, starts, ends)
        return pa.RecordBatch.from_arrays([column], names=["record"])
    encoded = [field.name.encode() for field in features]
    name_ends = np.cumsum([0, *map(len, encoded)]).astype(np.int64)
    spans = np.zeros((len(encoded), len(starts), 3), np.int64)
    names = np.frombuffer(b"".join(encoded), np.uint8)
    bad = kernels.locate(data, starts, ends, names, name_ends, spans)
    if bad >= 0:
        raise SourceError(
            f"{where}: number {bad} of them is not a tf.train.Example; read the records as they "
            "are with features=None"
        )
    arrays = [_column(data, spans[i], field, where) for i, field in enumerate(features)]
    return pa.RecordBatch.from_arrays(arrays, schema=features)


def _column(data: np.ndarray, spans: np.ndarray, field: pa.Field, where: str) -> pa.Array:
    kind = field.type
    is_list = pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind)
    value_type = kind.value_type if is_list else kind
    stored = _stored(value_type)
    counts = np.empty(len(spans), np.int64)
    bad = kernels.count_values(data, spans, stored, counts)
    if bad >= 0:
        found = _NAMES[int(spans[bad, 0])]
        problem = f"holds {found} values" if found != _NAMES[stored] else "is malformed"
        raise SchemaError(
            f"{where}: feature {field.name!r} of number {bad} of them {problem}, and is declared "
            f"as {kind}"
        )
    wanted = kind.list_size if pa.types.is_fixed_size_list(kind) else None if is_list else 1
    if wanted is not None:
        _check_counts(counts, wanted, field, where)
    present = counts >= 0 if wanted is None else counts == wanted
    total = int(counts[counts > 0].sum())
    values = _cast(_values(data, spans, stored, total), value_type, field, where)
    if not is_list:
        return values if present.all() else values.take(_positions(present))
    if wanted is None:
        offsets = np.concatenate([[0], np.cumsum(np.maximum(counts, 0))]).astype(np.int32)
        mask = None if present.all() else pa.array(~present)
        return pa.ListArray.from_arrays(pa.array(offsets), values, type=kind, mask=mask)
    if present.all():
        return fixed_size_lists(values, len(counts), kind)
    rows = np.where(present, np.cumsum(present) - 1, 0)
    taken = (rows[:, None] * wanted + np.arange(wanted)).reshape(-1)
    filled = values.take(pa.array(taken)) if total else pa.nulls(len(taken), value_type)
    return fixed_size_lists(filled, len(counts), kind, pa.array(~present))


def _positions(present: np.ndarray) -> pa.Array:
    """Returns for each row the number of its value; null for a row without one."""
    return pa.array(np.cumsum(present) - 1, mask=~present)


def _stored(kind: pa.DataType) -> int:
    if pa.types.is_floating(kind):
        return kernels.FLOATS
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return kernels.BYTES
    return kernels.INTEGERS


def _check_counts(counts: np.ndarray, wanted: int, field: pa.Field, where: str) -> None:
    """Raises SchemaError for a wrong number of values.

    An empty list counts as missing, as in tf.io.parse_example.
    """
    wrong = np.flatnonzero((counts > 0) & (counts != wanted))
    if wrong.size:
        raise SchemaError(
            f"{where}: feature {field.name!r} of number {wrong[0]} of them has "
            f"{counts[wrong[0]]} values, and is declared as {field.type}; declare it as a list"
        )


def _values(data: np.ndarray, spans: np.ndarray, stored: int, total: int) -> pa.Array:
    if stored == kernels.INTEGERS:
        integers = np.empty(total, np.int64)
        kernels.read_integers(data, spans, integers)
        return pa.array(integers)
    if stored == kernels.FLOATS:
        floats = np.empty((total, 4), np.uint8)
        kernels.read_floats(data, spans, floats)
        return pa.array(floats.reshape(-1).view("<f4").astype(np.float32, copy=False))
    ranges = np.empty((total, 2), np.int64)
    kernels.locate_bytes(data, spans, ranges)
    return _binary(data, ranges[:, 0], ranges[:, 1])


def _binary(data: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> pa.Array:
    lengths = ends - begins
    total = int(lengths.sum())
    if total > np.iinfo(np.int32).max:
        raise SourceError(f"{total:,} bytes in one batch of records are too many for a column")
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    joined = np.empty(total, np.uint8)
    kernels.gather(data, np.ascontiguousarray(begins), np.ascontiguousarray(ends), joined)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(joined)]
    return pa.Array.from_buffers(pa.binary(), len(begins), buffers)


def _cast(values: pa.Array, kind: pa.DataType, field: pa.Field, where: str) -> pa.Array:
    if values.type.equals(kind):
        return values
    try:
        return values.cast(kind)
    except pa.ArrowException as error:
        raise SchemaError(
            f"{where}: feature {field.name!r} has values that do not fit {kind}: {error}"
        ) from error
