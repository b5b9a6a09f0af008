"""Shards as files: alone or combined, restored onto any cut, damage found before any change."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pstrain import initializers
from pstrain.errors import (
    DataLossError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
)
from pstrain.paramserver import checkpoint, output_file, safetensors
from pstrain.paramserver.loading import read_into, verify
from pstrain.paramserver.saved import Saved, SavedShard
from pstrain.paramserver.shard import Shard
from pstrain.vocabulary import OptimizerSpec
from tests.unit.pstrain.paramserver.shard_cases import (
    ADAGRAD,
    ADAM,
    ids,
    make_spec,
    ones,
    values_of,
)


@pytest.fixture(params=["tables", "dense"], autouse=True)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "tables":
        monkeypatch.setattr(checkpoint, "SMALL_BYTES", 0)
    return str(request.param)


def written(folder: pathlib.Path, shards: list[Shard]) -> list[SavedShard]:
    """Writes each shard as a server of its own would."""
    return [
        checkpoint.write(str(folder), [("m/table", shard.snapshot())], f"ps{index}").shards[0]
        for index, shard in enumerate(shards)
    ]


def _trained(cuts: tuple[int, ...], rule: OptimizerSpec = ADAGRAD, width: int = 3) -> list[Shard]:
    spec = make_spec(50, width, cuts=cuts)
    shards = [Shard(spec, index) for index in range(len(spec.shards))]
    for shard in shards:
        rows = np.arange(shard.row_start, shard.row_stop, dtype=np.float32)
        gradient = np.ascontiguousarray(np.broadcast_to(rows[:, None], (len(rows), width)))
        shard.update(rule, None, gradient)
    return shards


@pytest.mark.parametrize("before", [(), (20,), (10, 11, 40)])
@pytest.mark.parametrize("after", [(), (25,), (5, 30)])
def test_shards_restore_onto_any_other_partition(
    tmp_path: pathlib.Path, before: tuple[int, ...], after: tuple[int, ...]
) -> None:
    shards = _trained(before)
    saved = written(tmp_path, shards)
    spec = make_spec(50, 3, cuts=after, id=9, initializer=initializers.zeros())
    targets = [("m/table", Shard(spec, index)) for index in range(len(spec.shards))]
    verify(str(tmp_path), targets, saved)
    read_into(str(tmp_path), targets, saved)
    expected = np.concatenate([shard.slab for shard in shards])
    np.testing.assert_array_equal(np.concatenate([t.slab for _, t in targets]), expected)
    assert {t.optimizer for _, t in targets} == {"adagrad"}


@pytest.mark.parametrize("width", [1, 3])
def test_row_slots_are_restored(tmp_path: pathlib.Path, width: int) -> None:
    (shard,) = _trained((), ADAM, width)
    (saved,) = written(tmp_path, [shard])
    assert saved.columns == ["values", "slot_0", "slot_1", "row_slot_0"]
    target = Shard(make_spec(50, width, initializer=initializers.zeros()), 0)
    read_into(str(tmp_path), [("m/table", target)], [saved])
    np.testing.assert_array_equal(target.slab, shard.slab)
    assert (target.slots, target.row_slots) == (2, 1)
    for one in (shard, target):
        one.update(ADAM, ids(1, 7), ones(2, width))
    np.testing.assert_array_equal(target.slab, shard.slab)


def test_tables_are_plain_arrow_and_small_variables_plain_safetensors(
    tmp_path: pathlib.Path, form: str
) -> None:
    (shard,) = _trained(())
    (saved,) = written(tmp_path, [shard])
    if form == "tables":
        with pa.ipc.open_file(str(tmp_path / saved.file)) as reader:
            table = reader.read_all()
            assert reader.schema.metadata[b"variable"] == b"m/table"
        assert table.column_names == ["values", "slot_0"]
        np.testing.assert_array_equal(table["values"].to_pylist()[49], values_of(shard)[49])
        return
    package = pytest.importorskip("safetensors.numpy")
    tensors = package.load_file(str(tmp_path / saved.file))
    assert sorted(tensors) == ["m/table", "m/table::slot_0"]
    np.testing.assert_array_equal(tensors["m/table"], values_of(shard))


def test_files_written_by_safetensors_package_are_read(tmp_path: pathlib.Path) -> None:
    package = pytest.importorskip("safetensors.numpy")
    tensors = {"a": np.arange(6, dtype=np.int64).reshape(2, 3), "b": np.float16(2), "c": ones(0)}
    arrays = {name: np.asarray(value) for name, value in tensors.items()}
    package.save_file(arrays, str(tmp_path / "x"), {"format": "np"})
    found = safetensors.read(np.fromfile(tmp_path / "x", np.uint8), "x")
    for name, value in arrays.items():
        assert found[name].dtype == value.dtype
        np.testing.assert_array_equal(found[name], value)


_HEADER = safetensors.header([safetensors.Tensor("a", "float32", (2,))], {})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 20,
        _HEADER + b"1234",
        (2).to_bytes(8, "little") + b"[]",
        (5).to_bytes(8, "little") + b"{\xff\xff}}",
        _HEADER.replace(b"F32", b"XYZ") + b"12345678",
        _HEADER.replace(b"[2]", b"[3]") + b"12345678",
    ],
)
def test_damaged_safetensors_file_is_refused(data: bytes) -> None:
    with pytest.raises(DataLossError, match="x is not a safetensors"):
        safetensors.read(np.frombuffer(data, np.uint8), "x")


@pytest.mark.parametrize(
    "file", ["../x", "a/../../x", "/etc/passwd", "", "a//b", "./a", "..", "a\\b", None, 3, "a\0"]
)
def test_file_paths_outside_checkpoint_folder_are_refused(file: Any) -> None:
    part = SavedShard("a", (3, 2), "float32", 0, 3, "f", 10, 11, None)
    value = {"shards": [{**part.to_json(), "file": file}]}
    with pytest.raises(DataLossError, match="not a path inside"):
        Saved.from_json(json.loads(json.dumps(value)))


@pytest.mark.parametrize("value", [{}, {"shards": [{}]}, {"shards": [[1]]}, {"shards": 3}])
def test_malformed_manifest_is_refused(value: Any) -> None:
    with pytest.raises(DataLossError, match="damaged"):
        Saved.from_json(value)


def test_full_disk_raises_resource_exhausted(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shard,) = _trained(())
    monkeypatch.setattr(output_file, "_open", lambda _path: os.open("/dev/full", os.O_WRONLY))
    with pytest.raises(ResourceExhaustedError, match="No space left"):
        written(tmp_path, [shard])


def test_saved_survives_json() -> None:
    part = SavedShard("a", (3, 2), "float32", 0, 3, "f", 10, 11, None)
    saved = Saved((part,), "s", {"0": {"low_water": 1, "applied": []}})
    assert Saved.from_json(saved.to_json()) == saved


def _verify(tmp_path: pathlib.Path, saved: list[SavedShard], **changed: Any) -> None:
    spec = make_spec(**{"rows": 50, **changed})
    verify(str(tmp_path), [("m/table", Shard(spec, 0))], saved)


def test_mismatched_variable_error_names_both_shapes_or_dtypes(tmp_path: pathlib.Path) -> None:
    saved = written(tmp_path, _trained(()))
    with pytest.raises(InvalidArgumentError, match=r"'m/table'.*\(51, 3\).*\(50, 3\)"):
        _verify(tmp_path, saved, rows=51)
    with pytest.raises(InvalidArgumentError, match=r"float64.*float32"):
        _verify(tmp_path, saved, dtype="float64", initializer=initializers.zeros())
    with pytest.raises(NotFoundError, match="m/table"):
        _verify(tmp_path, [part._replace(name="m/other") for part in saved])


def test_missing_rows_and_files_are_detected(tmp_path: pathlib.Path) -> None:
    saved = written(tmp_path, _trained((20, 30)))
    _verify(tmp_path, saved)
    with pytest.raises(DataLossError, match="rows from 20"):
        _verify(tmp_path, [saved[0], saved[2]])
    (tmp_path / saved[1].file).unlink()
    with pytest.raises(NotFoundError, match=saved[1].file):
        _verify(tmp_path, saved)


@pytest.mark.parametrize("position", [0, 700, -1])
def test_flipped_bit_is_detected(tmp_path: pathlib.Path, position: int) -> None:
    saved = written(tmp_path, _trained(()))
    path = tmp_path / saved[0].file
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(DataLossError, match=saved[0].file):
        _verify(tmp_path, saved)
