"""Restored shards get all slots of the rule even if only some of the saved shards have slots."""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Sequence

import numpy as np
import pytest

from pstrain.paramserver import checkpoint, loading
from pstrain.paramserver.increments import Base
from pstrain.paramserver.saved import SavedShard
from pstrain.paramserver.shard import Shard
from pstrain.vocabulary import OptimizerSpec
from tests.unit.pstrain.paramserver.shard_cases import ADAGRAD, ADAM, ids, make_spec, ones

ROWS = 700
NAME = "m/table"
CUTS = (100, 300)
RULES = {
    "adagrad": ADAGRAD,
    "adam": ADAM,
    "rowwise": OptimizerSpec(
        name="rowwise_adagrad",
        learning_rate=0.1,
        parameters={"epsilon": 1e-7},
        row_slots=(0.25,),
    ),
}
Saved = Sequence[SavedShard]


def shards_of(cuts: tuple[int, ...]) -> list[Shard]:
    spec = make_spec(ROWS, 3, cuts=cuts)
    return [Shard(spec, index) for index in range(len(spec.shards))]


def train(shards: Sequence[Shard], rule: OptimizerSpec, rows: np.ndarray) -> None:
    """Applies a step as trainers do: only to shards with rows of the step."""
    for shard in shards:
        mine = rows[(rows >= shard.row_start) & (rows < shard.row_stop)]
        if len(mine):
            shard.update(rule, mine, ones(len(mine)))


def save(folder: pathlib.Path, shards: Sequence[Shard], base: Base | None = None) -> Base:
    moments = (None, None) if base is None else (str(folder), base.folder)
    snapshots = [(NAME, shard.snapshot(*moments)) for shard in shards]
    saved = checkpoint.write(str(folder), snapshots, "ps0", base)
    for _, snapshot in snapshots:
        snapshot.close()
    return Base(str(folder), saved.shards)


def load(base: Base, shards: Sequence[Shard]) -> None:
    """Restores shards by way of JSON, like a manifest, and read ahead where possible."""
    saved = [SavedShard.from_json(part.to_json()) for part in base.shards]
    targets = [(NAME, shard) for shard in shards]
    if loading.can_read_ahead(targets, saved):
        ahead = loading.read_ahead(base.folder, targets, saved)
    else:
        loading.verify(base.folder, targets, saved)
        ahead = loading.NOTHING
    loading.read_into(base.folder, targets, saved, ahead)


def values(shards: Sequence[Shard]) -> np.ndarray:
    return np.concatenate([shard.slab[:, : shard.width] for shard in shards])


@pytest.mark.parametrize("small_bytes", [0, 4000, 1 << 20])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("trained", [(5,), (150, 250), (650,), (5, 650)])
@pytest.mark.parametrize("after", [(), (50,), (200, 500), CUTS])
@pytest.mark.parametrize("is_fresh", [True, False])
def test_training_continues_identically_after_restore_of_shards_without_slots(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    small_bytes: int,
    rule: OptimizerSpec,
    trained: tuple[int, ...],
    after: tuple[int, ...],
    is_fresh: bool,
) -> None:
    monkeypatch.setattr(checkpoint, "SMALL_BYTES", small_bytes)
    twin, before, to = shards_of(()), shards_of(CUTS), shards_of(after)
    for each in (twin, before):
        train(each, rule, ids(*trained))
    if not is_fresh:
        train(to, rule, np.arange(0, ROWS, 7))
    load(save(tmp_path / "a", before), to)
    np.testing.assert_array_equal(values(to), values(twin))
    # Once more, from shards whose slots may have only initial values.
    again = shards_of((333,))
    load(save(tmp_path / "b", to), again)
    for each in (twin, to, again):
        train(each, rule, np.arange(0, ROWS, 3))
    np.testing.assert_array_equal(values(to), values(twin))
    np.testing.assert_array_equal(values(again), values(twin))


def test_incremental_changes_are_restored_beside_shards_without_slots(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "SMALL_BYTES", 0)
    twin, before, to = shards_of(()), shards_of(CUTS), shards_of((50,))
    nothing = Base(str(tmp_path / "none"), ())
    for each in (twin, before):
        train(each, ADAGRAD, ids(5, 150))
    first = save(tmp_path / "a", before, nothing)
    for each in (twin, before):
        train(each, ADAGRAD, ids(5, 99, 160))
    second = save(tmp_path / "b", before, first)
    assert [len(part.changes) for part in second.shards] == [1, 1, 0]
    load(second, to)
    np.testing.assert_array_equal(np.concatenate([shard.slab for shard in to]), twin[0].slab)


@pytest.mark.parametrize("order", [1, -1])
def test_optimizer_with_most_rows_keeps_its_slots(
    tmp_path: pathlib.Path, order: int, caplog: pytest.LogCaptureFixture
) -> None:
    before, to = shards_of(CUTS), shards_of(())
    train(before, ADAM, ids(5))
    train(before, ADAGRAD, ids(150))
    base = save(tmp_path, before)
    load(base._replace(shards=base.shards[::order]), to)
    (shard,) = to
    assert (shard.optimizer, shard.column_widths) == ("adagrad", [3, 3])
    np.testing.assert_array_equal(shard.slab[100:300], before[1].slab)
    assert (np.delete(shard.slab, np.s_[100:300], axis=0)[:, 3:] == np.float32(0.1)).all()
    assert "adam" in caplog.text


def test_missing_first_slot_values_of_older_checkpoint_are_restored_as_zero(
    tmp_path: pathlib.Path,
) -> None:
    before, to = shards_of(CUTS), shards_of(())
    train(before, ADAGRAD, ids(150))
    base = save(tmp_path, before)
    load(base._replace(shards=tuple(part._replace(firsts=()) for part in base.shards)), to)
    edges = itertools.pairwise([0, *CUTS, ROWS])
    expected = [
        before[1].slab[:, 3:] if start == 100 else np.zeros((stop - start, 3), np.float32)
        for start, stop in edges
    ]
    np.testing.assert_array_equal(to[0].slab[:, 3:], np.concatenate(expected))


@pytest.mark.parametrize("row", [160, 650])
def test_training_step_supplies_first_slot_values_missing_in_older_checkpoint(
    tmp_path: pathlib.Path, row: int
) -> None:
    before, restored, to = shards_of(CUTS), shards_of(CUTS), shards_of(())
    train(before, ADAGRAD, ids(150))
    base = save(tmp_path / "a", before)
    load(base._replace(shards=tuple(part._replace(firsts=()) for part in base.shards)), restored)
    train(restored, ADAGRAD, ids(row))
    load(save(tmp_path / "b", restored), to)
    assert (to[0].slab[:100, 3:] == np.float32(0.1)).all()


def test_optimizer_with_most_rows_is_chosen_per_restored_shard(tmp_path: pathlib.Path) -> None:
    before, to = shards_of((500,)), shards_of((499,))
    train(before, ADAM, ids(5))
    train(before, ADAGRAD, ids(600))
    load(save(tmp_path, before), to)
    assert [shard.optimizer for shard in to] == ["adam", "adagrad"]
