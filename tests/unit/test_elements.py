"""Headers of element frames: what is packed is what is read, and damage is never read as data."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataservice.errors import DataLossError
from dataservice.wire.elements import (
    END,
    KEEPALIVE,
    FrameKind,
    Header,
    RowSpan,
    pack_credit,
    pack_data,
    unpack,
)

WORD = st.integers(-(2**63), 2**63 - 1)
SPANS = st.lists(st.builds(RowSpan, WORD, WORD, WORD, WORD, st.booleans()), max_size=4)
U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)


@given(U32, U64, SPANS, st.booleans())
def test_a_header_comes_back_as_it_was(
    rows: int, checksum: int, spans: list[RowSpan], divisible: bool
) -> None:
    packed = pack_data(rows, checksum, spans, divisible=divisible)
    assert unpack(packed) == Header(FrameKind.DATA, rows, checksum, tuple(spans), divisible)


def test_frames_without_rows() -> None:
    assert unpack(KEEPALIVE).kind is FrameKind.KEEPALIVE
    assert unpack(END).kind is FrameKind.END
    assert unpack(pack_credit(7)) == Header(FrameKind.CREDIT, 7)


@pytest.mark.parametrize(
    "damaged",
    [b"", b"\x01", END[:-1], END + b"\x00", b"\x02" + END[1:], b"\x01\x09" + END[2:]],
)
def test_damage_is_an_error(damaged: bytes) -> None:
    with pytest.raises(DataLossError, match="damaged element header"):
        unpack(damaged)
