"""Encodes what a closure returns as bytes that cannot run code when they are decoded.

Takes structures of None, bool, int, float, str, bytes, list, tuple, named tuple, dict, NumPy
arrays and scalars, and Arrow batches and tables. Knows nothing of how the bytes travel. Invariants:
``decode(encode(value))`` equals the value, NumPy scalars included; what ``is_unread``, which a
function that changes a variable gets for it, is not read, and becomes None.
"""

from __future__ import annotations

import json
import math
import struct
from collections import namedtuple
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pstrain.errors import InvalidArgumentError
from pstrain.serialization import sparse_arrays
from pstrain.serialization.loaded_classes import loaded_class

_LENGTH = struct.Struct("<I")
_PLAIN = (type(None), bool, int, float, str)
_COMPRESSED_FROM_BYTES = 16 << 10
_LZ4_TIMES_MAX = 255  # one byte of LZ4 stands for at most so many bytes
# What decoding damaged bytes can raise. NumPy parses dtype descriptions as Python expressions; an
# Arrow stream may have no batch, or an unknown type.
_DECODING_ERRORS = (
    struct.error,
    ValueError,
    LookupError,
    TypeError,
    OSError,
    SyntaxError,
    StopIteration,
    RuntimeError,
    pa.ArrowException,
)


def encode(value: Any) -> bytes:
    """Encodes ``value``; InvalidArgumentError (a ValueError) names a type that cannot travel."""
    if value is None:
        return b""
    buffers: list[bytes] = []
    try:
        tree = json.dumps(_pack(value, buffers)).encode()
    except RecursionError as error:
        raise InvalidArgumentError(
            f"a closure can't return a {type(value).__name__} that holds itself, or others within "
            "others so deep"
        ) from error
    sizes = b"".join(_LENGTH.pack(len(b)) for b in (tree, *buffers))
    return _LENGTH.pack(len(buffers) + 1) + sizes + tree + b"".join(buffers)


def decode(data: bytes) -> Any:
    """Decodes the bytes of :func:`encode`; InvalidArgumentError if they are damaged."""
    if not data:
        return None
    try:
        (count,) = _LENGTH.unpack_from(data)
        position = _LENGTH.size * (count + 1)
        parts = []
        for index in range(count):
            (size,) = _LENGTH.unpack_from(data, _LENGTH.size * (index + 1))
            parts.append(memoryview(data)[position : position + size])
            position += size
        return _unpack(json.loads(bytes(parts[0])), dict(enumerate(parts[1:])))
    except _DECODING_ERRORS as error:
        raise InvalidArgumentError(f"not an encoded result: {error}") from error


def _pack(value: Any, buffers: list[bytes]) -> Any:
    if isinstance(value, _PLAIN) and not isinstance(value, np.generic):
        return value
    if isinstance(value, list):
        return ["list", *(_pack(item, buffers) for item in value)]
    # A gradient is a tuple too, of its variable among others, but stands for an array.
    is_structure = isinstance(value, tuple) and not hasattr(value, "__array__")
    if is_structure and hasattr(value, "_fields"):
        cls = type(value)
        name = [cls.__module__, cls.__qualname__, list(value._fields)]
        return ["named", name, *(_pack(item, buffers) for item in value)]
    if is_structure:
        return ["tuple", *(_pack(item, buffers) for item in value)]
    if isinstance(value, dict):
        pairs = [[_pack(k, buffers), _pack(v, buffers)] for k, v in value.items()]
        return ["dict", *pairs]
    if getattr(value, "is_unread", False):
        return None
    kind, data, *rest = _leaf(value)
    buffers.append(data)
    return [kind, len(buffers) - 1, *rest]


def _leaf(value: Any) -> tuple[Any, ...]:
    """Returns the kind of a value that is no structure, its bytes, and how to read them."""
    if isinstance(value, bytes):
        return "bytes", value
    if isinstance(value, np.ndarray | np.generic):
        return _array_leaf(value)
    if isinstance(value, pa.RecordBatch | pa.Table):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, value.schema) as writer:
            writer.write(value)
        kind = "batch" if isinstance(value, pa.RecordBatch) else "table"
        return kind, sink.getvalue().to_pybytes()
    if hasattr(value, "__array__") and not hasattr(value, "columns"):
        return _array_leaf(np.asarray(value))
    if hasattr(value, "__array__"):
        raise InvalidArgumentError(
            f"a closure can't return a {type(value).__name__}, whose names of columns an array "
            "would lose: return pyarrow.Table.from_pandas(frame), or its values, frame.to_numpy()"
        )
    raise InvalidArgumentError(
        f"a closure can't return a {type(value).__name__}: return numbers, strings, NumPy "
        "arrays, Arrow batches, or lists, tuples and dicts of them"
    )


def _array_leaf(value: NDArray[Any] | np.generic) -> tuple[Any, ...]:
    _check_array(value)
    array = np.asarray(value)
    form = array.dtype.str, list(array.shape)
    # Large results are mostly the counts of metrics, in which most values are 0.
    sparse = sparse_arrays.packed(array)
    if sparse is not None:
        return "sparse", sparse.data, *form, sparse.gap_type, sparse.value_type
    kind = "scalar" if isinstance(value, np.generic) else "array"
    return kind, _compressed(array.tobytes()), *form


def _check_array(value: Any) -> None:
    if value.dtype.kind in "OV":
        raise InvalidArgumentError(
            f"a closure can't return an array of dtype {value.dtype}: return one of numbers, "
            "strings or times, or a list, or a dict of an array for each field"
        )
    if isinstance(value, np.ma.MaskedArray):
        raise InvalidArgumentError(
            "a closure can't return a masked array, whose mask would be lost: return "
            "array.filled(...), or (array.data, array.mask)"
        )


def _named_tuple(name: tuple[str, str, list[str]], values: list[Any]) -> Any:
    """Returns a tuple of the named class, or of a new class with its name and fields.

    The new class is used if this process has not loaded the class, or with other fields.
    """
    module, qualname, fields = name
    cls: Any = loaded_class(module, qualname)
    if cls is None or not issubclass(cls, tuple) or list(getattr(cls, "_fields", ())) != fields:
        made: Any = namedtuple
        cls = made(qualname.rpartition(".")[2], fields, rename=True)
    return tuple.__new__(cls, values)


def _unpack(tree: Any, buffers: dict[int, memoryview]) -> Any:
    """Rebuilds a value from its tree, and removes from ``buffers`` each buffer that it uses.

    A buffer can be used only once, so that small damaged input cannot decode to many large arrays.
    """
    if not isinstance(tree, list):
        return tree
    kind, *rest = tree
    if kind == "list":
        return [_unpack(item, buffers) for item in rest]
    if kind == "tuple":
        return tuple(_unpack(item, buffers) for item in rest)
    if kind == "named":
        return _named_tuple(rest[0], [_unpack(item, buffers) for item in rest[1:]])
    if kind == "dict":
        return {_unpack(k, buffers): _unpack(v, buffers) for k, v in rest}
    data = buffers.pop(rest[0])
    if kind == "bytes":
        return bytes(data)
    if kind in ("array", "scalar"):
        dtype, shape = np.dtype(rest[1]), rest[2]
        size = dtype.itemsize * math.prod(shape)
        array = np.frombuffer(_decompressed(data, size), dtype).reshape(shape)
        return array if kind == "array" else array[()]
    if kind == "sparse":
        sparse = sparse_arrays.Packed(rest[3], rest[4], bytes(data))
        return sparse_arrays.unpacked(sparse, np.dtype(rest[1]), rest[2])
    if kind in ("batch", "table"):
        reader = pa.ipc.open_stream(pa.py_buffer(bytes(data)))
        return reader.read_next_batch() if kind == "batch" else reader.read_all()
    raise InvalidArgumentError(f"unknown kind {kind!r} in an encoded result")


def _compressed(data: bytes) -> bytes:
    """Compresses by LZ4 if that at least halves the bytes.

    Data of full length is therefore known to be uncompressed.
    """
    if len(data) < _COMPRESSED_FROM_BYTES:
        return data
    small: bytes = pa.compress(data, codec="lz4", asbytes=True)
    return small if 2 * len(small) <= len(data) else data


def _decompressed(data: memoryview, size: int) -> bytearray:
    if len(data) == size:
        return bytearray(data)
    # A size claimed by a peer is believed only if the data can decompress to it, because reading
    # from the stream allocates the whole size in advance.
    if size > _LZ4_TIMES_MAX * len(data):
        raise ValueError(f"{len(data)} bytes cannot be {size}")
    with pa.input_stream(pa.py_buffer(data), compression="lz4") as stream:
        whole = bytearray(stream.read(size + 1))
    if len(whole) != size:
        raise ValueError(f"{size} bytes were expected and {len(whole)} found")
    return whole
