"""Shares of a dataset as trainers read them, all in this process."""

from __future__ import annotations

import pathlib
import types
from itertools import chain
from typing import Any

import cloudpickle
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pstrain as ps
from dataservice import Dataset, ShardingPolicy
from dataservice.client.source import ServiceSource
from pstrain.coordinator.per_worker import PerWorkerDataset
from pstrain.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from pstrain.strategy.input_sharding import DistributedDataset, own_share, policy_of
from pstrain.strategy.replica import Replica

OFF, AUTO, FILE, DATA = (ps.AutoShardPolicy[name] for name in ("OFF", "AUTO", "FILE", "DATA"))


@pytest.fixture
def files(tmp_path: pathlib.Path) -> list[str]:
    paths = []
    for number in range(3):
        path = str(tmp_path / f"part-{number}.parquet")
        pq.write_table(pa.table({"id": range(10 * number, 10 * number + 10)}), path)
        paths.append(path)
    return paths


def shares(distributed: DistributedDataset, count: int) -> list[list[int]]:
    there = cloudpickle.loads(cloudpickle.dumps(distributed))
    datasets = [there(ps.InputContext(count, index)) for index in range(count)]
    return [dataset.to_table()["id"].to_pylist() for dataset in datasets]


@pytest.mark.parametrize("trainers", [None, 2])
def test_data_policy_distributes_elements_in_turn(trainers: int | None) -> None:
    batches = Dataset.range(10).batch(2)
    assert shares(DistributedDataset(batches, DATA, trainers), 2) == [
        [0, 1, 4, 5, 8, 9],
        [2, 3, 6, 7],
    ]


@pytest.mark.parametrize("trainers", [None, 2])
@pytest.mark.parametrize("policy", [FILE, AUTO])
def test_file_and_auto_policies_distribute_whole_files(
    files: list[str], trainers: int | None, policy: ps.AutoShardPolicy
) -> None:
    found = shares(DistributedDataset(Dataset.from_parquet(files), policy, trainers), 2)
    assert found == [[*range(10), *range(20, 30)], [*range(10, 20)]]


def test_trainers_that_each_read_everything_shuffle_in_orders_of_their_own() -> None:
    drawn = Dataset.range(50).shuffle(50)
    orders = shares(DistributedDataset(drawn, OFF), 3)
    assert [sorted(order) for order in orders] == [list(range(50))] * 3
    assert orders[0] == drawn.to_table()["id"].to_pylist()
    assert orders[0] != orders[1] != orders[2] != orders[0]
    assert shares(DistributedDataset(drawn, OFF), 3) == orders, "a trainer started again goes on"
    seeded = shares(DistributedDataset(Dataset.range(50).shuffle(50, seed=1), OFF), 2)
    assert seeded[0] == seeded[1]


def test_off_policy_gives_every_trainer_all_elements(files: list[str]) -> None:
    found = shares(DistributedDataset(Dataset.from_parquet(files), OFF, 2), 2)
    assert found == [list(range(30))] * 2


def test_auto_policy_distributes_elements_when_files_are_too_few(files: list[str]) -> None:
    four = shares(DistributedDataset(Dataset.from_parquet(files), AUTO, 4), 4)
    assert sorted(chain(*four)) == list(range(30))
    assert all(7 <= len(share) <= 8 for share in four)
    assert shares(DistributedDataset(Dataset.range(4), None, 2), 2) == [[0, 2], [1, 3]]


def test_file_policy_with_too_few_files_is_refused(files: list[str]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"Found 3 files .* 4 shards"):
        DistributedDataset(Dataset.from_parquet(files), FILE, 4)
    with pytest.raises(NotFoundError, match="unshardable"):
        DistributedDataset(Dataset.range(8), FILE, 2)
    later = DistributedDataset(Dataset.from_parquet(files), FILE, None)
    with pytest.raises(InvalidArgumentError, match="not enough"):
        later(ps.InputContext(4, 0))


def test_files_changed_since_distribution_are_refused(files: list[str]) -> None:
    folder = pathlib.Path(files[0]).parent
    distributed = DistributedDataset(Dataset.from_parquet(f"{folder}/*.parquet"), FILE, 2)
    pq.write_table(pa.table({"id": [99]}), folder / "part-00.parquet")
    with pytest.raises(FailedPreconditionError, match="other files"):
        distributed(ps.InputContext(2, 0))


def test_shuffled_elements_are_distributed_once() -> None:
    shuffled = Dataset.range(100).shuffle(100).batch(10)
    assert sorted(chain(*shares(DistributedDataset(shuffled, DATA, 3), 3))) == list(range(100))


def test_policy_of_accepts_enum_name_and_options() -> None:
    nested = types.SimpleNamespace(
        experimental_distribute=types.SimpleNamespace(auto_shard_policy=FILE)
    )
    assert policy_of(None) is AUTO
    assert policy_of(DATA) is DATA
    assert policy_of("data") is DATA
    assert policy_of(ps.InputOptions(auto_shard_policy=OFF)) is OFF
    assert policy_of(nested) is FILE
    with pytest.raises(InvalidArgumentError, match=r"AutoShardPolicy\.OFF, AUTO, .*'half'"):
        policy_of("half")


def test_element_spec_of_non_dataset_is_refused() -> None:
    nobodys: Any = None
    made = Replica().distribute_datasets_from_function(lambda: [1, 2])
    for source in (lambda: [1, 2], made):
        with pytest.raises(InvalidArgumentError, match=r"this is a list: .* return a Dataset"):
            _ = PerWorkerDataset(source, nobodys).element_spec


def test_unseeded_dataset_made_by_each_worker_is_divided_without_overlap() -> None:
    own = [
        own_share(Dataset.range(40).shuffle(40), None, ps.InputContext(2, index))
        for index in (0, 1)
    ]
    first, second = (set(share.to_table()["id"].to_pylist()) for share in own)
    assert (len(first), first | second) == (20, set(range(40)))


def remote(job_name: str | None = None) -> Dataset:
    schema = pa.schema([("id", pa.int64())])
    policy = ShardingPolicy.DYNAMIC
    source = ServiceSource(
        target="a:1", dataset_id="d", policy=policy, schema=schema, job_name=job_name
    )
    return Dataset(source)


@pytest.mark.parametrize(("policy", "jobs"), [(AUTO, 1), (DATA, 1), (OFF, 0)])
def test_service_dataset_is_one_job_of_all_trainers_unless_each_reads_everything(
    policy: ps.AutoShardPolicy, jobs: int
) -> None:
    there = cloudpickle.loads(cloudpickle.dumps(DistributedDataset(remote(), policy, 2)))
    shares = [there(ps.InputContext(2, index)) for index in (0, 1)]
    assert [share.has_private_job for share in shares] == [jobs == 0] * 2
    assert len({share.node.job_name for share in shares} - {None}) == jobs
    others = DistributedDataset(remote(), policy, 2)(ps.InputContext(2, 0))
    assert jobs == 0 or others.node.job_name != shares[0].node.job_name
    with pytest.raises(InvalidArgumentError, match="the data service reads this dataset"):
        DistributedDataset(remote(), FILE)


def test_service_dataset_shared_by_workers_needs_job_name() -> None:
    def read(workers: int, options: Any = None, name: str | None = None) -> Dataset:
        return own_share(remote(name), options, ps.InputContext(workers, 0))

    with pytest.raises(InvalidArgumentError, match=r"give distribute\(\) a job_name"):
        read(2)
    assert all(each.is_distributed for each in (read(1), read(2, OFF), read(2, name="train")))


def test_distributed_dataset_cannot_be_iterated_in_program() -> None:
    strategy = Replica()
    distributed = strategy.experimental_distribute_dataset(Dataset.range(3))
    assert distributed.element_spec == pa.schema([("id", pa.int64())])
    with pytest.raises(ValueError, match="create_per_worker_dataset"):
        iter(distributed)
    made = strategy.distribute_datasets_from_function(lambda context: Dataset.range(3))  # noqa: ARG005
    assert made.element_spec == pa.schema([("id", pa.int64())])
    with pytest.raises(ValueError, match="create_per_worker_dataset"):
        iter(made)
    with pytest.raises(ValueError, match="list"):
        strategy.experimental_distribute_dataset([1, 2])
    with pytest.raises(ValueError, match="int"):
        strategy.distribute_datasets_from_function(3)


def test_input_context_divides_global_batch_size() -> None:
    context = ps.InputContext(num_input_pipelines=4, input_pipeline_id=1, num_replicas_in_sync=2)
    assert context.get_per_replica_batch_size(64) == 32
    with pytest.raises(ValueError, match="63"):
        context.get_per_replica_batch_size(63)
