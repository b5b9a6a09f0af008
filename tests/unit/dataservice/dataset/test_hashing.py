"""The bucket hash: known vectors, an independent implementation, all types, slices and nulls."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataservice.dataset.hashing import hash_buckets, mix
from dataservice.errors import SchemaError
from dataservice.sharding import MASK64, splitmix64

EVERYTHING = 2**63 - 1


def reference(value: int | str | bytes) -> int:
    """Computes the hash of one value as it is defined."""
    if isinstance(value, int):
        return splitmix64(value & MASK64)
    data = value.encode() if isinstance(value, str) else value
    hashed = splitmix64(len(data))
    for first in range(0, len(data), 8):
        word = int.from_bytes(data[first : first + 8].ljust(8, b"\0"), "little")
        hashed = splitmix64(hashed ^ word)
    return hashed


def test_splitmix64_matches_published_vectors() -> None:
    assert splitmix64(0) == 0xE220A8397B1DCDAF
    assert splitmix64(1234567) == 6457827717110365317
    assert mix(np.array([0, 1234567], np.uint64)).tolist() == [splitmix64(0), splitmix64(1234567)]


def test_hash_buckets_of_known_values_never_change() -> None:
    integers = hash_buckets(pa.array([0, 1, -1, 2**40]), 1_000_000)
    strings = hash_buckets(pa.array(["", "a", "AA", "New York", "a longer key"]), 1_000_000)
    assert integers.to_pylist() == [reference(v) % 1_000_000 for v in (0, 1, -1, 2**40)]
    assert integers.to_pylist()[:2] == [16294208416658607535 % 10**6, 10451216379200822465 % 10**6]
    keys = ("", "a", "AA", "New York", "a longer key")
    assert strings.to_pylist() == [reference(key) % 1_000_000 for key in keys]


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64", "uint8", "uint64", "bool"])
def test_every_integer_type_hashes_by_value(kind: str) -> None:
    array = pa.array([0, 1], "int64").cast(kind)
    assert hash_buckets(array, 997).to_pylist() == [splitmix64(0) % 997, splitmix64(1) % 997]


def test_largest_unsigned_integer_hashes_by_value() -> None:
    assert hash_buckets(pa.array([MASK64], pa.uint64()), 10).to_pylist() == [
        splitmix64(MASK64) % 10
    ]


@given(st.lists(st.one_of(st.none(), st.text(max_size=40)), max_size=20), st.integers(0, 5))
def test_hash_of_strings_matches_definition(keys: list[str | None], skip: int) -> None:
    for kind in (pa.string(), pa.large_string()):
        array = pa.array(keys, kind).slice(min(skip, len(keys)))
        wanted = [None if key is None else reference(key) % 1009 for key in keys[skip:]]
        assert hash_buckets(array, 1009).to_pylist() == wanted


def test_binary_and_dictionary_columns_hash_by_value() -> None:
    assert hash_buckets(pa.array([b"ab"]), 1009).to_pylist() == [reference("ab") % 1009]
    encoded = pa.array(["b", "a", None, "b"]).dictionary_encode()
    assert hash_buckets(encoded, 1009).equals(hash_buckets(pa.array(["b", "a", None, "b"]), 1009))


def test_hash_keeps_nulls_and_empty_columns() -> None:
    assert hash_buckets(pa.array([None, 7], pa.int64()), 3).to_pylist() == [None, splitmix64(7) % 3]
    sliced = pa.array([9, None, 7, None, 8]).slice(1)
    wanted = [None, splitmix64(7) % 3, None, splitmix64(8) % 3]
    assert hash_buckets(sliced, 3).to_pylist() == wanted
    assert hash_buckets(pa.array([], pa.string()), 3).to_pylist() == []


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1), st.integers(1, EVERYTHING))
def test_hash_bucket_is_within_range(keys: list[int], buckets: int) -> None:
    for bucket in hash_buckets(pa.array(keys, pa.int64()), buckets).to_pylist():
        assert 0 <= bucket < buckets


def test_hash_buckets_are_filled_evenly() -> None:
    counts = np.bincount(hash_buckets(pa.array(range(100_000)), 10).to_numpy(), minlength=10)
    assert counts.min() > 9_500
    assert counts.max() < 10_500


def test_hash_of_unsupported_type_is_refused() -> None:
    with pytest.raises(SchemaError, match="double"):
        hash_buckets(pa.array([1.5]), 10)
