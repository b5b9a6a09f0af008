"""The safetensors format: 8 bytes that give the length of a JSON header, the header, raw values.

Other programs read such files with the ``safetensors`` package. Knows nothing of variables.
Invariant: tensors are written without gaps in the order of the header, beginning at a multiple of 8
bytes; a tensor is read only if it lies inside the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pstrain.errors import DataLossError, InvalidArgumentError

_ALIGNMENT: Final = 8
_HEADER_MAX_BYTES: Final = 100 << 20
_METADATA: Final = "__metadata__"
_CODES: Final = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16",
    "uint32": "U32", "int32": "I32", "uint64": "U64", "int64": "I64",
    "float16": "F16", "float32": "F32", "float64": "F64",
}  # fmt: skip
_DTYPES: Final = {code: np.dtype(name) for name, code in _CODES.items()}


class Tensor(NamedTuple):
    """The description of a tensor to write."""

    name: str
    dtype: str
    shape: tuple[int, ...]


def header(tensors: Sequence[Tensor], metadata: Mapping[str, str]) -> bytes:
    """Returns the bytes before the values of ``tensors``, which must follow in this order.

    Raises InvalidArgumentError for a dtype that the format does not have.
    """
    described: dict[str, Any] = {_METADATA: dict(metadata)}
    at = 0
    for tensor in tensors:
        if tensor.dtype not in _CODES:
            raise InvalidArgumentError(
                f"{tensor.name!r} has dtype {tensor.dtype}, which safetensors does not know"
            )
        size = math.prod(tensor.shape) * np.dtype(tensor.dtype).itemsize
        described[tensor.name] = {
            "dtype": _CODES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [at, at + size],
        }
        at += size
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def read(data: NDArray[np.uint8], name: str) -> dict[str, NDArray[Any]]:
    """Returns the tensors by name, as views of ``data``, the bytes of a whole file.

    Raises DataLossError, saying what is wrong, if ``data`` is no such file.
    """
    length = int.from_bytes(data[:8].tobytes(), "little")
    if len(data) < 8 or length > min(len(data) - 8, _HEADER_MAX_BYTES):
        raise DataLossError(f"{name} is not a safetensors file: its header is not in it")
    try:
        described = json.loads(data[8 : 8 + length].tobytes())
        described.pop(_METADATA, None)
        return {key: _view(data[8 + length :], value) for key, value in described.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataLossError(f"{name} is not a safetensors file: {error!r}") from error


def _view(values: NDArray[np.uint8], described: Mapping[str, Any]) -> NDArray[Any]:
    first, last = described["data_offsets"]
    dtype, shape = _DTYPES[described["dtype"]], tuple(described["shape"])
    if not 0 <= first <= last <= len(values):
        raise ValueError(f"offsets {first} to {last} of {len(values)} bytes")
    if last - first != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{last - first} bytes for shape {shape} of {dtype}")
    return values[first:last].view(dtype).reshape(shape)
