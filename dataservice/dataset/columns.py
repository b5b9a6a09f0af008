"""Between Arrow record batches and NumPy arrays, without copies where the types allow it.

Knows nothing of plans or streams. Invariant: a record batch made here has one column per name,
all of one length, and none encoded by dictionaries, runs or views: rows travel without them, and
Arrow cannot take rows of the latter.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from dataservice.dataset.numpy_types import has_zeros_inside, is_masked, stored_type
from dataservice.dataset.plain_types import plain_array, plain_type
from dataservice.dataset.untouched import UntouchedColumn
from dataservice.errors import MissingColumnError, SchemaError
from dataservice.runtime.number_arrays import from_numbers

Columns: TypeAlias = dict[str, np.ndarray]

# Numbers that lie in memory as Arrow has them.
PLAIN: Final = {
    np.dtype(kind): pa.from_numpy_dtype(np.dtype(kind))
    for kind in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
}
_EXACT_IN_FLOATS: Final = 2**53
# Metadata of a field whose lists are all equally long within a batch.
PADDED: Final = {b"dataservice.padded": b"1"}


# Makes the NumPy form of a column; its name appears in errors.
_View: TypeAlias = Callable[[pa.Array, str], np.ndarray]


class NumpyViews:
    """The batches of one stream as arrays, one per column.

    Numbers without nulls are read-only views of Arrow's memory. Strings, binary and nested values
    become object arrays (a null is None); fixed-size lists and padded lists become 2-D; nulls in
    float columns become NaN. SchemaError for nulls in any other column; where all is `for_function`
    of a user, which need not use that column, an UntouchedColumn.
    How a column is read is decided once for all batches of a schema; `extended` names the columns
    of extension types.
    """

    def __init__(self, *, for_function: bool = False) -> None:
        self._for_function = for_function
        self._schema: pa.Schema | None = None
        self._views: list[tuple[str, _View]] = []
        self.extended: frozenset[str] = frozenset()

    def of(self, batch: pa.RecordBatch) -> Columns:
        """The columns of a batch by name."""
        schema = batch.schema
        if self._schema is None or not schema.equals(self._schema, check_metadata=True):
            self._views = [(field.name, _view_of(field)) for field in schema]
            self.extended = frozenset(field.name for field in schema if _is_extension(field.type))
            self._schema = schema
        if self._for_function:
            return {
                name: _or_untouched(view, column, name)
                for (name, view), column in zip(self._views, batch.columns, strict=True)
            }
        return {
            name: view(column, name)
            for (name, view), column in zip(self._views, batch.columns, strict=True)
        }


def to_numpy(batch: pa.RecordBatch) -> Columns:
    """One array per column of a single batch; see `NumpyViews`."""
    return NumpyViews().of(batch)


def to_function(batch: pa.RecordBatch) -> Columns:
    """What a user's function gets of a single batch."""
    return NumpyViews(for_function=True).of(batch)


def _or_untouched(view: _View, column: pa.Array, name: str) -> Any:
    try:
        return view(column, name)
    except SchemaError as error:
        return UntouchedColumn(column, str(error))


def _view_of(field: pa.Field) -> _View:
    if field.metadata and PADDED.items() <= field.metadata.items():
        return _padded_to_numpy
    if not (pa.types.is_integer(field.type) or pa.types.is_floating(field.type)):
        return array_to_numpy
    dtype = np.dtype(field.type.to_pandas_dtype())
    itemsize = dtype.itemsize

    def view(array: pa.Array, name: str) -> np.ndarray:
        if array.null_count or not len(array):
            return array_to_numpy(array, name)
        # As `Array.to_numpy`, which gives the GIL away and has to wait for it for each column.
        values = np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * itemsize)
        values.flags.writeable = False
        return values

    return view


def _padded_to_numpy(array: pa.Array, name: str) -> np.ndarray:
    flat = array_to_numpy(array.flatten(), name)
    return flat.reshape((len(array), -1) if len(array) and len(flat) else (len(array), 0))


def array_to_numpy(array: pa.Array, name: str) -> np.ndarray:
    """NumPy form of one column; see `to_numpy`. `name` appears in errors."""
    kind = array.type
    if _is_extension(kind):
        return _extension_to_numpy(array, name)
    if not plain_type(kind).equals(kind):
        return array_to_numpy(plain_array(array, plain_type(kind)), name)
    if array.null_count and not _holds_nulls(kind):
        raise SchemaError(
            f"column {name!r} of type {kind} has {array.null_count} nulls, which a NumPy array of "
            f'that type cannot hold; {_without_nulls(kind, name)}, or map(..., format="arrow")'
        )
    if pa.types.is_fixed_size_list(kind):
        flat = array.flatten()
        is_number = pa.types.is_integer(flat.type) or pa.types.is_boolean(flat.type)
        if flat.null_count and is_number:
            raise SchemaError(
                f"the lists of column {name!r} of type {kind} hold {flat.null_count} nulls, which "
                f"a NumPy array of {flat.type} cannot hold; cast it before, for example by "
                'map(..., format="arrow") to lists of float64, where nulls become NaN'
            )
        inner = array_to_numpy(flat, name)
        return inner.reshape((len(array), kind.list_size, *inner.shape[1:]))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        _check_exact(array, name)
    try:
        values: np.ndarray = array.to_numpy(zero_copy_only=_is_view(kind) and not array.null_count)
    except pa.ArrowNotImplementedError as error:
        raise SchemaError(
            f"column {name!r} of type {kind} has no form in NumPy ({error}); leave it out with "
            'select(), or use map(..., format="arrow")'
        ) from error
    except pa.ArrowException as error:
        raise _no_form(array, name, error) from error
    return values


def to_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """One dict per row. SchemaError for a value that Python has no form for."""
    try:
        return batch.to_pylist()  # type: ignore[no-any-return]
    except (ValueError, OverflowError):
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            try:
                column.to_pylist()
            except (ValueError, OverflowError) as error:
                raise _no_form(column, name, error) from error
        raise


def _no_form(array: pa.Array, name: str, error: Exception) -> SchemaError:
    return SchemaError(
        f"column {name!r} of type {array.type} has a value that is no text in UTF-8, or beyond "
        f"what Python can hold ({error}); write the files anew, leave it out with select(), or "
        'use map(..., format="arrow")'
    )


def _check_exact(array: pa.Array, name: str) -> None:
    """SchemaError where lists hold both nulls, for which they become floats, and larger integers
    than these can tell apart."""
    while pa.types.is_nested(array.type) and hasattr(array, "flatten"):
        if pa.types.is_struct(array.type) or pa.types.is_map(array.type):
            return  # Python has their values, None for a null
        array = array.flatten()
    if not pa.types.is_integer(array.type) or array.type.bit_width < 64 or not array.null_count:
        return
    from pyarrow import compute  # here, for few tables have such lists

    bounds = compute.min_max(array).as_py()
    if max(abs(bounds["min"] or 0), abs(bounds["max"] or 0)) > _EXACT_IN_FLOATS:
        raise SchemaError(
            f"the lists of column {name!r} hold nulls and integers above 2^53, which NumPy cannot "
            "hold together: with nulls they become floats; read Arrow instead, as in "
            'map(..., format="arrow")'
        )


def _extension_to_numpy(array: pa.Array, name: str) -> np.ndarray:
    """As what it is stored as; of a tensor per row, with the dimensions of the tensors."""
    kind, values = array.type, array_to_numpy(array.storage, name)
    if not isinstance(kind, pa.FixedShapeTensorType):
        return values
    in_order = list(kind.permutation or ()) in ([], list(range(len(kind.shape))))
    return values.reshape((len(array), *kind.shape)) if in_order else values


def _is_extension(kind: pa.DataType | None) -> bool:
    return isinstance(kind, pa.BaseExtensionType)


def _is_view(kind: pa.DataType) -> bool:
    """Whether NumPy has it in memory as Arrow does; dates and times of day are wider there."""
    types = pa.types
    is_number = types.is_integer(kind) or types.is_floating(kind)
    return is_number or types.is_timestamp(kind) or types.is_duration(kind)


def _without_nulls(kind: pa.DataType, name: str) -> str:
    if pa.types.is_fixed_size_list(kind):
        return f"leave those rows out first, with filter(~col({name!r}).is_null())"
    value = False if pa.types.is_boolean(kind) else 0
    return (
        "replace them first, for example with "
        f"with_column({name!r}, col({name!r}).fill_null({value}))"
    )


def _holds_nulls(kind: pa.DataType) -> bool:
    return not (
        pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_fixed_size_list(kind)
    )


def from_numpy(
    columns: Mapping[str, Any],
    schema: pa.Schema | None = None,
    *,
    what: str = "the columns",
    kinds: Mapping[str, pa.DataType] = MappingProxyType({}),
) -> pa.RecordBatch:
    """A record batch of 1-D and n-D arrays of equal length; numbers are not copied.

    Further dimensions become fixed-size lists. `kinds`: what columns become where their values
    allow, instead of what their values look like. With a schema, columns are put in its order and
    cast to its types. SchemaError, naming `what`, for a missing, extra or unequal column.
    """
    for name in columns:
        if not isinstance(name, str):
            raise SchemaError(f"{what}: the name of a column is a string, got {name!r}")
    arrays = {name: to_arrow(values, name, kinds.get(name)) for name, values in columns.items()}
    if len({len(array) for array in arrays.values()}) > 1:
        lengths = {name: len(array) for name, array in arrays.items()}
        raise SchemaError(f"{what} have unequal lengths: {_listed(lengths)}")
    batch = pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
    return batch if schema is None else conform(batch, schema, what=what)


def _listed(lengths: Mapping[str, int]) -> str:
    return ", ".join(f"{name!r} has {length}" for name, length in lengths.items())


def to_arrow(values: Any, name: str, kind: pa.DataType | None = None) -> pa.Array:
    """An Arrow array of a NumPy array, a sequence or an Arrow array; SchemaError if impossible.

    Of type `kind`, where the values allow it. What a masked array masks is null.
    """
    if _is_extension(kind):
        extended = _to_extension(values, name, kind)
        if extended is not None:
            return extended
    if kind is not None and pa.types.is_fixed_size_list(kind):
        lists = _to_fixed_lists(values, name, kind)
        if lists is not None:
            return lists
    if type(values) is np.ndarray and values.ndim == 1 and kind == PLAIN.get(values.dtype, ""):
        return from_numbers(values)
    # NumPy has the nulls in a list of integers as NaN, which is a value in a list of floats.
    for nan_is_null in () if kind is None else (False, True):
        with contextlib.suppress(pa.ArrowException, ValueError, TypeError, OverflowError):
            return pa.array(values, kind, from_pandas=nan_is_null)
    if isinstance(values, UntouchedColumn):
        values = values.array
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.Array):
        return plain_array(values, plain_type(values.type))
    # A pandas.Series has its nulls in an array of its own, NumPy would not have them.
    extended = getattr(values, "array", values)
    try:
        if isinstance(values, list | tuple):
            return _sequence_to_arrow(values, name)
        if hasattr(extended, "__arrow_array__"):
            made = pa.array(extended)
            is_text = pa.types.is_large_string(made.type)
            return plain_array(made, pa.string() if is_text else plain_type(made.type))
        return _ndarray_to_arrow(values if is_masked(values) else np.asarray(values), name)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        if isinstance(error, SchemaError):
            raise
        raise SchemaError(f"column {name!r} cannot become an Arrow array: {error}") from error


def _to_fixed_lists(values: Any, name: str, kind: pa.DataType) -> pa.Array | None:
    """Of an array with a dimension for them; None where the type is not that of the values."""
    if not isinstance(values, np.ndarray) or values.ndim < 2 or values.shape[1] != kind.list_size:
        return None
    flat = to_arrow(values.reshape(-1, *values.shape[2:]), name, kind.value_type)
    if not flat.type.equals(kind.value_type):
        return None
    return pa.FixedSizeListArray.from_arrays(flat, type=kind)


def _to_extension(values: np.ndarray, name: str, kind: pa.BaseExtensionType) -> pa.Array | None:
    """Of what `_extension_to_numpy` made; None where something else has been written into it."""
    flat = values.reshape((len(values), math.prod(values.shape[1:]))) if values.ndim > 1 else values
    storage = to_arrow(flat, name, None if values.ndim > 1 else kind.storage_type)
    with contextlib.suppress(pa.ArrowException):
        return pa.ExtensionArray.from_storage(kind, storage.cast(kind.storage_type))
    return None


def _sequence_to_arrow(values: Sequence[Any], name: str) -> pa.Array:
    try:
        array = np.asarray(values)
    except ValueError:
        # Rows of several lengths have no form in NumPy.
        return pa.array(values)
    if array.dtype.kind in "SU":
        # NumPy drops the zeros at the end of texts of a fixed width.
        texts = np.asarray(values, dtype=object)
        array = texts if all(isinstance(text, str | bytes) for text in texts.flat) else array
    return pa.array(values) if 0 in array.shape[1:] else _ndarray_to_arrow(array, name)


def _ndarray_to_arrow(values: np.ndarray, name: str) -> pa.Array:
    if values.ndim == 0:
        raise SchemaError(
            f"column {name!r} is the single value {values.tolist()!r}; "
            "a column is an array with one value per row"
        )
    values = values.astype(stored_type(values.dtype, name), copy=False)
    if values.ndim == 1:
        kind = None if is_masked(values) else PLAIN.get(values.dtype)
        if kind is None or not (values.size and values.flags.c_contiguous and values.flags.aligned):
            return pa.array(values.tolist() if has_zeros_inside(values) else values)
        # As `pa.array`, which gives the GIL away and has to wait for it for each column.
        return pa.Array.from_buffers(kind, values.size, [None, pa.py_buffer(values)], 0)
    if 0 in values.shape[1:]:
        raise SchemaError(f"column {name!r} has shape {values.shape}; each row must hold values")
    # NumPy's own would leave out the mask.
    whole = values if is_masked(values) else np.ascontiguousarray(values)
    flat = _ndarray_to_arrow(whole.reshape(-1), name)
    for width in reversed(values.shape[1:]):
        flat = pa.FixedSizeListArray.from_arrays(flat, width)
    return flat


def conform(batch: pa.RecordBatch, schema: pa.Schema, *, what: str) -> pa.RecordBatch:
    """`batch` with the columns of `schema`, in its order, each safely cast to its type.

    SchemaError, naming `what` and the column, where a column is missing or too many, or where a
    cast would lose information.
    """
    if batch.schema.equals(schema):
        return batch
    check_names(batch.schema.names, schema.names, what=what)
    arrays = [_cast(batch.column(field.name), field, what) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def check_names(got: Sequence[str], expected: Sequence[str], *, what: str) -> None:
    """SchemaError unless both hold the same names, in whatever order."""
    given, wanted = set(got), set(expected)
    missing = [name for name in expected if name not in given]
    extra = [name for name in got if name not in wanted]
    if missing or extra:
        raise SchemaError(
            f"{what} have the columns {list(got)}, expected {list(expected)}"
            + (f"; missing: {missing}" if missing else "")
            + (f"; not expected: {extra}" if extra else "")
        )


def _cast(array: pa.Array, field: pa.Field, what: str) -> pa.Array:
    if array.type.equals(field.type):
        return array
    try:
        return array.cast(field.type, safe=True)
    except pa.ArrowException as error:
        raise SchemaError(
            f"{what}: column {field.name!r} is of type {array.type}, expected {field.type}, "
            f"and its values do not convert ({error}); convert it in the function, "
            "or state the types with schema="
        ) from error


def concat_batches(pieces: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch of the rows of at least one piece; a single piece is not copied."""
    if len(pieces) == 1:
        return pieces[0]
    columns = zip(*(piece.columns for piece in pieces), strict=True)
    arrays = [pa.concat_arrays(column) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=pieces[0].schema)


def no_rows(schema: pa.Schema) -> pa.RecordBatch:
    """A batch of that schema without rows; `RecordBatch.from_pylist` knows no unions."""
    return pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in schema.types], schema=schema)


def encoded_bytes(batch: pa.RecordBatch) -> int:
    """Bytes of a batch's rows when they are sent; told in a tenth of the time of `nbytes`."""
    size: int = pa.ipc.get_record_batch_size(batch)
    return size


def apply_in_pool(
    compute: Callable[[np.ndarray], object], array: pa.Array, kind: pa.DataType
) -> pa.Array:
    """An array of numbers of type `kind` that `compute` writes; null where `array` is.

    It lies in Arrow's memory pool, which keeps its pages: the C library would give large arrays
    back at once, and every chunk would pay for fresh pages.
    """
    dtype = np.dtype(kind.to_pandas_dtype())
    buffer = pa.allocate_buffer(len(array) * dtype.itemsize)
    compute(np.frombuffer(buffer, dtype=dtype))
    nulls = array.is_valid().buffers()[1] if array.null_count else None
    return pa.Array.from_buffers(kind, len(array), [nulls, buffer])


def require_columns(wanted: Sequence[str], available: Sequence[str], *, what: str) -> None:
    """MissingColumnError naming the first wanted column that is not there, and those that are."""
    known = set(available)
    for name in wanted:
        if name not in known:
            raise MissingColumnError(
                f"{what}: there is no column {name!r}; the columns are {list(available)}"
            )


def require_distinct(names: Sequence[str], *, what: str) -> None:
    """SchemaError for a name that comes twice: of columns by name, one would be lost."""
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise SchemaError(f"{what} has several columns named {twice}; rename them")
