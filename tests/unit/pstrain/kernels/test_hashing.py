"""Hash kernels: published test vectors, NumPy twins, nulls, and buckets that must never move."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstrain.kernels import hashing

NOTHING_NULL = np.empty(0, dtype=np.uint8)
MASK = (1 << 64) - 1


def _xxh64(text: bytes) -> int:
    data = np.frombuffer(text, dtype=np.uint8)
    return int(hashing.hash_bytes(data, 0, len(data)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", 0xEF46DB3751D8E999),
        (b"a", 0xD24EC4F1A98C6E5B),
        (b"abc", 0x44BC2CF5AD770999),
        (b"Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
    ],
)
def test_strings_hash_to_published_xxh64_values(text: bytes, expected: int) -> None:
    assert _xxh64(text) == expected


def test_integers_hash_to_published_splitmix64_sequence() -> None:
    golden = 0x9E3779B97F4A7C15
    states = [(1234567 + k * golden) & MASK for k in range(3)]
    found = [int(hashing.splitmix64(np.uint64(state))) for state in states]
    assert found == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def _xxh64_by_specification(text: bytes) -> int:
    """Computes XXH64 of fewer than 32 bytes in Python integers, straight from the specification."""
    p1, p2, p3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
    p4, p5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5

    def rotate(value: int, bits: int) -> int:
        return ((value << bits) | (value >> (64 - bits))) & MASK

    total = (p5 + len(text)) & MASK
    while len(text) >= 8:
        lane = rotate(int.from_bytes(text[:8], "little") * p2 & MASK, 31) * p1 & MASK
        total, text = (rotate(total ^ lane, 27) * p1 + p4) & MASK, text[8:]
    if len(text) >= 4:
        total ^= int.from_bytes(text[:4], "little") * p1 & MASK
        total, text = (rotate(total, 23) * p2 + p3) & MASK, text[4:]
    for byte in text:
        total = rotate(total ^ (byte * p5 & MASK), 11) * p1 & MASK
    total = (total ^ (total >> 33)) * p2 & MASK
    total = (total ^ (total >> 29)) * p3 & MASK
    return total ^ (total >> 32)


@given(st.binary(max_size=31))
def test_short_strings_hash_as_xxh64_specification(text: bytes) -> None:
    assert _xxh64(text) == _xxh64_by_specification(text)


def test_hash_buckets_of_known_values_are_stable() -> None:
    out = np.empty((3, 2), dtype=np.int64)
    values = np.array([0, 1, -1], dtype=np.int64)
    hashing.hash_integers(values, NOTHING_NULL, 0, 1000, 0, out, 0)
    text = np.frombuffer(b"aabc", dtype=np.uint8)
    offsets = np.array([0, 0, 1, 4], dtype=np.int32)
    hashing.hash_strings(offsets, text, NOTHING_NULL, 0, 1000, 0, out, 1)
    expected = [0xE220A8397B1DCDAF, 0x910A2DEC89025CC1, 0xE4D971771B652C20]
    assert out[:, 0].tolist() == [(h >> 32) * 1000 >> 32 for h in expected]
    hashes = [0xEF46DB3751D8E999, 0xD24EC4F1A98C6E5B, 0x44BC2CF5AD770999]
    assert out[:, 1].tolist() == [(h >> 32) * 1000 >> 32 for h in hashes]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_nulls_get_bucket_after_the_last(dtype: type) -> None:
    values: np.ndarray = np.array([5, 6, 7], dtype=dtype)
    valid = np.array([0b01011000], dtype=np.uint8)
    out = np.zeros((3, 3), dtype=np.int64)
    hashing.hash_integers(values, valid, 3, 100, 1000, out, 0)
    assert hashing.place_ids(values, valid, 3, 100, 1000, out, 1) == -1
    codes = np.arange(10, dtype=np.int64)[:, None]
    hashing.place_dictionary(values, codes, valid, 3, 1100, out, 2)
    assert (out[:2, 0] < 1100).all()
    assert out[2].tolist() == [1100, 1100, 1100]
    assert out[:2, 1].tolist() == [1005, 1006]
    assert out[:2, 2].tolist() == [5, 6]


def test_position_of_id_out_of_range_is_returned_unless_null() -> None:
    out = np.zeros((3, 1), dtype=np.int64)
    values = np.array([1, -4, 9], dtype=np.int64)
    assert hashing.place_ids(values, NOTHING_NULL, 0, 5, 0, out, 0) == 1
    only_the_second_is_null = np.array([0b101], dtype=np.uint8)
    assert hashing.place_ids(values, only_the_second_is_null, 0, 5, 0, out, 0) == 2
    assert hashing.place_ids(values, only_the_second_is_null, 0, 10, 0, out, 0) == -1


def test_dense_values_are_normalized_and_missing_values_become_mean() -> None:
    values = np.array([1.0, np.nan, 3.0, 4.0])
    valid = np.array([0b1011], dtype=np.uint8)
    out = np.full((4, 1), 9, dtype=np.float32)
    assert hashing.place_dense(values, valid, 0, 1.0, 0.5, out, 0) == -1
    assert out[:, 0].tolist() == [0.0, 0.0, 0.0, 1.5]


@pytest.mark.parametrize("value", [np.inf, -np.inf, 1e39])
def test_position_of_dense_value_beyond_float32_is_returned(value: float) -> None:
    out = np.empty((2, 1), dtype=np.float32)
    values = np.array([0.0, value])
    assert hashing.place_dense(values, NOTHING_NULL, 0, 0.0, 1.0, out, 0) == 1


def test_position_of_label_other_than_zero_and_one_is_returned() -> None:
    out = np.empty(3, dtype=np.float32)
    assert hashing.place_labels(np.array([0.0, 1.0, 0.0]), out) == -1
    assert out.tolist() == [0, 1, 0]
    assert hashing.place_labels(np.array([1, 0, 2]), out) == 2
    assert hashing.place_labels(np.array([1.0, np.nan, 0.0]), out) == 1
