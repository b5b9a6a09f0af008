"""Incremental saves of tables: each checkpoint restores its values, even without earlier ones."""

from __future__ import annotations

import itertools
import os
import pathlib
import shutil
import tempfile
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pstrain as ps
from pstrain.checkpoints import checkpoint as whole_checkpoint
from pstrain.errors import DataLossError, ResourceExhaustedError
from pstrain.kernels import marks
from pstrain.paramserver import checkpoint, increments, kept_rows, loading
from pstrain.paramserver import snapshot as module
from pstrain.paramserver.changed_rows import ChangedRows
from pstrain.paramserver.increments import Base
from pstrain.paramserver.saved import SavedShard
from pstrain.paramserver.shard import Shard
from pstrain.variables.scope import local_parameters
from tests.unit.pstrain.paramserver.shard_cases import ADAGRAD, ADAM, SGD, ids, make_spec, ones

ROWS = 700
NAME = "m/table"


@pytest.fixture(autouse=True)
def _small_tables_in_small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "SMALL_BYTES", 0)
    monkeypatch.setattr(module, "_BLOCK_BYTES", 512)
    monkeypatch.setattr(module, "_LIST_BYTES", 256)
    monkeypatch.setattr(kept_rows, "_CHUNK_BYTES", 512)


def change(shard: Shard, kind: str, chance: np.random.Generator) -> np.ndarray:
    """Changes the shard in the way that ``kind`` names; returns some of the changed rows or all."""
    rows = np.unique(chance.integers(shard.row_start, shard.row_stop, 5))
    gradient = chance.random((len(rows), shard.width), np.float32)
    match kind:
        case "adagrad":
            shard.update(ADAGRAD, rows, gradient)
        case "adam":
            shard.update(ADAM, rows, gradient)
        case "all":
            shard.update(SGD, None, ones(shard.row_stop - shard.row_start))
        case "assign":
            shard.assign("add", int(rows[0]), ones(1))
        case "scatter":
            shard.scatter("mul", rows, gradient)
        case "restore":
            shard.restore(int(rows[0]), [gradient[:1]], None)
        case "reset":
            shard.reset()
    return rows


def columns(shard: Shard) -> list[np.ndarray]:
    edges = np.cumsum([0, *shard.column_widths])
    return [shard.slab[:, a:b].copy() for a, b in itertools.pairwise(edges)]


class IncrementalSaves:
    """A program that saves a table of one shard from time to time."""

    def __init__(self, folder: str, shard: Shard) -> None:
        self.shard = shard
        self.base: Base | None = None
        self.saves: list[tuple[Base, list[np.ndarray]]] = []
        self._folder, self._since, self._count = folder, None, 0

    def save(self, *, is_committed: bool = True, meanwhile: Any = lambda: None) -> SavedShard:
        self._count += 1
        moment = f"moment {self._count}"
        folder = os.path.join(self._folder, f"ckpt-{self._count}")
        snapshot, expected = self.shard.snapshot(moment, self._since), columns(self.shard)
        meanwhile()
        saved = checkpoint.write(folder, [(NAME, snapshot)], "ps0", self.base)
        snapshot.close()
        if is_committed:
            self.base, self._since = Base(folder, saved.shards), moment
            self.saves.append((self.base, expected))
        return saved.shards[0]


def check(base: Base, expected: list[np.ndarray], cuts: tuple[int, ...]) -> None:
    """Checks that both ways to restore give the moment of the save, on shards cut at ``cuts``."""
    for is_fresh in (True, False):
        spec = make_spec(ROWS, 3, cuts=cuts, id=9)
        to = [(NAME, Shard(spec, index)) for index in range(len(spec.shards))]
        if is_fresh:
            assert loading.can_read_ahead(to, base.shards)
            ahead = loading.read_ahead(base.folder, to, base.shards)
        else:
            for _, shard in to:
                shard.assign("add", shard.row_start, ones(1))
            assert not loading.can_read_ahead(to, base.shards)
            loading.verify(base.folder, to, base.shards)
            ahead = loading.NOTHING
        loading.read_into(base.folder, to, base.shards, ahead)
        found = [np.concatenate(parts) for parts in zip(*(columns(s) for _, s in to), strict=True)]
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)


KINDS = ["adagrad", "adam", "all", "assign", "scatter", "restore", "reset"]
ACTIONS = ["save", "fail", *["adagrad", "assign", "scatter"] * 3, *KINDS]


@settings(max_examples=30, deadline=None)
@given(actions=st.lists(st.sampled_from(ACTIONS), max_size=25), cut=st.integers(1, ROWS - 1))
def test_each_incremental_save_restores_values_of_its_moment(actions: list[str], cut: int) -> None:
    chance = np.random.default_rng(len(actions))
    with tempfile.TemporaryDirectory() as folder:
        saving = IncrementalSaves(folder, Shard(make_spec(ROWS, 3), 0))
        changed = ids(0)

        def change_again() -> None:
            saving.shard.scatter("add", changed, ones(len(changed)))

        for action in [*actions, "save"]:
            if action in ("save", "fail"):
                saving.save(is_committed=action == "save", meanwhile=change_again)
            else:
                changed = change(saving.shard, action, chance)
        for base, expected in saving.saves:
            check(base, expected, (cut,))


def trained_saves(folder: pathlib.Path, saves: int = 1) -> IncrementalSaves:
    saving = IncrementalSaves(str(folder), Shard(make_spec(ROWS, 3), 0))
    saving.shard.update(ADAGRAD, None, ones(ROWS))
    for number in range(saves):
        saving.shard.update(ADAGRAD, ids(number, 300 + number), ones(2))
        saving.save()
    return saving


def test_incremental_save_writes_changed_rows_only(tmp_path: pathlib.Path) -> None:
    saving = trained_saves(tmp_path, saves=3)
    base = saving.base
    assert base is not None
    (part,) = base.shards
    whole, *changed = (tmp_path / "ckpt-3" / each.file for each in part.files)
    assert len(changed) == 2
    assert whole.samefile(tmp_path / "ckpt-1" / whole.name)
    assert max(file.stat().st_size for file in changed) < whole.stat().st_size / 4


def test_save_without_changes_writes_no_new_files(tmp_path: pathlib.Path) -> None:
    saving = trained_saves(tmp_path)
    first, again = saving.base, saving.save()
    assert first is not None
    assert again == first.shards[0]
    check(*saving.saves[-1], ())


def test_incremental_checkpoint_restores_after_earlier_ones_are_deleted(
    tmp_path: pathlib.Path,
) -> None:
    saving = trained_saves(tmp_path, saves=4)
    for number in (1, 2, 3):
        shutil.rmtree(tmp_path / f"ckpt-{number}")
    check(*saving.saves[-1], (200,))
    saving.shard.update(ADAGRAD, ids(5), ones(1))
    assert len(saving.save().changes) == 4


def test_uncommitted_save_is_not_used_as_base(tmp_path: pathlib.Path) -> None:
    saving = trained_saves(tmp_path)
    saving.shard.update(ADAGRAD, ids(17), ones(1))
    saving.save(is_committed=False)
    shutil.rmtree(tmp_path / "ckpt-2")
    saving.shard.update(ADAGRAD, ids(18), ones(1))
    assert len(saving.save().changes) == 1
    check(*saving.saves[-1], ())


@pytest.mark.parametrize(
    "why", ["much changed", "other slots", "no links", "odd links", "one is gone", "forgot"]
)
def test_all_rows_are_written_when_incremental_save_is_not_possible(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    saving = trained_saves(tmp_path, saves=2)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.arrow")}
    match why:
        case "much changed":
            saving.shard.update(ADAGRAD, np.arange(400), ones(400))
        case "other slots":
            saving.shard.update(ADAM, ids(1), ones(1))
        case "no links":
            link, made = os.link, iter([True, False])

            def refuse(source: str, target: str) -> None:
                if not next(made):
                    raise PermissionError("no links here")
                link(source, target)

            monkeypatch.setattr(os, "link", refuse)
        case "odd links":
            made_link = os.link

            def make_and_refuse(source: str, target: str) -> None:
                made_link(source, target)
                raise FileExistsError("what NFS says to a message that came twice")

            monkeypatch.setattr(os, "link", make_and_refuse)
        case "one is gone":
            next(path for path in before if "changes" in path.name).unlink()
        case "forgot":
            saving.shard = Shard(make_spec(ROWS, 3), 0)
            saving.shard.update(ADAGRAD, None, ones(ROWS))
    assert saving.save().changes == ()
    assert all(path.read_bytes() == data for path, data in before.items() if path.exists())
    check(*saving.saves[-1], ())


def test_existing_checkpoint_files_are_never_overwritten(tmp_path: pathlib.Path) -> None:
    saving = trained_saves(tmp_path)
    snapshot = saving.shard.snapshot()
    with pytest.raises(ResourceExhaustedError, match="exists"):
        checkpoint.write(str(tmp_path / "ckpt-1"), [(NAME, snapshot)], "ps0")
    check(*saving.saves[0], ())


def test_changed_rows_are_numbered_from_first_row_of_variable(tmp_path: pathlib.Path) -> None:
    spec = make_spec(ROWS, 3, cuts=(300,))
    saving = IncrementalSaves(str(tmp_path), Shard(spec, 1))
    saving.save()
    saving.shard.scatter("add", ids(350, 699), ones(2))
    assert len(saving.save().changes) == 1
    base, (expected,) = saving.saves[-1]
    restored = Shard(spec, 1)
    loading.read_into(base.folder, [(NAME, restored)], base.shards)
    np.testing.assert_array_equal(restored.slab, expected)


@pytest.mark.parametrize("swaps", [False, True])
def test_save_under_name_now_used_by_another_variable_is_not_incremental(
    tmp_path: pathlib.Path, swaps: bool
) -> None:
    class Model:
        variables: ClassVar[list[ps.Variable]]

    tables = [np.full((ROWS, 3), value, np.float32) for value in (1, 2)]
    with local_parameters():
        one, other = (ps.Variable(table, name="x") for table in tables)
        model = Model()
        model.variables = [one, other]  # type: ignore[misc]
        saved = ps.Checkpoint(model=model)
        first = saved.save(tmp_path, incremental=True)
        model.variables = [other, one] if swaps else [other]  # type: ignore[misc]
        second = saved.save(tmp_path, incremental=True)
        for path, values in ((first, (1, 2)), (second, (2, 1))):
            model.variables = [one, other] if swaps or path is first else [one]  # type: ignore[misc]
            saved.restore(path)
            for variable, value in zip(model.variables, values, strict=False):
                np.testing.assert_array_equal(variable.numpy(), value)


def test_base_of_save_is_newest_checkpoint_when_its_snapshot_was_taken(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with local_parameters():
        table = ps.Variable(np.zeros((ROWS, 3), np.float32), name="x")
        saved = ps.Checkpoint(table=table)
        saved.save(tmp_path, incremental=True)
        table.scatter_add(ps.IndexedSlices(ones(1), [6]))
        consistency = whole_checkpoint._consistency

        def save_another(groups: Any) -> Any:
            monkeypatch.setattr(whole_checkpoint, "_consistency", consistency)
            table.scatter_add(ps.IndexedSlices(ones(1), [7]))
            saved.save(tmp_path / "later", incremental=True)
            return consistency(groups)

        monkeypatch.setattr(whole_checkpoint, "_consistency", save_another)
        expected = table.numpy()
        path = saved.save(tmp_path, incremental=True)
        saved.restore(path)
        np.testing.assert_array_equal(table.numpy(), expected)


def test_all_rows_are_written_when_changes_exceed_half_of_table(tmp_path: pathlib.Path) -> None:
    saving = trained_saves(tmp_path)
    counts = []
    for number in range(12):
        rows = np.arange(60) + 10 * number
        saving.shard.update(ADAGRAD, rows, ones(60))
        counts.append(len(saving.save().changes))
    assert counts == [1, 2, 3, 0] * 3
    for base, expected in saving.saves:
        check(base, expected, (123,))


def test_damaged_change_file_is_detected_before_any_row_changes(tmp_path: pathlib.Path) -> None:
    base = trained_saves(tmp_path, saves=3).base
    assert base is not None
    file = tmp_path / "ckpt-3" / base.shards[0].changes[1].file
    data = bytearray(file.read_bytes())
    data[-200] ^= 1
    file.write_bytes(bytes(data))
    to = [(NAME, Shard(make_spec(ROWS, 3, id=9), 0))]
    initial = to[0][1].slab.copy()
    for attempt in (loading.read_ahead, loading.verify):
        with pytest.raises(DataLossError, match=file.name):
            attempt(base.folder, to, base.shards)
        np.testing.assert_array_equal(to[0][1].slab, initial)


def test_base_survives_manifest_json_and_refuses_paths_outside(tmp_path: pathlib.Path) -> None:
    base = trained_saves(tmp_path, saves=3).base
    assert base is not None
    assert Base.from_json(base.to_json()) == base
    assert Base.from_json(None) is None
    moved = base.shards[0].inside("values-1")
    assert {os.path.dirname(each.file) for each in moved.files} == {"values-1"}
    outside = moved.to_json()
    outside["changes"][0]["file"] = "../else"
    with pytest.raises(DataLossError, match=r"\.\./else"):
        SavedShard.from_json(outside)


@given(
    st.integers(0, 60),
    st.lists(st.tuples(st.booleans(), st.integers(0, 40), st.integers(0, 40)), max_size=8),
    st.integers(0, 40),
    st.integers(0, 40),
)
def test_marked_rows_equal_added_rows(
    row_start: int, added: list[tuple[bool, int, int]], one: int, other: int
) -> None:
    changed, expected = ChangedRows(row_start, 41), np.zeros(41, bool)
    changed.next_moment("a", None)
    for is_range, a, b in added:
        if is_range:
            changed.add_range(row_start + min(a, b), row_start + max(a, b))
            expected[min(a, b) : max(a, b)] = True
        else:
            changed.add_rows(np.array([row_start + a, row_start + b]))
            expected[[a, b]] = True
    marked = changed.next_moment("b", "a")
    assert marked is not None
    first, last = min(one, other), max(one, other)
    assert marked.count == expected.sum()
    assert (
        marked.between(first, last).tolist()
        == (np.flatnonzero(expected[first:last]) + first).tolist()
    )


def test_changes_since_recent_moments_are_known_and_older_moments_forgotten() -> None:
    changed = ChangedRows(0, 9)
    assert changed.next_moment("0", None) is None
    changed.add_rows(ids(1))
    assert changed.next_moment("1", "other") is None
    changed.add_rows(ids(2))
    since = changed.next_moment("2", "0")
    assert since is not None
    assert since.between(0, 9).tolist() == [1, 2]
    since = changed.next_moment("3", "1")
    assert since is not None
    assert since.between(0, 9).tolist() == [2]
    changed.add_rows(ids(3))
    assert changed.next_moment("3", "2") is not None, "a message that came again"
    since = changed.next_moment("3.5", "3")
    assert since is not None
    assert since.between(0, 9).tolist() == [3]
    assert changed.next_moment("4", "0") is None
    for number in range(20):
        changed.next_moment(str(5 + number), None)
    assert changed.next_moment("last", "4") is None
    assert len(changed._after) == 8


@given(st.lists(st.integers(0, 99)), st.integers(0, 99), st.integers(0, 99), st.integers(-50, 50))
def test_row_marks_match_reference_bit_array(
    rows: list[int], first: int, last: int, shift: int
) -> None:
    bits, twin = np.zeros(13, np.uint8), np.zeros(104, bool)
    marks.mark_rows(bits, shift, np.array(rows, np.int64) + shift)
    twin[rows] = True
    marks.mark_range(bits, first, last)
    twin[first:last] = True
    np.testing.assert_array_equal(bits, np.packbits(twin, bitorder="little"))
    assert marks.count_marked(bits) == twin.sum()


def test_change_files_per_shard_are_bounded(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(increments, "_MOST_FILES", 2)
    saving = trained_saves(tmp_path, saves=4)
    assert [len(base.shards[0].changes) for base, _ in saving.saves] == [0, 1, 2, 0]


def test_size_beyond_base_counts_rewritten_files_but_not_links(tmp_path: pathlib.Path) -> None:
    saving = IncrementalSaves(str(tmp_path), Shard(make_spec(ROWS, 3), 0))
    whole = saving.save()
    linked = saving.save()
    base, other = (each for each, _ in saving.saves)
    assert increments.size_beyond(other.folder, [linked], base) == 0
    saving.shard.update(SGD, ids(3), ones(1))
    changed = saving.save()
    assert increments.size_beyond(saving.saves[-1][0].folder, [changed], other) == sum(
        change.size_bytes for change in changed.changes
    )
    again = IncrementalSaves(str(tmp_path / "again"), Shard(make_spec(ROWS, 3), 0))
    assert again.save().checksum == whole.checksum
    folder = again.saves[0][0].folder
    assert increments.size_beyond(folder, [whole], base) == whole.size_bytes
    shutil.rmtree(base.folder)
    assert increments.size_beyond(folder, [whole], base) == whole.size_bytes
