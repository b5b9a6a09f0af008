"""TFRecord files as columns, against the bench's own writer and against bytes made by hand."""

from __future__ import annotations

import gzip
import pathlib
import struct
import zlib
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.data import CATEGORICAL, DENSE
from bench.peers.tfrecord import encode_examples, frame
from dataservice.dataset.dataset import Dataset
from dataservice.dataset.division.linearise import linearise
from dataservice.dataset.division.splits import plan_splits
from dataservice.dataset.node import UNKNOWN_CARDINALITY
from dataservice.dataset.plan import decode_plan, encode_plan
from dataservice.dataset.sources import tfrecord, tfrecord_parser
from dataservice.errors import InvalidArgumentError, SchemaError, SourceError
from tests.unit.dataservice.dataset.checkpoint_checker import check_positions, run, values


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def message(number: int, payload: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def integers(*listed: int, packed: bool = True) -> bytes:
    if packed:
        return message(3, message(1, b"".join(map(varint, listed))))
    return message(3, b"".join(varint(8) + varint(value) for value in listed))


def floats(*listed: float, packed: bool = True) -> bytes:
    if packed:
        return message(2, message(1, struct.pack(f"<{len(listed)}f", *listed)))
    return message(2, b"".join(varint(13) + struct.pack("<f", value) for value in listed))


def strings(*listed: bytes) -> bytes:
    return message(1, b"".join(message(1, value) for value in listed))


def example(**features: bytes) -> bytes:
    entries = [message(1, message(1, n.encode()) + message(2, f)) for n, f in features.items()]
    return message(1, b"".join(entries))


def write(path: pathlib.Path, records: list[bytes]) -> str:
    framed = [frame(np.frombuffer(r, np.uint8)[None, :]) if r else EMPTY for r in records]
    path.write_bytes(b"".join(framed))
    return str(path)


EMPTY = frame(np.zeros((1, 0), np.uint8))


def test_tfrecord_files_of_benchmark_are_read(tmp_path: pathlib.Path) -> None:
    rng = np.random.default_rng(1)
    dense = rng.random((300, 13), np.float32)
    ids = rng.integers(1 << 56, 1 << 62, (300, 26))
    labels = rng.integers(0, 2, 300).astype(np.float32)
    path = tmp_path / "a.tfrecord"
    path.write_bytes(frame(encode_examples(labels, dense, ids)))
    names = {"label": pa.float32()}
    record = example(label=floats(1.0))
    write(tmp_path / "b.tfrecord", [record] * 7)
    dataset = Dataset.from_tfrecord(
        str(path), names | {CATEGORICAL[25]: pa.int64(), DENSE[0]: pa.float64()}
    )
    table = dataset.to_table()
    assert np.array_equal(table["label"].to_numpy(), labels)
    assert np.array_equal(table[CATEGORICAL[25]].to_numpy(), ids[:, 25])
    assert np.array_equal(table[DENSE[0]].to_numpy(), dense[:, 0].astype(np.float64))
    both = Dataset.from_tfrecord(str(tmp_path), names)
    assert len(values(run(both), "label")) == 307
    assert both.cardinality() == UNKNOWN_CARDINALITY
    assert both.schema == pa.schema([("label", pa.float32())])
    linear = linearise(decode_plan(encode_plan(both.node)))
    assert [split.rows for split in plan_splits(linear)] == [None, None]


ROWS = st.fixed_dictionaries(
    {
        "i": st.none() | st.integers(-(2**63), 2**63 - 1),
        "f": st.none() | st.floats(width=32, allow_nan=False),
        "s": st.none() | st.text(max_size=9),
        "l": st.none() | st.lists(st.integers(-5, 300), max_size=5),
        "v": st.none() | st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=2),
        "b": st.none() | st.lists(st.binary(max_size=4), max_size=3),
        "z": st.none() | st.just([]),
    }
)
TYPES = {
    "i": pa.int64(),
    "f": pa.float32(),
    "s": pa.string(),
    "l": pa.list_(pa.int32()),
    "v": pa.list_(pa.float32(), 2),
    "b": pa.list_(pa.binary()),
    "z": pa.list_(pa.float32(), 0),
}


def encoded(row: dict[str, Any], packed: bool) -> bytes:
    made = {
        "i": lambda v: integers(v, packed=packed),
        "f": lambda v: floats(v, packed=packed),
        "s": lambda v: strings(v.encode()),
        "l": lambda v: integers(*v, packed=packed),
        "v": lambda v: floats(*v, packed=packed),
        "b": lambda v: strings(*v),
        "z": lambda _: floats(packed=packed),
    }
    given_ = {name: made[name](value) for name, value in row.items() if value is not None}
    order = sorted(given_, reverse=not packed)
    return example(other=integers(1, 2), **{name: given_[name] for name in order})


@settings(max_examples=60)
@given(st.lists(ROWS, min_size=1, max_size=12), st.booleans())
def test_encoded_examples_parse_to_same_values(rows: list[dict[str, Any]], packed: bool) -> None:
    data = [encoded(row, packed) for row in rows]
    joined = np.frombuffer(b"".join(data), np.uint8)
    ends = np.cumsum([len(record) for record in data])
    starts = ends - [len(record) for record in data]
    batch = tfrecord_parser.parse(joined, starts, ends, pa.schema(list(TYPES.items())), "here")
    batch.validate(full=True)
    assert batch.to_pylist() == rows


@given(st.binary(max_size=80), st.integers(0, 200), st.integers(0, 255))
def test_damaged_examples_are_refused_or_decoded(noise: bytes, at: int, flip: int) -> None:
    whole = encoded({"i": 5, "f": 1.5, "s": "ab", "l": [1, 300], "v": [1, 2], "b": [b"x"]}, True)
    damaged = bytearray(whole)
    damaged[at % len(whole)] ^= flip
    for record in (bytes(damaged), noise):
        data = np.frombuffer(record, np.uint8)
        bounds = np.array([0]), np.array([len(data)])
        try:
            batch = tfrecord_parser.parse(data, *bounds, pa.schema(list(TYPES.items())), "here")
        except (SchemaError, SourceError):
            continue
        batch.validate(full=True)


def test_tfrecord_blocks_and_compressed_files_resume_from_positions(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tfrecord, "_BLOCK_BYTES", 200)
    records = [example(x=integers(x), s=strings(b"y" * (x % 7))) for x in range(60)]
    records[30] = example(x=integers(30), s=strings(b"z" * 5_000))
    write(tmp_path / "a.tfrecord", records)
    (tmp_path / "b.tfrecord.gz").write_bytes(
        gzip.compress(pathlib.Path(write(tmp_path / "c", records[:5])).read_bytes())
    )
    dataset = Dataset.from_tfrecord(str(tmp_path / "*.tfrecord*"), {"x": pa.int16()})
    assert values(run(dataset), "x") == [*range(60), *range(5)]
    assert len(run(dataset)) > 10
    check_positions(dataset)
    check_positions(dataset.shuffle(9, seed=1).batch(7))
    raw = Dataset.from_tfrecord(str(tmp_path / "a.tfrecord"))
    assert values(run(raw), "record") == records
    assert raw.schema == pa.schema([("record", pa.binary())])
    zipped = tmp_path / "d"
    zipped.write_bytes((tmp_path / "b.tfrecord.gz").read_bytes())
    gz = Dataset.from_tfrecord(str(zipped), {"x": pa.int64()}, compression="GZIP")
    assert values(run(gz), "x") == [0, 1, 2, 3, 4]
    with pytest.raises(SourceError, match=r"record 0 at byte 0.*or state compression="):
        run(Dataset.from_tfrecord(str(zipped)))
    zipped.write_bytes(zlib.compress(gzip.decompress(zipped.read_bytes())))
    zlibbed = Dataset.from_tfrecord(str(zipped), {"x": pa.int64()}, compression="ZLIB")
    assert values(run(zlibbed), "x") == [0, 1, 2, 3, 4]


def test_empty_tfrecord_files_and_records_are_read(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.tfrecord").write_bytes(b"")
    dataset = Dataset.from_tfrecord(str(tmp_path / "a.tfrecord"), {"x": pa.int64()})
    assert run(dataset) == []
    write(tmp_path / "a.tfrecord", [b"", example(x=integers(1)), example(x=integers())])
    assert values(run(dataset), "x") == [None, 1, None]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c[:-3], r"bad\.tfrecord' is cut short: record 2"),
        (lambda c: c[:5], r"bad\.tfrecord' is cut short: record 0 at byte 0"),
        (lambda c: bytes([c[0] ^ 1]) + c[1:], "record 0 at byte 0: the checksum of its length"),
        (lambda c: c[:-6] + bytes([c[-6] ^ 1]) + c[-5:], "record 2 .*checksum of its data"),
        (lambda c: gzip.compress(c), "checksum of its length.*compressed"),
    ],
)
def test_damaged_tfrecord_file_is_refused_naming_record(
    tmp_path: pathlib.Path, change: Any, message: str
) -> None:
    path = tmp_path / "bad.tfrecord"
    write(path, [example(x=integers(x)) for x in range(3)])
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(SourceError, match=message):
        run(Dataset.from_tfrecord(str(path), {"x": pa.int64()}))


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        (pa.float32(), SchemaError, "feature 'x' of number 1 of them holds int64.*as float"),
        (pa.int8(), SchemaError, "do not fit int8"),
        (pa.list_(pa.int64(), 2), SchemaError, "has 1 values.*declare it as a list"),
    ],
)
def test_tfrecord_values_of_other_type_are_refused(
    tmp_path: pathlib.Path, kind: Any, error: type[Exception], message: str
) -> None:
    path = write(tmp_path / "a.tfrecord", [example(), example(x=integers(300))])
    with pytest.raises(error, match=message) as caught:
        run(Dataset.from_tfrecord(path, {"x": kind}))
    assert "a.tfrecord' records 0..1" in str(caught.value)


def test_records_that_are_no_examples_are_refused(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "a.tfrecord", [example(), b"\x0a\xff"])
    with pytest.raises(SourceError, match=r"number 1 of them is no.*features=None"):
        run(Dataset.from_tfrecord(path, {"x": pa.int64()}))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("p", {}), "features must be a dict of Arrow types"),
        (("p", {"x": pa.date32()}), r"features\['x'\] is date32"),
        (("p", {"x": 3}), "features must map names to Arrow types"),
        (("p", 3), "got 3"),
        (([], None), "empty list of paths"),
    ],
)
def test_invalid_tfrecord_arguments_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        Dataset.from_tfrecord(*arguments)
    with pytest.raises(InvalidArgumentError, match=r"compression must be one of.*got 'LZ4'"):
        Dataset.from_tfrecord("p", compression="LZ4")
