"""Bodies of messages: written late, joined, and read back."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from pstrain.errors import DataLossError
from pstrain.paramserver.messages import LateBody, body_arrays

IDS = np.arange(5, dtype=np.int64)
ROWS = np.arange(30, dtype=np.float32).reshape(5, 6)
PARTS = [("int64", (5,)), ("float32", (5, 6))]


def test_arrays_of_body_are_read_only() -> None:
    body = LateBody.of([IDS, ROWS])
    assert body is not None
    ids, rows = body_arrays(body.to_buffer(), PARTS)
    np.testing.assert_array_equal(ids, IDS)
    np.testing.assert_array_equal(rows, ROWS)
    assert not (ids.flags.writeable)
    assert not (rows.flags.writeable)


def test_no_arrays_make_no_body() -> None:
    assert LateBody.of([]) is None


def test_joined_bodies_have_layout_of_single_body() -> None:
    first, second = LateBody.of([IDS, ROWS]), LateBody.of([ROWS])
    assert first is not None
    assert second is not None
    joined = LateBody.joined([first, second])
    plain = LateBody.of([IDS, ROWS, ROWS])
    assert plain is not None
    assert joined.room == plain.room
    arrays = body_arrays(joined.to_buffer(), [*PARTS, PARTS[1]])
    for found, expected in zip(arrays, (IDS, ROWS, ROWS), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_body_is_written_into_given_buffer() -> None:
    body = LateBody.of([IDS, ROWS])
    assert body is not None
    target = pa.py_buffer(np.zeros(body.room + 64, np.uint8))
    first, size = body.write_into(target)
    ids, rows = body_arrays(target.slice(first, size), PARTS)
    np.testing.assert_array_equal(ids, IDS)
    np.testing.assert_array_equal(rows, ROWS)


def test_large_bodies_in_use_are_not_overwritten() -> None:
    made = []
    for number in range(3):
        body = LateBody.of([np.full((40_000,), number, np.float32)])
        assert body is not None
        made.append(body.to_buffer())
    for number, buffer in enumerate(made):
        (values,) = body_arrays(buffer, [("float32", (40_000,))])
        assert (values == number).all()


def test_body_of_wrong_size_is_refused() -> None:
    with pytest.raises(DataLossError, match="expected"):
        body_arrays(pa.py_buffer(b"12345678"), PARTS)
