"""Incremental saves on real parameter servers: small files, yet each checkpoint is complete."""

from __future__ import annotations

import pathlib

import numpy as np

import pstrain as ps
from pstrain.variables.scope import local_parameters

ROWS, WIDTH = 60_000, 8
CHUNK = 1_000


def model() -> tuple[ps.Variable, ps.Variable]:
    return (
        ps.Variable(ps.initializers.uniform(seed=2)((ROWS, WIDTH)), name="table"),
        ps.Variable(0, name="steps"),
    )


def size_bytes(folder: pathlib.Path) -> int:
    """Returns the size on disk of the files that no other checkpoint shares."""
    files = [path.stat() for path in folder.rglob("*") if path.is_file()]
    return sum(found.st_size for found in files if found.st_nlink == 1)


def test_incremental_save_writes_only_changed_rows(
    cluster: ps.LocalCluster, tmp_path: pathlib.Path
) -> None:
    strategy = ps.ParameterServerStrategy(
        cluster.resolver, ps.partitioners.FixedShardsPartitioner(2)
    )
    coordinator = ps.ClusterCoordinator(strategy)
    with strategy.scope():
        table, steps = model()
        optimizer = ps.optimizers.Adagrad(0.1)

    def step(chunk: int) -> None:
        rows = np.arange(chunk * CHUNK, (chunk + 1) * CHUNK)
        gradient = ps.IndexedSlices(np.full((CHUNK, WIDTH), chunk, np.float32), rows)
        optimizer.apply_gradients([(gradient, table)])
        steps.assign_add(1)

    manager = ps.CheckpointManager(
        ps.Checkpoint(table=table, steps=steps, optimizer=optimizer),
        tmp_path,
        max_to_keep=2,
        incremental=True,
    )
    saves, moments = [], []
    # With this step, both shards have their slots before the first save.
    coordinator.schedule(step, args=(0,))
    for chunk in (31, 59, 30, 1):
        coordinator.schedule(step, args=(chunk,))
        coordinator.join()
        saves.append(manager.save())
        moments.append(table.numpy())
    assert saves[0] is not None
    assert saves[0].size_bytes >= 2 * 4 * ROWS * WIDTH
    row_bytes = 8 + 2 * 4 * WIDTH
    for saved in saves[1:]:
        assert saved is not None
        assert CHUNK * row_bytes < saved.size_bytes < 3 * CHUNK * row_bytes
    # Both kept checkpoints share the table's first file; its own checkpoint was deleted.
    kept = [pathlib.Path(path) for path in manager.checkpoints]
    assert [path.name for path in kept] == ["ckpt-3", "ckpt-4"]
    assert size_bytes(kept[1]) < 3 * CHUNK * row_bytes
    for path, moment in zip(kept, moments[2:], strict=True):
        with local_parameters():
            mine, count = model()
            ps.Checkpoint(table=mine, steps=count).restore(path)
        np.testing.assert_array_equal(mine.numpy(), moment)
        assert int(count) == 1 + int(path.name[-1])


def test_first_save_after_restore_is_whole_and_later_ones_incremental(
    cluster: ps.LocalCluster, tmp_path: pathlib.Path
) -> None:
    strategy = ps.ParameterServerStrategy(cluster.resolver)
    with strategy.scope():
        table, _ = model()
    sizes = []
    checkpoint = ps.Checkpoint(table=table)
    for number in range(5):
        if number == 2:
            checkpoint.restore(tmp_path)
        table.scatter_add(ps.IndexedSlices(np.ones((3, WIDTH), np.float32), np.arange(3)))
        sizes.append(checkpoint.save(tmp_path, incremental=True).size_bytes)
    whole = 4 * ROWS * WIDTH
    assert [size >= whole for size in sizes] == [True, False, True, False, False]
    expected = table.numpy()
    table.assign(np.zeros((ROWS, WIDTH), np.float32))
    checkpoint.restore(tmp_path)
    np.testing.assert_array_equal(table.numpy(), expected)


def test_table_saved_under_two_names_is_on_disk_once(
    cluster: ps.LocalCluster, tmp_path: pathlib.Path
) -> None:
    strategy = ps.ParameterServerStrategy(cluster.resolver)
    with strategy.scope():
        table, steps = model()
    checkpoint = ps.Checkpoint(users=table, steps=steps, items=table)
    sizes = []
    for count in range(2):
        steps.assign(count)
        table.scatter_add(ps.IndexedSlices(np.ones((3, WIDTH), np.float32), np.arange(3)))
        sizes.append(checkpoint.save(tmp_path, incremental=True).size_bytes)
    whole = 4 * ROWS * WIDTH
    assert whole <= sizes[0] < 1.5 * whole
    assert sizes[1] < whole / 10
    expected = table.numpy()
    for names in ({"users", "items"}, {"items"}):
        table.assign(np.zeros((ROWS, WIDTH), np.float32))
        ps.Checkpoint(**dict.fromkeys(names, table)).restore(tmp_path)
        np.testing.assert_array_equal(table.numpy(), expected)
    with local_parameters():
        mine, _ = model()
        ps.Checkpoint(items=mine).restore(tmp_path)
    np.testing.assert_array_equal(mine.numpy(), expected)
