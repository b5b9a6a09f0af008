"""Datasets behind PyTorch's DataLoader with worker processes. Skipped without torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest

import dataservice as ds

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)
ROWS = 60


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    with (
        ds.DispatchServer() as dispatcher,
        ds.WorkerServer(ds.WorkerConfig(dispatcher.target)),
        ds.WorkerServer(ds.WorkerConfig(dispatcher.target)),
    ):
        yield dispatcher.target


def loader(dataset: ds.Dataset, context: str, **options: Any) -> Any:
    return loader_of(dataset.torch(), context, **options)


def loader_of(elements: Any, context: str, num_workers: int = 2, **options: Any) -> Any:
    from torch.utils.data import DataLoader

    return DataLoader(
        elements,
        batch_size=None,
        num_workers=num_workers,
        multiprocessing_context=context,
        timeout=60,
        **options,
    )


def ids(batches: Any) -> list[int]:
    return [row for batch in batches for row in batch["id"].tolist()]


@pytest.mark.parametrize(
    ("context", "persistent", "seed"),
    [("fork", False, 3), ("fork", True, None), ("spawn", False, None)],
)
def test_loader_workers_divide_the_rows_and_reshuffle_in_each_pass(
    context: str, persistent: bool, seed: int | None
) -> None:
    dataset = ds.Dataset.range(ROWS).shuffle(ROWS, seed=seed).batch(5)
    batches = loader(dataset, context, persistent_workers=persistent)
    first, second = ids(batches), ids(batches)
    assert sorted(first) == sorted(second) == list(range(ROWS))
    assert first != second


@pytest.mark.parametrize(("job_name", "persistent"), [(None, False), ("loaders", True)])
def test_loader_workers_share_a_job_in_each_pass(
    target: str, job_name: str | None, persistent: bool
) -> None:
    dataset = ds.Dataset.range(ROWS).batch(5)
    remote = dataset.distribute(ds.ShardingPolicy.DYNAMIC, target, job_name=job_name)
    batches = loader(remote, "spawn", persistent_workers=persistent)
    for _ in range(2):
        assert sorted(ids(batches)) == list(range(ROWS))


def test_loaders_with_different_worker_counts_each_read_all_rows(target: str) -> None:
    elements = ds.Dataset.range(ROWS).batch(5).distribute(ds.ShardingPolicy.DYNAMIC, target).torch()
    for num_workers in (2, 1):
        assert sorted(ids(loader_of(elements, "spawn", num_workers))) == list(range(ROWS))


def test_forked_loader_workers_are_refused_in_favour_of_spawn(target: str) -> None:
    remote = ds.Dataset.range(ROWS).batch(5).distribute(ds.ShardingPolicy.DYNAMIC, target)
    with pytest.raises(ds.errors.FailedPreconditionError, match="multiprocessing_context='spawn'"):
        ids(loader(remote, "fork"))
