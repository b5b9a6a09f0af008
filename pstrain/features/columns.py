"""Converts an Arrow column to a column of a matrix, with as few copies as possible.

Knows the layout of Arrow buffers, not models. Invariant: every error names the column, the
offending type or value, and the remedy.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import DTypeLike, NDArray

from dataservice.runtime.number_arrays import to_numbers
from pstrain.errors import DataError, InvalidArgumentError
from pstrain.features.bags import is_list
from pstrain.kernels import hashing, keys
from pstrain.kernels.keys import NO_KEY

# Keyed by type id: hashing a type object formats it as text each time.
_NUMPY_OF: Final[dict[int, np.dtype[Any]]] = {
    pa.int8().id: np.dtype(np.int8),
    pa.int16().id: np.dtype(np.int16),
    pa.int32().id: np.dtype(np.int32),
    pa.int64().id: np.dtype(np.int64),
    pa.uint8().id: np.dtype(np.uint8),
    pa.uint16().id: np.dtype(np.uint16),
    pa.uint32().id: np.dtype(np.uint32),
    pa.uint64().id: np.dtype(np.uint64),
    pa.float32().id: np.dtype(np.float32),
    pa.float64().id: np.dtype(np.float64),
}
# A set of type ids, because every column of every batch is checked, and pa.types has a function
# per type.
_TEXT = frozenset(
    kind.id
    for kind in (
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.binary(),
        pa.large_binary(),
        pa.binary_view(),
    )
)
_COMPILED = frozenset(np.dtype(t) for t in (np.int32, np.int64, np.float32, np.float64))

Kind = Literal["integers", "strings"]
_KINDS: Final[dict[int, Kind]] = {
    **dict.fromkeys(_TEXT, "strings"),
    **{id_: "integers" for id_, kind in _NUMPY_OF.items() if np.issubdtype(kind, np.integer)},
    pa.bool_().id: "integers",
}


def _view(buffer: pa.Buffer | None, dtype: Any, size: int = -1, offset: int = 0) -> NDArray[Any]:
    """Returns elements of a buffer, always read-only, so that kernels are compiled only once."""
    if buffer is None or size == 0:
        values = np.empty(0, dtype=dtype)
    else:
        at = offset * np.dtype(dtype).itemsize if offset else 0
        values = np.frombuffer(buffer, dtype, size, at)
    values.setflags(write=False)
    return values


_NO_BITMAP = _view(None, np.uint8)


class _Values(NamedTuple):
    """A primitive column: its n values, its validity bitmap, and its first bit in the bitmap."""

    values: NDArray[Any]
    valid: NDArray[np.uint8]
    bit: int


def is_categorical(type_: pa.DataType) -> bool:
    """True if values of this Arrow type can be hashed into buckets."""
    return (
        pa.types.is_integer(type_)
        or pa.types.is_boolean(type_)
        or is_text(type_)
        or (pa.types.is_dictionary(type_) and is_categorical(type_.value_type))
    )


def kind_of(type_: pa.DataType) -> Kind | None:
    """Returns what a hash takes the values of a column for; None if it has none, or takes none."""
    found = _KINDS.get(type_.id)
    if found is None and (pa.types.is_dictionary(type_) or is_list(type_)):
        return kind_of(type_.value_type)
    return found


def dense_into(
    name: str, column: pa.Array, mean: float, std: float, out: NDArray[np.float32], k: int
) -> None:
    """Writes normalised values of a numeric column into ``out[:, k]``; nulls and NaN become 0.

    DataError for any other value that is not finite as float32.
    """
    values, valid, bit = numbers(name, column, "dense")
    wrong = hashing.place_dense(values, valid, bit, mean, 1.0 / std, out, k)
    if wrong >= 0:
        raise DataError(
            f"dense column {name!r}, row {wrong}: {values[wrong]} is not a finite float32; "
            "clip the column or make such values null"
        )


def ids_into(
    name: str,
    column: pa.Array,
    buckets: int,
    hashed: bool,
    base: int,
    out: NDArray[np.int64],
    k: int,
) -> None:
    """Writes ``base`` + bucket of each value into ``out[:, k]``; nulls go to bucket ``buckets``.

    DataError for a column that is not of integers, booleans or strings and, unless ``hashed``, for
    strings and for ids outside [0, ``buckets``).
    """
    if pa.types.is_dictionary(column.type):
        # The few values of the dictionary are encoded, then the many rows refer to their codes.
        codes = np.empty((len(column.dictionary), 1), dtype=np.int64)
        ids_into(name, column.dictionary, buckets, hashed, base, codes, 0)
        codes_into(name, column, codes, base + buckets, out, k)
    elif is_text(column.type):
        if not hashed:
            raise DataError(
                f"column {name!r} holds {column.type} and is not hashed: use Category(hashed=True)"
            )
        offsets, data, valid, bit = text(column)
        hashing.hash_strings(offsets, data, valid, bit, buckets, base, out, k)
    else:
        values, valid, bit = _integers(name, column)
        if hashed:
            hashing.hash_integers(values, valid, bit, buckets, base, out, k)
        else:
            wrong = hashing.place_ids(values, valid, bit, buckets, base, out, k)
            if wrong >= 0:
                raise DataError(
                    f"column {name!r}, row {wrong}: id {column[wrong]} is outside [0, {buckets}); "
                    "raise Category.buckets or use hashed=True"
                )


def keys_into(name: str, column: pa.Array, out: NDArray[np.int64], k: int) -> None:
    """Writes the keys of the values into ``out[:, k]``; nulls become ``NO_KEY``.

    The key of an integer is the integer, that of a string its hash.
    """
    if pa.types.is_dictionary(column.type):
        codes = np.empty((len(column.dictionary), 1), dtype=np.int64)
        keys_into(name, column.dictionary, codes, 0)
        codes_into(name, column, codes, NO_KEY, out, k)
    elif is_text(column.type):
        offsets, data, valid, bit = text(column)
        keys.place_text(offsets, data, valid, bit, out, k)
    else:
        values, valid, bit = _integers(name, column)
        keys.place_integers(values, valid, bit, out, k)


def _integers(name: str, column: pa.Array) -> _Values:
    found = numbers(name, column, "categorical")
    if found.values.dtype.kind == "f":
        raise DataError(
            f"categorical column {name!r} holds {column.type}: make it a dense column, or "
            "cast it to integers or strings"
        )
    return found


def labels(name: str, column: pa.Array) -> NDArray[np.float32]:
    """Returns labels as float32 0 and 1; DataError for nulls and other values."""
    column = singles(column)
    if column.null_count:
        raise DataError(f"label column {name!r} holds {column.null_count} nulls: filter them out")
    if not (
        pa.types.is_boolean(column.type)
        or pa.types.is_integer(column.type)
        or pa.types.is_floating(column.type)
    ):
        values = column if is_list(column.type) else column.unique()
        found = ", ".join(map(repr, values[:6].to_pylist()))
        raise DataError(f"label column {name!r} holds {column.type} ({found}): map it to 0 and 1")
    values = numbers(name, column, "label").values
    out = np.empty(len(values), dtype=np.float32)
    if hashing.place_labels(values, out) >= 0:
        kinds = np.unique(values)
        found = ", ".join(str(v) for v in kinds[:6].tolist()) + (", ..." if len(kinds) > 6 else "")
        raise DataError(
            f"label column {name!r} must hold the two values 0 and 1, found {found}: "
            'map it to 0 and 1, or, to predict numbers, compile(loss="mse")'
        )
    return out


def number_labels(name: str, column: pa.Array) -> NDArray[np.float32]:
    """Returns labels as finite float32; DataError for nulls and other values."""
    column = singles(column)
    if column.null_count:
        raise DataError(f"label column {name!r} holds {column.null_count} nulls: filter them out")
    values = numbers(name, column, "label").values
    with np.errstate(over="ignore"):
        out = values.astype(np.float32)
    wrong = ~np.isfinite(out)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DataError(
            f"label column {name!r}, row {row}: {values[row]} is not a finite float32: filter such "
            "rows out, or scale the labels"
        )
    return out


def singles(column: pa.Array) -> pa.Array:
    """Flattens a column whose lists all have one value, as labels [n, 1]; returns others as is."""
    if not is_list(column.type) or not (to_numbers(pc.list_value_length(column)) == 1).all():
        return column
    return column.flatten()


def vector(what: str, values: Any, dtype: DTypeLike = np.float32) -> NDArray[Any]:
    """Returns numbers of any shape, also Arrow's, as ``dtype`` [n]; DataError for other values."""
    if values is None:
        raise DataError(f"{what} are not numbers but None: give what was computed")
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.Array):
        values = singles(values)
    nulls = _null_count(values)
    if nulls:
        raise DataError(f"{what} hold {nulls} nulls: filter them out")
    type_ = values.type if isinstance(values, pa.Array) else None
    if type_ is not None and (pa.types.is_integer(type_) or pa.types.is_floating(type_)):
        values = to_numbers(values)
    try:
        return np.ascontiguousarray(values, dtype=dtype).reshape(-1)
    except (TypeError, ValueError) as error:
        kind = type_ or _kind(values)
        raise DataError(f"{what} are not numbers but {kind}: map them to numbers") from error


def _null_count(values: Any) -> int:
    """Returns the number of nulls, and of None in lists and arrays, of which NumPy makes NaN."""
    if isinstance(values, pa.Array):
        return int(values.null_count)
    if isinstance(values, np.ndarray):
        values = values.ravel().tolist() if values.dtype.kind == "O" else ()
    return sum(each is None for each in values) if isinstance(values, list | tuple) else 0


def _kind(values: Any) -> Any:
    """Returns the name of the type of these values for an error message."""
    try:
        return np.asarray(values).dtype
    except ValueError:
        return "lists of several lengths"


def check_labels(what: str, labels: NDArray[np.float32]) -> None:
    """Raises InvalidArgumentError unless all labels are between 0 and 1."""
    outside = ~((labels >= 0) & (labels <= 1))
    if outside.any():
        raise InvalidArgumentError(
            f"{what} needs labels from 0 to 1, got {labels[outside][0]:g}: map the two classes to "
            "0 and 1"
        )


def finite_values(name: str, column: pa.Array) -> NDArray[np.float64]:
    """Returns the finite values of a numeric column, without nulls, as float64."""
    values = numbers(name, column.drop_null(), "dense").values.astype(np.float64)
    return values[np.isfinite(values)]


def is_text(type_: pa.DataType) -> bool:
    """True if values of this Arrow type are strings or bytes."""
    return type_.id in _TEXT


def _bitmap(column: pa.Array, buffer: pa.Buffer | None) -> NDArray[np.uint8]:
    if buffer is None or column.null_count == 0:
        return _NO_BITMAP
    return _view(buffer, np.uint8)


_OF_LISTS = {
    "categorical": "give its Category a pooling",
    "dense": "a dense column has one number in each row; make a column of each place of the list "
    "(with_column), or, if they are ids, a categorical column: Category(n, pooling='mean')",
    "label": "a model is trained on one number for each row",
    "vocabulary": "give a list of strings or integers",
}


def numbers(name: str, column: pa.Array, role: str) -> _Values:
    """Returns the values of a column of numbers, booleans or only nulls.

    DataError for other types, naming the column with its ``role``.
    """
    dtype = _NUMPY_OF.get(column.type.id)
    if dtype is None:
        if pa.types.is_dictionary(column.type) and not is_text(column.type.value_type):
            return numbers(name, column.dictionary_decode(), role)
        if pa.types.is_boolean(column.type):
            return numbers(name, column.cast(pa.uint8()), role)
        if pa.types.is_float16(column.type):
            return numbers(name, column.cast(pa.float32()), role)
        if pa.types.is_null(column.type):
            # A column without any value in its file may have this type; its real one is unknown.
            return numbers(name, column.cast(pa.int64()), role)
        remedy = _OF_LISTS[role] if is_list(column.type) else "cast it to numbers"
        raise DataError(f"{role} column {name!r} holds {column.type}: {remedy}")
    valid, buffer = column.buffers()
    values = _view(buffer, dtype, len(column), column.offset)
    if dtype not in _COMPILED:
        # Small integers are rare; widening them keeps the number of compiled kernels small. Ids of
        # uint64 keep their bits as int64; other values beyond int64 would become negative.
        is_number = role in ("dense", "label") and dtype == np.uint64
        values = values.astype(np.float64 if is_number else np.int64)
        values.flags.writeable = False
    return _Values(values, _bitmap(column, valid), column.offset)


def text(
    column: pa.Array,
) -> tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.uint8], int]:
    """Returns offsets, bytes, validity bitmap and its first bit, of a column of strings."""
    if pa.types.is_string_view(column.type) or pa.types.is_binary_view(column.type):
        column = column.cast(pa.large_binary())
    wide = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    dtype = np.dtype(np.int64 if wide else np.int32)
    valid, offsets_buffer, data = column.buffers()
    if len(column) == 0:
        return _view(None, np.int64), _NO_BITMAP, _NO_BITMAP, 0
    offsets = _view(offsets_buffer, dtype, len(column) + 1, column.offset)
    return offsets, _view(data, np.uint8), _bitmap(column, valid), column.offset


def codes_into(
    name: str,
    column: pa.DictionaryArray,
    codes: NDArray[np.int64],
    null: int,
    out: NDArray[np.int64],
    k: int,
) -> None:
    """Writes the code of each value, ``codes[index, 0]``, into ``out[:, k]``; of nulls ``null``."""
    values, valid, bit = numbers(name, column.indices, "categorical")
    hashing.place_dictionary(values, codes, valid, bit, null, out, k)
