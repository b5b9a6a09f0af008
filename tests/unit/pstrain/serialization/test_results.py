"""Results of closures as bytes: types and shapes are kept, malformed bytes are refused."""

from __future__ import annotations

import contextlib
import struct
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstrain.errors import InvalidArgumentError, InvalidTypeError
from pstrain.gradients.tape import GradientTape
from pstrain.serialization import results
from pstrain.variables.variable import Variable

plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
structures = st.recursive(
    plain | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner)
    ),
    max_leaves=12,
)


@given(structures)
def test_encoded_structures_are_decoded_unchanged(value: object) -> None:
    assert results.decode(results.encode(value)) == value


def test_arrays_scalars_and_batches_keep_type_and_shape() -> None:
    batch = pa.record_batch({"x": [1, 2], "s": ["a", None]})
    value = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "n": np.int16(4),
        "f": np.float64(2),
        "b": batch,
    }
    back = results.decode(results.encode(value))
    np.testing.assert_array_equal(back["a"], value["a"])
    assert back["a"].dtype == np.float32
    assert isinstance(back["n"], np.int16)
    assert isinstance(back["f"], np.float64)
    assert back["b"].equals(batch)


def test_arrays_of_many_zeros_are_compressed() -> None:
    counts = np.zeros((32_768, 2))
    counts[::1000] = 3.5
    noise = np.random.default_rng(0).random(10_000)
    data = results.encode({"counts": counts, "noise": noise})
    assert noise.nbytes < len(data) < noise.nbytes + counts.nbytes / 50
    back = results.decode(data)
    np.testing.assert_array_equal(back["counts"], counts)
    np.testing.assert_array_equal(back["noise"], noise)
    back["counts"] += 1  # the decoded array is writable


@pytest.mark.parametrize("size", [b"900000", b"100001", b"099999"])
def test_wrong_size_of_compressed_array_is_refused(size: bytes) -> None:
    data = results.encode(np.zeros(100_000, np.uint8))
    assert b"100000" in data
    with pytest.raises(InvalidArgumentError):
        results.decode(data.replace(b"100000", size))


@pytest.mark.parametrize("at", [0, 4, -1])
def test_damaged_compressed_array_is_refused(at: int) -> None:
    data = bytearray(results.encode(np.zeros(100_000, np.uint8)))
    data[data.index(b"\x04\x22\x4d\x18") + at if at >= 0 else -1] ^= 0xFF
    with pytest.raises(InvalidArgumentError):
        results.decode(bytes(data))


def test_objects_with_array_method_are_encoded_as_arrays() -> None:
    class Loss:
        def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
            return np.array([1.5])

    np.testing.assert_array_equal(results.decode(results.encode([Loss(), b"x"]))[0], [1.5])


def test_gradient_is_encoded_as_its_array() -> None:
    weights = Variable(np.array([1.0, 2.0], np.float32))
    table = Variable(np.ones((3, 2), np.float32))
    with GradientTape() as tape:
        loss = np.sum(weights * weights) + np.sum(table.embedding_lookup([2, 2]))
    of_weights, of_rows = tape.gradient(loss, [weights, table])
    np.testing.assert_array_equal(results.decode(results.encode([of_weights]))[0], [2.0, 4.0])
    with pytest.raises(InvalidTypeError, match=r"1 of its rows.*take its values and indices"):
        results.encode(of_rows)
    values = results.decode(results.encode((of_rows.values, of_rows.indices)))
    np.testing.assert_array_equal(values[0], [[2.0, 2.0]])
    np.testing.assert_array_equal(values[1], [2])


def test_unsupported_result_type_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgumentError, match="can't return a set"):
        results.encode({"x": {1, 2}})


def test_data_frame_result_is_refused_with_remedy() -> None:
    frame = pytest.importorskip("pandas").DataFrame({"a": [1, 2]})
    with pytest.raises(InvalidArgumentError, match=r"DataFrame.*pyarrow\.Table\.from_pandas"):
        results.encode([frame])
    np.testing.assert_array_equal(results.decode(results.encode(frame["a"])), [1, 2])


def test_arrow_tables_are_decoded_as_tables() -> None:
    table = pa.table({"x": [1, 2, 3]})
    assert results.decode(results.encode({"t": table}))["t"].equals(table)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_at_most_invalid_argument(data: bytes) -> None:
    with contextlib.suppress(InvalidArgumentError):
        results.decode(data)


def message(tree: bytes, *buffers: bytes) -> bytes:
    parts = (tree, *buffers)
    sizes = (struct.pack("<I", size) for size in (len(parts), *map(len, parts)))
    return b"".join((*sizes, *parts))


def stream_without_batches() -> bytes:
    sink = pa.BufferOutputStream()
    pa.ipc.new_stream(sink, pa.schema([("x", pa.int64())])).close()
    return bytes(sink.getvalue().to_pybytes())


@pytest.mark.parametrize(
    ("tree", "buffer"),
    [
        (b"[" * 100_000 + b"]" * 100_000, b""),
        (b'["array", 0, "i8,(", [1]]', b""),
        (b'["array", 0, "<i8", [10000000000000000000000]]', bytes(9)),
        (b'["tuple", ["batch", 0]]', stream_without_batches()),
        (b'["list", ["bytes", 0], ["bytes", 0]]', b"x"),
        (b'["bytes", -1]', b"x"),
        (b'["sparse", 0, "<U8", [4], "|i1", "|i1"]', b""),
    ],
)
def test_malformed_result_tree_is_refused(tree: bytes, buffer: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match="not an encoded result"):
        results.decode(message(tree, buffer))


def test_implausible_decompressed_size_is_refused_before_allocation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size = 1 << 50
    data = pa.compress(bytes(100), codec="lz4", asbytes=True)
    monkeypatch.setattr(pa, "input_stream", None)
    with pytest.raises(InvalidArgumentError, match=f"{len(data)} bytes cannot be {size}"):
        results.decode(message(b'["array", 0, "|u1", [%d]]' % size, data))


class Losses(NamedTuple):
    train: float
    test: Any = None

    class Inner(NamedTuple):
        x: int


def test_named_tuples_keep_class_and_fields() -> None:
    value = {"a": Losses(1.5, np.float32(2)), "b": [Losses.Inner(3)]}
    back = results.decode(results.encode(value))
    assert back == value
    assert type(back["a"]) is Losses
    assert back["a"].test.dtype == np.float32
    assert type(back["b"][0]) is Losses.Inner


def test_named_tuple_of_unimportable_class_keeps_its_fields() -> None:
    def local() -> tuple[Any, ...]:
        class Step(NamedTuple):
            loss: float
            rows: int

        return Step(0.5, 32)

    back = results.decode(results.encode(local()))
    assert back == (0.5, 32)
    assert (type(back).__name__, back.loss, back.rows) == ("Step", 0.5, 32)


def _holds_itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.array(["a", None], object), "an array of dtype object"),
        (np.zeros(2, [("a", "i4")]), r"an array of dtype \[\('a', '<i4'\)\]: .* for each field"),
        (np.ma.array([1, 2], mask=[0, 1]), "masked array, whose mask would be lost"),
        (_holds_itself(), "a list that holds itself"),
    ],
)
def test_values_that_encoding_would_change_are_refused(value: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        results.encode(value)
