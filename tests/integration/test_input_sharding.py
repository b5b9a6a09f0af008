"""Each trainer reads its own share of a dataset, however it is divided, on real servers."""

from __future__ import annotations

import collections
import pathlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dataservice as ds
import pstrain as ps
from pstrain.errors import ClosureInputError, InvalidArgumentError

DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def coordinator(cluster: ps.LocalCluster) -> Iterator[ps.ClusterCoordinator]:
    strategy = ps.ParameterServerStrategy(cluster.resolver, placement="bytes")
    coordinator = ps.ClusterCoordinator(strategy)
    yield coordinator
    coordinator.close()


def read_some(iterator: Any) -> tuple[int, list[int] | None]:
    try:
        batch = next(iterator)
    except StopIteration:
        return ps.get_current_worker_index(), None
    return ps.get_current_worker_index(), batch["id"].to_pylist()


def read_all(coordinator: ps.ClusterCoordinator, dataset: Any) -> dict[int, list[int]]:
    """Reads until both trainers have seen the end; returns the rows by trainer."""
    iterator = iter(coordinator.create_per_worker_dataset(dataset))
    found: dict[int, list[int]] = collections.defaultdict(list)
    ended: set[int] = set()
    while len(ended) < 2:
        values = [coordinator.schedule(read_some, args=(iterator,)) for _ in range(8)]
        for trainer, rows in coordinator.fetch(values):
            found[trainer] += rows or []
            if rows is None:
                ended.add(trainer)
    return {trainer: sorted(rows) for trainer, rows in found.items()}


def test_data_policy_divides_elements_among_trainers(coordinator: ps.ClusterCoordinator) -> None:
    dataset = ds.Dataset.range(40).shuffle(40).batch(4)
    distributed = coordinator.strategy.experimental_distribute_dataset(
        dataset, ps.AutoShardPolicy.DATA
    )
    found = read_all(coordinator, distributed)
    assert len(found[0]) == len(found[1]) == 20
    assert sorted(found[0] + found[1]) == list(range(40))


def test_files_are_divided_among_trainers_and_too_few_are_refused(
    coordinator: ps.ClusterCoordinator, tmp_path: pathlib.Path
) -> None:
    for number in range(3):
        table = pa.table({"id": range(10 * number, 10 * number + 10)})
        pq.write_table(table, tmp_path / f"part-{number}.parquet")
    dataset = ds.Dataset.from_parquet(f"{tmp_path}/*.parquet").batch(5)
    strategy = coordinator.strategy

    def on_the_trainer() -> Any:
        return strategy.experimental_distribute_dataset(dataset)

    for distributed in (strategy.experimental_distribute_dataset(dataset), on_the_trainer):
        assert read_all(coordinator, distributed) == {
            0: [*range(10), *range(20, 30)],
            1: [*range(10, 20)],
        }
    one_file = ds.Dataset.from_parquet(str(tmp_path / "part-0.parquet"))
    with pytest.raises(InvalidArgumentError, match="not enough"):
        strategy.experimental_distribute_dataset(one_file, ps.AutoShardPolicy.FILE)


def test_data_service_job_is_shared_by_all_trainers(
    cluster: ps.LocalCluster, coordinator: ps.ClusterCoordinator
) -> None:
    remote = ds.Dataset.range(64).batch(4).distribute(ds.ShardingPolicy.DYNAMIC, cluster.service)
    distributed = coordinator.strategy.experimental_distribute_dataset(remote)
    assert distributed.element_spec == remote.schema
    found = read_all(coordinator, distributed)
    assert sorted(found.get(0, []) + found.get(1, [])) == list(range(64))
    with pytest.raises(InvalidArgumentError, match="data service"):
        coordinator.strategy.experimental_distribute_dataset(remote, ps.AutoShardPolicy.FILE)


def test_dataset_function_gets_its_input_pipeline_id(coordinator: ps.ClusterCoordinator) -> None:
    def dataset_fn(context: ps.InputContext) -> ds.Dataset:
        assert context.get_per_replica_batch_size(4) == 4
        rows = ds.Dataset.range(12)
        return rows.shard(context.num_input_pipelines, context.input_pipeline_id).batch(4)

    made = coordinator.strategy.distribute_datasets_from_function(dataset_fn)
    assert read_all(coordinator, made) == {0: list(range(0, 12, 2)), 1: list(range(1, 12, 2))}
    per_worker = coordinator.create_per_worker_dataset(made)
    assert per_worker.element_spec == pa.schema([("id", pa.int64())])


def test_run_reduce_and_gather_work_within_a_step(coordinator: ps.ClusterCoordinator) -> None:
    strategy = coordinator.strategy

    def step(x: float) -> tuple[Any, ...]:
        value = strategy.run(lambda y: [y, 3 * y], args=(x,))
        total = strategy.reduce(ps.ReduceOp.SUM, value, axis=None)
        rows = strategy.gather({"rows": value}, axis=0)["rows"].tolist()
        return total, rows, strategy.num_replicas_in_sync, ps.in_cross_replica_context()

    end = ([2.0, 6.0], [2.0, 6.0], 1, True)
    assert coordinator.schedule(step, args=(2.0,)).fetch(DEADLINE_S) == end


def test_too_few_files_found_on_a_trainer_are_an_error_of_the_closure(
    coordinator: ps.ClusterCoordinator, tmp_path: pathlib.Path
) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "only.parquet")
    path, strategy = str(tmp_path / "only.parquet"), coordinator.strategy

    def on_the_trainer() -> Any:
        dataset = ds.Dataset.from_parquet(path)
        return strategy.experimental_distribute_dataset(dataset, ps.AutoShardPolicy.FILE)

    iterator = iter(coordinator.create_per_worker_dataset(on_the_trainer))
    coordinator.schedule(read_some, args=(iterator,))
    with pytest.raises(ClosureInputError, match="not enough"):
        coordinator.join(timeout=DEADLINE_S)


def test_bytes_placement_balances_servers_and_colocation_is_kept(
    coordinator: ps.ClusterCoordinator,
) -> None:
    strategy = coordinator.strategy
    with strategy.scope():
        large = ps.Variable([0.0] * 1000, name="large")
        small = [ps.Variable([0.0] * 10, name=f"small_{k}") for k in range(3)]
        with strategy.extended.colocate_vars_with(large):
            beside = ps.Variable([0.0], name="beside")
    assert large.device == "/job:ps/task:0"
    assert {v.device for v in small} == {"/job:ps/task:1"}
    assert beside.device == large.device
    assert strategy.extended.variable_created_in_scope(beside)
    assert strategy.extended.worker_devices == ("/job:worker/task:0", "/job:worker/task:1")
    with (
        pytest.raises(ValueError, match="scope"),
        strategy.extended.colocate_vars_with(ps.Variable(1.0)),
    ):
        pass


def test_restored_per_worker_iterator_resumes_each_trainers_pass(
    coordinator: ps.ClusterCoordinator, cluster: ps.LocalCluster
) -> None:
    target = cluster.service

    def make() -> Any:
        return ds.Dataset.range(60).batch(5).distribute(ds.ShardingPolicy.OFF, target)

    def take(iterator: Any, steps: int) -> list[int]:
        values = [
            coordinator.schedule(read_some, args=(iterator,), trainer=step % 2)
            for step in range(steps)
        ]
        return [row for _, rows in coordinator.fetch(values) for row in rows or []]

    first = iter(coordinator.create_per_worker_dataset(make))
    found = take(first, 7)
    coordinator.join(DEADLINE_S)
    state = first.state_dict()
    again = iter(coordinator.create_per_worker_dataset(make))
    again.load_state_dict(state)
    found += take(again, 26)
    assert sorted(found) == sorted([*range(60)] * 2)


def test_sync_trainers_with_sparse_task_indices_divide_the_data() -> None:
    with ps.LocalCluster(workers=2, ps=1, data_workers=0) as cluster:
        jobs = cluster.resolver.cluster_spec()
        workers = dict(zip((1, 5), jobs.job_tasks("worker"), strict=True))
        spec = ps.ClusterSpec({"worker": workers, "ps": jobs.job_tasks("ps")})
        resolver = ps.SimpleClusterResolver(spec)
        strategy = ps.ParameterServerStrategy(resolver, consistency="sync")
        coordinator = ps.ClusterCoordinator(strategy)
        assert strategy.extended.worker_devices == ("/job:worker/task:1", "/job:worker/task:5")
        with strategy.scope():
            counts = ps.Variable(0, per_worker_variable=True)

        def step(iterator: Any) -> tuple[int, int]:
            counts.assign_add(1)
            return ps.get_current_worker_index(), next(iterator)["id"][0].as_py()

        shares = strategy.experimental_distribute_dataset(ds.Dataset.range(4).batch(1))
        iterator = iter(coordinator.create_per_worker_dataset(shares))
        values = [coordinator.schedule(step, args=(iterator,)) for _ in range(4)]
        coordinator.join(DEADLINE_S)
        assert sorted(coordinator.fetch(values)) == [(1, 0), (1, 2), (5, 1), (5, 3)]
        assert list(map(int, counts.read_all())) == [2, 2]
        coordinator.close()
