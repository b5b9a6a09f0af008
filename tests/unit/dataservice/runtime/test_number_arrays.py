"""The fast conversion of numbers between NumPy and Arrow gives the same as Arrow's own."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from dataservice.runtime.number_arrays import from_numbers, scalar_of, to_axes, to_numbers

_ONE_TO_SIX = np.arange(1, 7)


@pytest.mark.parametrize(
    "values",
    [
        *(_ONE_TO_SIX.astype(kind) for kind in ("i1", "i4", "i8", "u1", "u8", "f2", "f4", "f8")),
        np.array([np.nan, -0.0, np.inf]),
        np.array([True, False] * 5),
        np.zeros(0, np.int64),
        np.zeros(0, bool),
        _ONE_TO_SIX[::2],
        np.array(["a", None], object),
        np.array(["2024-01-01"], "datetime64[s]"),
        np.ma.masked_array([1, 2], [True, False]),
    ],
    ids=str,
)
def test_from_numbers_gives_same_array_as_arrow(values: np.ndarray) -> None:
    found = from_numbers(values)
    found.validate(full=True)
    # Compared as text, as NaN equals nothing.
    assert (found.type, str(found)) == (pa.array(values).type, str(pa.array(values)))


def test_from_numbers_takes_arrays_of_the_other_byte_order() -> None:
    values = np.arange(5)
    swapped = values.astype(values.dtype.newbyteorder())
    assert from_numbers(swapped).equals(pa.array(values))


def test_number_conversion_shares_memory() -> None:
    values = np.arange(6)
    assert np.shares_memory(to_numbers(from_numbers(values)), values)


@pytest.mark.parametrize(
    "array",
    [
        pa.array([1, 2, 3], pa.int16()),
        pa.array([1, 2, 3], pa.uint64())[1:],
        pa.array([0.5, None, 2.5]),
        pa.array([1, None]),
        pa.array([True, False]),
        pa.array([], pa.float32()),
        pa.array(["a"]),
    ],
    ids=str,
)
def test_to_numbers_gives_same_values_as_arrow(array: pa.Array) -> None:
    found, wanted = to_numbers(array), array.to_numpy(zero_copy_only=False)
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


def test_numpy_view_of_arrow_array_is_read_only() -> None:
    assert not to_numbers(pa.array([1, 2])).flags.writeable


@pytest.mark.parametrize(
    ("number", "kind"), [(3, pa.int64()), (-1, pa.int8()), (0, pa.uint64()), (1.5, pa.float32())]
)
def test_scalar_of_gives_same_scalar_as_arrow(number: float, kind: pa.DataType) -> None:
    assert scalar_of(number, kind).equals(pa.scalar(number, kind))


def test_lists_of_a_fixed_size_become_axes() -> None:
    matrix = pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int32(), 2))
    tensor = pa.array([[[1], [2]], [[3], [4]]], pa.list_(pa.list_(pa.int8(), 1), 2))
    np.testing.assert_array_equal(to_axes(matrix[1:]), [[3, 4], [5, 6]])
    np.testing.assert_array_equal(to_axes(pa.chunked_array([matrix, matrix[:0]])), to_axes(matrix))
    np.testing.assert_array_equal(to_axes(tensor), [[[1], [2]], [[3], [4]]])
    assert to_axes(matrix[:0]).shape == (0, 2)


@pytest.mark.parametrize("values", [[1, 2], 3, np.eye(2), pa.array([1.5]), pa.array([[1], [2, 3]])])
def test_other_values_become_arrays_as_numpy_makes_them(values: object) -> None:
    found, wanted = to_axes(values), np.asarray(values)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
