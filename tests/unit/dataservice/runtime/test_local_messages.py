"""Packets between processes of a host: unpacking inverts packing, and damage is noticed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataservice.errors import DataLossError
from dataservice.runtime.exchanges.local_messages import Packet, pack, unpack
from dataservice.runtime.exchanges.message import Kind


@st.composite
def packets(draw: st.DrawFn) -> Packet:
    kind = draw(st.sampled_from(Kind))
    header = draw(st.binary(max_size=100))
    segment = draw(st.integers(0, (1 << 32) - 1))
    released = draw(st.none() | st.integers(0, (1 << 32) - 1))
    if draw(st.booleans()):
        size = draw(st.none() | st.integers(0, (1 << 64) - 1))
        text = header if draw(st.booleans()) else b""
        offset, is_new = draw(st.integers(0, (1 << 64) - 1)), draw(st.booleans())
        return Packet(kind, len(header), size, text, segment, offset, is_new, True, released)
    body = draw(st.none() | st.binary(max_size=100))
    size = None if body is None else len(body)
    return Packet(kind, len(header), size, header + (body or b""), segment, released=released)


@given(packets())
def test_unpack_inverts_pack(packet: Packet) -> None:
    assert unpack(pack(*packet)) == packet
    assert unpack(memoryview(pack(*packet))) == packet


@given(st.binary(max_size=64))
def test_arbitrary_bytes_unpack_to_packet_or_data_loss(data: bytes) -> None:
    try:
        packet = unpack(data)
    except DataLossError:
        return
    assert len(pack(*packet)) == len(data)


@given(packets(), st.integers(1, 20))
def test_truncated_packet_is_data_loss(packet: Packet, missing: int) -> None:
    data = pack(*packet)
    if packet.in_segment and len(packet.text) == missing:
        return  # what is left is a valid packet whose header lies in the segment
    with pytest.raises(DataLossError):
        unpack(data[:-missing])


def test_packet_of_other_version_is_refused() -> None:
    data = bytearray(pack(Kind.MESSAGE))
    data[0] += 1
    with pytest.raises(DataLossError, match="version 3"):
        unpack(bytes(data))
