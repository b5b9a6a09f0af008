"""The checksum of message bodies: fixed for all time, and sensitive to every bit."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataservice.runtime.checksum import checksum


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", 9729339755742947335),
        (b"a", 6619201266536839051),
        (b"12345678", 11251541253744260841),
        (bytes(range(256)), 8902234795081500165),
    ],
)
def test_checksums_of_known_bodies_never_change(body: bytes, expected: int) -> None:
    assert checksum(body) == expected


@given(st.binary(min_size=1, max_size=200), st.data())
def test_flipped_bit_changes_checksum(body: bytes, data: st.DataObject) -> None:
    bit = data.draw(st.integers(0, len(body) * 8 - 1))
    damaged = bytearray(body)
    damaged[bit // 8] ^= 1 << bit % 8
    assert checksum(bytes(damaged)) != checksum(body)


@given(st.binary(max_size=100))
def test_appended_zeros_change_checksum(body: bytes) -> None:
    assert len({checksum(body + bytes(count)) for count in range(20)}) == 20


@pytest.fixture
def words() -> Any:
    return np.random.default_rng(0).integers(0, 2**63, 64)


def test_swapped_words_change_checksum(words: Any) -> None:
    seen = {checksum(words)}
    for left, right in itertools.combinations(range(64), 2):
        swapped = words.copy()
        swapped[[left, right]] = swapped[[right, left]]
        seen.add(checksum(swapped))
    assert len(seen) == 1 + 64 * 63 // 2


def test_repeated_words_change_checksum(words: Any) -> None:
    """Words that are equal do not cancel each other, wherever they lie."""
    seen = {checksum(words)}
    for left, right in itertools.combinations(range(64), 2):
        for repeated in (1, 2):
            damaged = words.copy()
            damaged[[left, right]] = repeated
            seen.add(checksum(damaged))
    assert len(seen) == 1 + 64 * 63


@given(st.binary(max_size=100), st.integers(1, 7))
def test_unaligned_body_has_same_checksum(body: bytes, shift: int) -> None:
    shifted = pa.py_buffer(bytes(shift) + body).slice(shift)
    assert checksum(shifted) == checksum(body)
