"""Arrays of mostly zeros: encoded small, decoded bit by bit, refused when damaged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstrain.serialization import results
from pstrain.serialization.sparse_arrays import MOST_BYTES, Packed, packed, unpacked

SIZE = 8192
LARGEST = 2**63 - 1


@given(
    st.sampled_from([np.int64, np.int32, np.uint32, np.float64, np.float32]),
    st.dictionaries(st.integers(0, SIZE - 1), st.integers(-(2**31), 2**31), max_size=8),
)
def test_packed_sparse_arrays_are_unpacked_unchanged(dtype: Any, values: dict[int, int]) -> None:
    array = np.zeros((2, SIZE // 2), dtype)
    array.reshape(-1)[list(values)] = np.array(list(values.values()), np.int64).astype(dtype)
    sparse = packed(array)
    assert sparse is not None
    back = unpacked(sparse, array.dtype, array.shape)
    assert back.dtype == dtype
    np.testing.assert_array_equal(back, array)
    np.testing.assert_array_equal(results.decode(results.encode([array]))[0], array)


def test_minus_zero_and_nan_are_preserved() -> None:
    array = np.zeros(SIZE)
    array[5:7] = -0.0, np.nan
    assert results.decode(results.encode(array)).tobytes() == array.tobytes()


def test_sparse_counts_take_about_four_bytes_each() -> None:
    random = np.random.default_rng(0)
    counts = np.zeros((1 << 15, 2, 2), np.int64)
    np.add.at(counts, (random.integers(0, 1 << 15, 8192), random.integers(0, 2, 8192), 0), 256)
    assert len(results.encode([counts])) < 4 * np.count_nonzero(counts) + 200


@pytest.mark.parametrize("array", [np.ones(SIZE), np.zeros(9), np.zeros(SIZE, np.uint8)])
def test_dense_small_or_byte_arrays_are_not_packed(array: Any) -> None:
    assert packed(array) is None


@pytest.mark.parametrize(
    ("sparse", "shape"),
    [
        (Packed("|i1", "<f8", b"\1" * 10), (SIZE,)),
        (Packed("|i1", "<f8", bytes(9)), (SIZE,)),
        (Packed("|i1", "|i1", b"\x7f\x7f\1\1"), (SIZE // 64,)),
        (Packed("<f8", "<f8", bytes(16)), (SIZE,)),
        (Packed("|i1", "<f8", b""), (MOST_BYTES,)),
        (Packed("|i1", "<f8", b""), (-2, -4)),
        (Packed("|i1", "|O", bytes(9)), (SIZE,)),
        (Packed("|i1", "<i8", b"\1" * 9), (SIZE,)),
        (Packed("<i8", "<f8", np.array([*[2, LARGEST, LARGEST, 2], *[0] * 4]).tobytes()), (SIZE,)),
    ],
)
def test_malformed_packed_array_is_refused(sparse: Packed, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        unpacked(sparse, np.dtype(np.float64), shape)


@pytest.mark.parametrize("dtype", ["O", "<U8", "V0", "|i1", "<c8", [("a", "<i4")]])
def test_packed_array_of_non_numeric_dtype_is_refused(dtype: Any) -> None:
    with pytest.raises(ValueError, match="not gaps and values of an array of"):
        unpacked(Packed("|i1", "|i1", b""), np.dtype(dtype), (4,))
