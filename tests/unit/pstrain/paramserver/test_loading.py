"""Restores read the file of an unchanged table once; on failure the table keeps initial values."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import numpy as np
import pytest

from pstrain import initializers
from pstrain.errors import DataLossError, NotFoundError
from pstrain.paramserver import checkpoint, loading, output_file, safetensors
from pstrain.paramserver.input_file import InputFile
from pstrain.paramserver.messages import Call
from pstrain.paramserver.requests import answer
from pstrain.paramserver.saved import Saved, SavedShard
from pstrain.paramserver.shard import Shard
from pstrain.paramserver.store import Store
from pstrain.vocabulary import VariableSpec, spec_to_json
from tests.unit.pstrain.paramserver.shard_cases import ADAGRAD, ids, make_spec, ones

ROWS = 4000
NAME = "m/table"


@pytest.fixture(autouse=True)
def _tables_in_many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "SMALL_BYTES", 0)
    monkeypatch.setattr(output_file, "PIECE_BYTES", 8192)


def trained_shards(cuts: tuple[int, ...] = ()) -> list[Shard]:
    spec = make_spec(ROWS, 3, cuts=cuts)
    shards = [Shard(spec, index) for index in range(len(spec.shards))]
    for shard in shards:
        shard.update(ADAGRAD, None, ones(shard.row_stop - shard.row_start))
    return shards


def write_shards(folder: pathlib.Path, shards: list[Shard]) -> list[SavedShard]:
    return [
        checkpoint.write(str(folder), [(NAME, shard.snapshot())], f"ps{index}").shards[0]
        for index, shard in enumerate(shards)
    ]


def fresh_spec(cuts: tuple[int, ...] = ()) -> VariableSpec:
    return make_spec(ROWS, 3, cuts=cuts, id=9, initializer=initializers.normal(seed=5))


def targets(spec: VariableSpec) -> list[tuple[str, Shard]]:
    return [(NAME, Shard(spec, index)) for index in range(len(spec.shards))]


def flip(path: pathlib.Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("before", [(), (1000, 3999)])
@pytest.mark.parametrize("after", [(), (2500,)])
def test_staged_rows_are_restored_without_reading_files_again(
    tmp_path: pathlib.Path, before: tuple[int, ...], after: tuple[int, ...]
) -> None:
    shards = trained_shards(before)
    saved, to = write_shards(tmp_path, shards), targets(fresh_spec(after))
    assert loading.can_stage(to, saved)
    staged = loading.stage(str(tmp_path), to, saved)
    for part in saved:
        os.unlink(tmp_path / part.file)
    loading.read_into(str(tmp_path), to, saved, staged)
    expected = np.concatenate([shard.slab for shard in shards])
    np.testing.assert_array_equal(np.concatenate([shard.slab for _, shard in to]), expected)
    assert {shard.optimizer for _, shard in to} == {"adagrad"}


def test_staging_reads_each_byte_once(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (part,) = write_shards(tmp_path, trained_shards())
    read, count = os.preadv, 0

    def preadv(handle: int, into: Any, at: int) -> int:
        nonlocal count
        count += (done := read(handle, into, at))
        return done

    monkeypatch.setattr(os, "preadv", preadv)
    loading.stage(str(tmp_path), targets(fresh_spec()), [part])
    # Arrow reads the end of a file first, and may read its first bytes separately.
    assert part.size_bytes <= count <= part.size_bytes + 4 * output_file.PIECE_BYTES


def test_rows_that_changed_since_they_were_staged_are_read_again(tmp_path: pathlib.Path) -> None:
    shards = trained_shards()
    saved, to = write_shards(tmp_path, shards), targets(fresh_spec())
    staged = loading.stage(str(tmp_path), to, saved)
    to[0][1].update(ADAGRAD, ids(1, 7), ones(2))
    loading.read_into(str(tmp_path), to, saved, staged)
    np.testing.assert_array_equal(to[0][1].slab, shards[0].slab)


@pytest.mark.parametrize("position", [0, 9000, 60_000, -1])
def test_damaged_table_file_leaves_initial_values(tmp_path: pathlib.Path, position: int) -> None:
    saved = write_shards(tmp_path, trained_shards((1000,)))
    spec = fresh_spec((2500,))
    to, expected = targets(spec), [shard.slab.copy() for _, shard in targets(spec)]
    flip(tmp_path / saved[1].file, position)
    with pytest.raises(DataLossError, match=saved[1].file):
        loading.stage(str(tmp_path), to, saved)
    for (_, shard), initial in zip(to, expected, strict=True):
        np.testing.assert_array_equal(shard.slab, initial)
        assert shard.optimizer is None


@pytest.mark.parametrize("fault", ["missing", "short", "sums", "not sums", "other sums"])
def test_file_that_does_not_match_manifest_is_refused(tmp_path: pathlib.Path, fault: str) -> None:
    (part,) = write_shards(tmp_path, trained_shards())
    path = tmp_path / part.file
    match fault:
        case "missing":
            path.unlink()
        case "short":
            path.write_bytes(path.read_bytes()[:-1])
        case "sums":
            part = part._replace(sums=part.sums[16:])
        case "not sums":
            part = part._replace(sums="x" + part.sums[1:])
        case "other sums":
            part = part._replace(sums="0" * len(part.sums))
    error = NotFoundError if fault == "missing" else DataLossError
    with pytest.raises(error, match="checksums" if fault == "not sums" else part.file):
        loading.stage(str(tmp_path), targets(fresh_spec()), [part])


def test_only_initial_rows_and_files_with_checksums_are_staged(tmp_path: pathlib.Path) -> None:
    saved, to = write_shards(tmp_path, trained_shards()), targets(fresh_spec())
    assert not loading.can_stage(to, [part._replace(sums="") for part in saved])
    to[0][1].update(ADAGRAD, ids(1), ones(1))
    assert not loading.can_stage(to, saved)
    given = Shard(fresh_spec(), 0, np.zeros((ROWS, 3), np.float32))
    assert not loading.can_stage([(NAME, given)], saved)


def test_input_file_supports_seek_tell_and_read(tmp_path: pathlib.Path) -> None:
    (part,) = write_shards(tmp_path, trained_shards())
    data = (tmp_path / part.file).read_bytes()
    with InputFile(str(tmp_path), part) as file:
        for start, size in [(0, 8), (8190, 4), (5, 30_000), (len(data) - 3, 100), (0, -1)]:
            assert file.seek(start) == start
            assert file.read(size).to_pybytes() == data[start : start + size if size >= 0 else None]
        assert file.seek(-4, os.SEEK_END) == file.tell() == len(data) - 4
    assert file.closed


class Server:
    """A parameter server's store, asked as clients ask it."""

    def __init__(self, spec: VariableSpec) -> None:
        self.store = Store()
        self.ask({"kind": "create", "spec": spec_to_json(spec), "shards": [0]})

    def ask(self, header: dict[str, Any]) -> None:
        answer(self.store, Call(header, None))


def test_given_up_load_resets_shard_to_initial_values(tmp_path: pathlib.Path) -> None:
    spec, shards = fresh_spec(), trained_shards()
    saved = Saved(tuple(write_shards(tmp_path, shards)))
    header = {
        "directory": str(tmp_path),
        "variables": [[NAME, spec.id]],
        "saved": saved.to_json(),
        "load": "load-1",
    }
    server = Server(spec)
    (shard,), initial = server.store.shards(), Shard(spec, 0).slab
    server.ask({**header, "kind": "verify"})
    np.testing.assert_array_equal(shard.slab, shards[0].slab)
    server.ask({"kind": "give_up_load", "load": "load-2"})
    np.testing.assert_array_equal(shard.slab, shards[0].slab)
    server.ask({"kind": "give_up_load", "load": "load-1"})
    np.testing.assert_array_equal(shard.slab, initial)
    for kind in ("verify", "load", "load"):
        server.ask({**header, "kind": kind, "ledger": None})
    np.testing.assert_array_equal(shard.slab, shards[0].slab)


def test_large_bool_table_is_restored_and_its_damage_detected(tmp_path: pathlib.Path) -> None:
    spec = make_spec(1_200_000, 1, dtype="bool", trainable=False, initializer=initializers.zeros())
    shard = Shard(spec, 0, np.arange(spec.rows).reshape(-1, 1) % 3 == 0)
    (part,) = write_shards(tmp_path, [shard])
    assert part.file.endswith(checkpoint.DENSE)
    assert part.size_bytes > 1 << 20
    target = Shard(spec, 0)
    loading.verify(str(tmp_path), [(NAME, target)], [part])
    loading.read_into(str(tmp_path), [(NAME, target)], [part])
    np.testing.assert_array_equal(target.slab, shard.slab)
    flip(tmp_path / part.file, 1_000_000)
    with pytest.raises(DataLossError, match=part.file):
        loading.verify(str(tmp_path), [(NAME, target)], [part])


def test_file_of_small_variables_is_parsed_once(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "SMALL_BYTES", 1 << 20)
    made = [(f"m/{n}", Shard(make_spec(2, 3, id=n), 0)) for n in range(5)]
    for n, (_, shard) in enumerate(made):
        shard.assign("set", 0, np.full((2, 3), n, np.float32))
    saved = checkpoint.write(str(tmp_path), [(name, s.snapshot()) for name, s in made], "ps0")
    parsed: list[str] = []
    read = safetensors.read
    monkeypatch.setattr(safetensors, "read", lambda *file: [parsed.append(file[1]), read(*file)][1])
    found = [(name, Shard(make_spec(2, 3, id=9), 0)) for name, _ in made]
    loading.read_into(str(tmp_path), found, saved.shards)
    assert parsed == ["ps0-dense.safetensors"]
    for n, (_, shard) in enumerate(found):
        np.testing.assert_array_equal(shard.slab, np.full((2, 3), n, np.float32))
