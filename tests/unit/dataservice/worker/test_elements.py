"""Headers of element frames: unpacking inverts packing, and damage is never read as data."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataservice.errors import DataLossError
from dataservice.wire.elements import (
    END,
    KEEPALIVE,
    Ask,
    FrameKind,
    Header,
    RowSpan,
    asks_of,
    pack_asks,
    pack_bookmark,
    pack_credit,
    pack_data,
    pack_missed,
    unpack,
)

WORD = st.integers(-(2**63), 2**63 - 1)
SPANS = st.lists(st.builds(RowSpan, WORD, WORD, WORD, WORD, st.booleans()), max_size=4)
U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)


@given(U32, U64, SPANS, st.booleans(), U32, st.booleans())
def test_unpacking_data_header_inverts_packing(
    rows: int,
    checksum: int,
    spans: list[RowSpan],
    divisible: bool,
    element_rows: int,
    more_follows: bool,
) -> None:
    cut = element_rows if divisible else 0
    packed = pack_data(
        rows, checksum, spans, divisible=divisible, element_rows=cut, more_follows=more_follows
    )
    assert unpack(packed) == Header(
        FrameKind.DATA,
        rows,
        checksum,
        tuple(spans),
        divisible,
        element_rows=cut,
        more_follows=more_follows,
    )


@pytest.mark.parametrize(
    ("rows", "element_rows", "elements"), [(9, 0, 1), (9, 3, 3), (10, 3, 4), (0, 0, 1), (2, 3, 1)]
)
def test_data_header_counts_elements_of_its_body(
    rows: int, element_rows: int, elements: int
) -> None:
    packed = pack_data(rows, 0, (), divisible=True, element_rows=element_rows)
    assert unpack(packed).elements == elements


def test_several_elements_in_indivisible_body_are_data_loss() -> None:
    with pytest.raises(DataLossError, match="several elements in a body that is a unit"):
        unpack(pack_data(6, 0, (), divisible=False, element_rows=3))


def test_headers_without_rows_unpack_to_their_kind() -> None:
    assert unpack(KEEPALIVE).kind is FrameKind.KEEPALIVE
    assert unpack(END).kind is FrameKind.END
    assert unpack(pack_credit(7)) == Header(FrameKind.CREDIT, 7)
    assert unpack(pack_missed(7)) == Header(FrameKind.MISSED, 7)
    assert unpack(pack_missed(1 << 40)).rows == (1 << 32) - 1, "more than the field can hold"


def test_asks_are_read_from_frames_of_their_kind_only() -> None:
    asks = [Ask(3, 5, 0), Ask(8, 9, 2)]
    assert asks_of(unpack(pack_asks(asks, 3))) == (3, asks)
    data = pack_data(2, 0, (RowSpan(0, 0, 3, 5),), divisible=True)
    for other in (unpack(data), Header(FrameKind.ASK)):
        with pytest.raises(DataLossError, match="a consumer sent a frame"):
            asks_of(other)


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"\x01",
        END[:-1],
        END + b"\x00",
        END + pack_data(0, 0, (RowSpan(0, 0, 0, 1),), divisible=True)[len(END) :],
        b"\x01" + END[1:],
        b"\x01" + pack_bookmark(b"[]")[1:],
        b"\x02\x09" + END[2:],
    ],
)
def test_damaged_header_is_data_loss(damaged: bytes) -> None:
    with pytest.raises(DataLossError, match="damaged element header"):
        unpack(damaged)


@given(st.binary(min_size=1), st.integers(0))
def test_damaged_bookmark_is_data_loss(encoded: bytes, place: int) -> None:
    packed = pack_bookmark(encoded)
    assert unpack(packed) == Header(FrameKind.BOOKMARK, notes=encoded)
    damaged = bytearray(packed)
    damaged[len(packed) - 1 - place % len(encoded)] ^= 1
    with pytest.raises(DataLossError, match="do not match their checksum"):
        unpack(bytes(damaged))
