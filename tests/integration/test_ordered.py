"""ordered=True gives one sequence of rows for any number of workers, even if one is killed."""

from __future__ import annotations

import itertools
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

import dataservice as ds
from dataservice.errors import FailedPreconditionError, UnsplittableError
from tests.integration.service_cluster import (
    LocalService,
    local_service,
    process_cluster,
    read_ids,
    write_numbers,
)

DYNAMIC = ds.ShardingPolicy.DYNAMIC
ROWS = 20_000


@pytest.fixture(scope="module", params=[1, 3])
def service(request: pytest.FixtureRequest) -> Iterator[LocalService]:
    with local_service(workers=request.param) as shared:
        yield shared


SEQUENCES: dict[str, list[int]] = {}


def test_ordered_batches_equal_those_of_one_process(service: LocalService) -> None:
    data = ds.Dataset.range(ROWS).filter(ds.col("id") % 7 != 0).batch(64).map(lambda c: c)
    remote = data.distribute(DYNAMIC, service.target, ordered=True)
    with iter(remote) as ours, iter(data) as local:
        for mine, expected in zip(ours, local, strict=True):
            assert mine.equals(expected)


@pytest.mark.parametrize("drop_remainder", [False, True])
def test_repeated_batches_equal_those_of_one_process_also_after_resume(
    service: LocalService, drop_remainder: bool
) -> None:
    """Each pass ends with a batch of its own, even if a position was saved in the second pass."""
    data = ds.Dataset.range(1_000).batch(7, drop_remainder).map(lambda c: c).repeat(2)
    expected = [batch.to_pydict() for batch in data]

    def make() -> ds.Dataset:
        return data.distribute(DYNAMIC, service.target, ordered=True)

    assert [batch.to_pydict() for batch in make()] == expected
    read: list[Any] = []
    state: dict[str, Any] | None = None
    for count in (3, 150, 0, 40, 1 << 30):
        with iter(make()) as iterator:
            if state is not None:
                iterator.load_state_dict(state)
            read += [batch.to_pydict() for batch in itertools.islice(iterator, count)]
            state = json.loads(json.dumps(iterator.state_dict()))
    assert read == expected


def test_ordered_read_of_concatenated_batches_is_refused(service: LocalService) -> None:
    grouped = ds.Dataset.range(100).group_by_window(ds.col("id") % 3, window_size=4)
    with pytest.raises(UnsplittableError, match="concatenate to rows, and batch after it"):
        grouped.concatenate(grouped).distribute(DYNAMIC, service.target, ordered=True)


def test_shuffled_order_depends_on_the_seed_only(service: LocalService) -> None:
    data = ds.Dataset.range(ROWS).shuffle(5_000, seed=3).repeat(2).batch(100)
    ids = read_ids(data.distribute(DYNAMIC, service.target, ordered=True))
    assert sorted(ids) == sorted(list(range(ROWS)) * 2)
    assert ids == SEQUENCES.setdefault("shuffled", ids)


def test_registered_dataset_is_read_in_order(service: LocalService) -> None:
    dataset_id = ds.register_dataset(service.target, ds.Dataset.range(ROWS).batch(30))
    remote = ds.from_dataset_id(DYNAMIC, service.target, dataset_id, ordered=True)
    batches = list(remote)
    assert [batch.num_rows for batch in batches[:3]] == [30, 30, 30]
    assert [i for batch in batches for i in batch.column("id").to_pylist()] == list(range(ROWS))


def test_local_operators_over_ordered_read_resume_exactly(service: LocalService) -> None:
    def make() -> ds.Dataset:
        rows = ds.Dataset.range(ROWS).distribute(DYNAMIC, service.target, ordered=True)
        return rows.filter(ds.col("id") % 3 != 0).shuffle(500, seed=1).batch(70).shuffle(9, seed=2)

    whole = read_ids(make())
    ids: list[int] = []
    state: dict[str, Any] | None = None
    for count in (3, 0, 11, 50, 1, 20, 2, 7, 90, 1 << 30):
        with iter(make()) as iterator:
            if state is not None:
                iterator.load_state_dict(state)
            for _, batch in zip(range(count), iterator, strict=False):
                ids += batch.column("id").to_pylist()
            if count < 1 << 30:
                state = json.loads(json.dumps(iterator.state_dict()))
    assert ids == whole


def test_second_concurrent_reader_is_refused_and_a_later_one_goes_on(service: LocalService) -> None:
    data = ds.Dataset.range(ROWS).batch(10)
    remote = data.distribute(DYNAMIC, service.target, job_name="one", ordered=True)
    with remote.iterator(0) as first:
        ids = [i for _ in range(40) for i in next(first).column("id").to_pylist()]
        with pytest.raises(FailedPreconditionError, match="a sequence has one reader"):
            next(remote.iterator(0))
    with remote.iterator(0) as second:
        rest = [i for batch in second for i in batch.column("id").to_pylist()]
    assert ids == list(range(400))
    assert rest == sorted(rest)
    assert rest[-1] == ROWS - 1


def test_killed_worker_does_not_change_the_order(tmp_path: pathlib.Path) -> None:
    paths = write_numbers(tmp_path, files=4, rows_per_file=20_000, group_rows=1_000)
    args = ("--worker-timeout-ms", "1000")
    with process_cluster(tmp_path, workers=2, dispatcher_args=args) as cluster:
        data = ds.Dataset.from_parquet(paths).batch(100)
        remote = data.distribute(DYNAMIC, cluster.target, ordered=True, max_outstanding_requests=2)
        ids: list[int] = []
        with iter(remote) as iterator:
            for number, batch in enumerate(iterator):
                ids += batch.column("id").to_pylist()
                if number == 100:
                    cluster.workers[0].kill()
                    cluster.add_worker()
        assert ids == list(range(80_000))
