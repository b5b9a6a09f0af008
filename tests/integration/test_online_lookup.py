"""A mapping from keys to ids that trainers share, on real trainers and parameter servers."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import pstrain as ps
from pstrain.checkpoints.objects import read_config
from pstrain.gradients.recording import record
from pstrain.kernels.keys import NO_KEY
from pstrain.variables.scope import local_parameters

DEADLINE_S = 60.0
CAPACITY = 5_000
KEYS = np.random.default_rng(0).integers(NO_KEY + 1, 2**63 - 1, 3_000)


def strategy_of(cluster: ps.LocalCluster, shards: int = 2) -> ps.ParameterServerStrategy:
    return ps.ParameterServerStrategy(
        cluster.resolver, variable_partitioner=ps.partitioners.FixedShardsPartitioner(shards)
    )


@pytest.fixture
def strategy(cluster: ps.LocalCluster) -> Iterator[ps.ParameterServerStrategy]:
    strategy = strategy_of(cluster)
    yield strategy
    ps.ClusterCoordinator(strategy).close()


def looking(lookup: Any, training: bool) -> Callable[[Any], tuple[int, Any]]:
    def look_up(keys: Any) -> tuple[int, Any]:
        return ps.get_current_worker_index(), lookup(keys, training)

    return look_up


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    deadline_s = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return condition()


def on_trainers(
    coordinator: ps.ClusterCoordinator, lookup: Any, parts: list[Any], *, training: bool = True
) -> list[Any]:
    """Looks parts up on two trainers in turn, concurrently; returns each part's ids."""
    function = looking(lookup, training)
    values = [
        coordinator.schedule(function, args=(part,), trainer=number % 2)
        for number, part in enumerate(parts)
    ]
    found = coordinator.fetch(values, DEADLINE_S)
    assert [trainer for trainer, _ in found] == [number % 2 for number in range(len(parts))]
    return [ids for _, ids in found]


def test_key_has_the_same_id_on_all_trainers(strategy: ps.ParameterServerStrategy) -> None:
    coordinator = ps.ClusterCoordinator(strategy)
    with strategy.scope():
        lookup = ps.layers.OnlineLookup(CAPACITY)
    assert len(lookup.variables[0].spec.shards) == 2
    chance = np.random.default_rng(1)
    # Both trainers look up all keys, each in an order of its own, so that parts meet at random.
    parts = [
        part
        for pair in zip(
            *(np.array_split(chance.permutation(KEYS), 30) for _ in range(2)), strict=True
        )
        for part in pair
    ]
    found = on_trainers(coordinator, lookup, parts)
    keys, ids = np.concatenate(parts), np.concatenate(found)
    pairs = np.unique(np.stack([keys, ids]), axis=1)
    assert pairs.shape[1] == len(KEYS) == len(np.unique(pairs[1]))
    assert (ids > 0).all()
    assert lookup.stats() == {"capacity": CAPACITY - 1, "used": len(KEYS), "refused": 0}
    np.testing.assert_array_equal(lookup.variables[0].numpy()[ids], keys)
    again = on_trainers(coordinator, lookup, [KEYS, KEYS], training=False)
    np.testing.assert_array_equal(again[0], again[1])
    np.testing.assert_array_equal(again[0], lookup(KEYS))


def test_known_keys_are_not_requested_again(strategy: ps.ParameterServerStrategy) -> None:
    coordinator = ps.ClusterCoordinator(strategy)
    with strategy.scope():
        lookup = ps.layers.OnlineLookup(CAPACITY)

    def claims() -> list[int]:
        return [strategy.parameters.status(ps)["requests"].get("claim", 0) for ps in range(2)]

    before = claims()
    on_trainers(coordinator, lookup, [KEYS])
    first = claims()
    assert [b - a for a, b in zip(before, first, strict=True)] == [1, 1]
    # The other trainer asks once: one request to each server.
    on_trainers(coordinator, lookup, [KEYS[::-1], KEYS])
    on_trainers(coordinator, lookup, [KEYS[5:]] * 4)
    assert [b - a for a, b in zip(first, claims(), strict=True)] == [1, 1]


def test_trainers_drop_cached_ids_after_restore(
    strategy: ps.ParameterServerStrategy, tmp_path: pathlib.Path
) -> None:
    coordinator = ps.ClusterCoordinator(strategy)
    with strategy.scope():
        lookup = ps.layers.OnlineLookup(50)
    checkpoint = ps.Checkpoint(lookup=lookup)
    kept = on_trainers(coordinator, lookup, [[1, 2], [2, 1]])[0].tolist()
    path = checkpoint.save(tmp_path)
    function = looking(lookup, training=True)
    for _ in range(2):
        on_trainers(coordinator, lookup, [range(3, 40)] * 2)
        checkpoint.restore(path)
        # In another order, so that ids go to other keys.
        values = [
            coordinator.schedule(function, args=(keys,), trainer=trainer)
            for trainer, keys in ((0, range(100, 120)), (1, range(39, 0, -1)), (0, range(1, 40)))
        ]
        others, back, forth = (ids for _, ids in coordinator.fetch(values, DEADLINE_S))
        assert back.tolist()[::-1] == forth.tolist()
        assert forth.tolist()[:2] == kept
        taken = [*others.tolist(), *(row for row in forth.tolist() if row)]
        assert len(taken) - taken.count(0) == len(set(taken) - {0})


def test_closures_queued_during_restore_drop_cached_ids(
    strategy: ps.ParameterServerStrategy, tmp_path: pathlib.Path
) -> None:
    coordinator = ps.ClusterCoordinator(strategy)
    with strategy.scope():
        lookup = ps.layers.OnlineLookup(50)
    checkpoint = ps.Checkpoint(lookup=lookup)
    path = checkpoint.save(tmp_path)
    function = looking(lookup, training=True)
    on_trainers(coordinator, lookup, [range(20)] * 2)
    with coordinator.barrier():
        waiting = [
            coordinator.schedule(function, args=(keys,), trainer=trainer)
            for trainer, keys in ((0, range(100, 140)), (1, range(20)))
        ]
        checkpoint.restore(path)
    found = [ids for _, ids in coordinator.fetch(waiting, DEADLINE_S)]
    taken = [row for ids in found for row in ids.tolist() if row]
    assert len(taken) == len(set(taken))
    np.testing.assert_array_equal(lookup(range(20)), found[1])


def test_restore_waits_for_running_closures_with_old_ids(
    strategy: ps.ParameterServerStrategy, tmp_path: pathlib.Path
) -> None:
    coordinator = ps.ClusterCoordinator(strategy)
    with strategy.scope():
        lookup = ps.layers.OnlineLookup(50)
        table = ps.Variable(np.zeros((50, 1), np.float32))
    checkpoint = ps.Checkpoint(lookup=lookup, table=table)
    path = checkpoint.save(tmp_path)
    has_looked, is_restored = tmp_path / "looked", tmp_path / "restored"

    def step() -> None:
        ids = lookup(range(20), training=True)
        has_looked.touch()
        # Waits in vain: nothing is restored while this closure runs.
        wait_until(is_restored.exists, 1.0)
        table.scatter_add(ps.IndexedSlices(np.ones((20, 1), np.float32), ids))

    coordinator.schedule(step)
    assert wait_until(has_looked.exists, DEADLINE_S)
    checkpoint.restore(path)
    is_restored.touch()
    coordinator.join(DEADLINE_S)
    assert not table.numpy().any()


@pytest.mark.parametrize("servers", [1, 3])
def test_mapping_is_restored_onto_other_servers(
    servers: int, strategy: ps.ParameterServerStrategy, tmp_path: pathlib.Path
) -> None:
    coordinator = ps.ClusterCoordinator(strategy)
    with strategy.scope():
        lookup = ps.layers.OnlineLookup([CAPACITY, 3_000], name="ids")
    pairs = np.stack([KEYS, KEYS // 3], axis=1)
    found = np.concatenate(on_trainers(coordinator, lookup, [pairs[:2_000], pairs[1_000:]]))
    path = ps.Checkpoint(lookup=lookup).save(tmp_path)
    coordinator.close()
    with ps.LocalCluster(workers=1, ps=servers, data_workers=0) as other:
        another = strategy_of(other, shards=servers)
        with another.scope():
            restored = ps.layers.OnlineLookup([CAPACITY, 3_000], name="ids")
        assert len(restored.variables[0].spec.shards) == servers
        ps.Checkpoint(lookup=restored).restore(path)
        np.testing.assert_array_equal(
            restored(np.concatenate([pairs[:2_000], pairs[1_000:]])), found
        )
        fresh = restored(pairs[:, ::-1], training=True)
        used = {*map(tuple, found)}
        assert not used & {*map(tuple, fresh[fresh.all(axis=1)])}


def test_assigning_keys_in_a_closure_is_refused(strategy: ps.ParameterServerStrategy) -> None:
    coordinator = ps.ClusterCoordinator(strategy)
    with strategy.scope():
        lookup = ps.layers.OnlineLookup(100)
    ((first,),) = on_trainers(coordinator, lookup, [np.array([5])])
    keys = lookup.variables[0]
    rows = keys.numpy()
    value = coordinator.schedule(lambda: keys.assign(rows))
    with pytest.raises(ps.errors.InvalidArgumentError, match="assign it in the program"):
        coordinator.join()
    with pytest.raises(ps.errors.InvalidArgumentError):
        value.fetch()
    keys.assign(rows)
    assert on_trainers(coordinator, lookup, [np.array([5])])[0].tolist() == [first]
    coordinator.close()


def test_fit_assigns_ids_to_values_and_evaluation_does_not(
    strategy: ps.ParameterServerStrategy, tmp_path: pathlib.Path
) -> None:
    random = np.random.default_rng(0)
    user = KEYS[random.integers(0, 300, 12_000)]
    columns = {"user": user, "page": [f"p{k % 7}" for k in range(len(user))], "label": user % 2}
    categories = {
        "user": ps.Category(1_000, online=True),
        "page": ps.Category(50, online=True, min_count=3),
    }
    with strategy.scope():
        model = ps.models.WideDeep(ps.FeatureSchema(categorical=categories), dim=8, hidden=(8,))
        model.compile(ps.optimizers.Adagrad(0.1), metrics=[ps.metrics.AUC()])
    assert model.evaluate(columns, verbose=0)["auc"] == 0.5
    assert model.online.stats()["used"] == 0
    model.fit(columns, epochs=3, batch_size=500, verbose=0)
    assert model.online.stats() == {"capacity": 1_048, "used": 307, "refused": 0}
    after = model.evaluate(columns, verbose=0)
    assert after["auc"] > 0.95
    assert model.evaluate(columns, verbose=0, distributed=False)["auc"] == after["auc"]
    path = ps.Checkpoint(model=model).save(tmp_path)
    with local_parameters():
        alone = ps.models.from_config(read_config(path))
    alone.load_weights(path)
    np.testing.assert_allclose(alone.predict(columns), model.predict(columns), rtol=1e-5)


def test_embedding_learns_values_of_arbitrary_keys(
    strategy: ps.ParameterServerStrategy,
) -> None:
    coordinator = ps.ClusterCoordinator(strategy)
    with strategy.scope():
        lookup = ps.layers.OnlineLookup(CAPACITY)
        table = ps.layers.Embedding(CAPACITY, 1)
        optimizer = ps.optimizers.SGD(0.5)
    truth = dict(zip(KEYS.tolist(), np.random.default_rng(3).normal(size=len(KEYS)), strict=True))

    def step(keys: Any, wanted: Any) -> None:
        with ps.GradientTape() as tape:
            difference = table(lookup(keys)) - ps.Tensor(wanted)
            squares = difference * difference
            loss = ps.Tensor(np.float32(squares.value.sum()))
            loss = record(loss, (squares,), lambda g: np.full(squares.shape, g, np.float32))
        optimizer.apply_gradients(tape.gradients(loss))

    chance = np.random.default_rng(4)
    for _ in range(2):
        for keys in np.array_split(chance.permutation(KEYS), 10):
            wanted = np.array([[truth[key]] for key in keys.tolist()], np.float32)
            coordinator.schedule(step, args=(keys, wanted))
        coordinator.join(DEADLINE_S)
    learnt = table(lookup(KEYS)).value.reshape(-1)
    np.testing.assert_allclose(learnt, list(truth.values()), atol=1e-4)
    assert table(lookup(KEYS[:1] + 1)).value.tolist() == table([0]).value.tolist()
