"""The cross-trainer cache on real servers: trainers read the same elements at their own pace."""

from __future__ import annotations

import json
import pathlib
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dataservice as ds
from dataservice.client.connection import DispatcherConnection
from dataservice.errors import InvalidArgumentError, UnimplementedError
from dataservice.vocabulary import parse_target
from tests.integration.service_cluster import (
    LocalService,
    local_service,
    process_cluster,
    write_numbers,
)
from tests.waiting import wait_until

OFF, DYNAMIC = ds.ShardingPolicy.OFF, ds.ShardingPolicy.DYNAMIC
DATA, FILE = ds.ShardingPolicy.DATA, ds.ShardingPolicy.FILE
ROWS = 100_000


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    with local_service(workers=1) as running:
        yield running


def cached(
    service: Any, trainer: str, job: str, *, rows: int = ROWS, batch: int = 10, **more: Any
) -> ds.Dataset:
    """Returns the dataset that a trainer reads, by default the numbers from 0, again and again."""
    dataset = more.pop("dataset", None) or ds.Dataset.range(rows).repeat().batch(batch)
    return dataset.distribute(
        more.pop("policy", OFF),
        service.target,
        job_name=job,
        cross_trainer_cache=ds.CrossTrainerCache(trainer),
        **more,
    )


def take(iterator: Any, elements: int) -> list[int]:
    return [i for _ in range(elements) for i in next(iterator).column("id").to_pylist()]


def missed(iterator: Any) -> int:
    return int(iterator.stats()["elements_missed"])


@pytest.mark.parametrize("policy", [OFF, DYNAMIC])
def test_each_trainer_reads_all_elements_at_its_own_pace(
    service: LocalService, policy: ds.ShardingPolicy
) -> None:
    fast, slow = (iter(cached(service, t, f"pace-{policy}", policy=policy)) for t in ("a", "b"))
    with fast, slow:
        first = take(slow, 5)
        got = take(fast, 500)
        assert first + take(slow, 495) == got
        assert (missed(fast), missed(slow)) == (0, 0)
    assert got == list(range(5_000))


def test_dynamic_windows_are_divided_among_workers_and_read_by_all() -> None:
    dataset = ds.Dataset.range(4_000).repeat().batch(10)
    with local_service(workers=2) as service:
        options = {"dataset": dataset, "policy": DYNAMIC}
        trainers = [iter(cached(service, name, "divided", **options)) for name in ("a", "b")]
        got = [Counter(take(trainer, 1_200)) for trainer in trainers]
        for trainer in trainers:
            with pytest.raises(UnimplementedError, match="cross-trainer cache"):
                json.dumps(trainer.state_dict())
            trainer.close()
    for counts in got:
        # The 12,000 rows read are about three passes over 4,000 rows, shared by two workers. With
        # OFF each worker would make passes of its own, so each row would come twice as often.
        assert len(counts) > 3_000
        assert max(counts.values()) <= 5


def test_elements_are_computed_once_for_all_trainers(tmp_path: pathlib.Path) -> None:
    log = tmp_path / "calls"

    def count(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        with log.open("ab") as file:
            file.write(b"x" * len(columns["id"]))
        return columns

    rows = ds.Dataset.range(1_000).map(count, schema=pa.schema({"id": pa.int64()}))
    dataset = rows.repeat().batch(10)
    with local_service(workers=1) as service:
        for trainer in ("a", "b", "c"):
            with iter(cached(service, trainer, "once", dataset=dataset)) as iterator:
                assert take(iterator, 100) == list(range(1_000))
    # Three trainers read the same 1,000 rows; the rest was computed ahead.
    assert log.stat().st_size <= 2_000


def test_readers_of_one_trainer_id_share_its_elements(service: LocalService) -> None:
    got: list[list[int]] = [[], []]

    def read(index: int) -> None:
        with iter(cached(service, "both", "shared")) as iterator:
            got[index] = take(iterator, 300)

    with iter(cached(service, "other", "shared")) as other:
        threads = [threading.Thread(target=read, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60.0)
        assert take(other, 100) == list(range(1_000)), "another trainer misses nothing by that"
    together = sorted(got[0] + got[1])
    assert len(together) == len(set(together)) == 6_000
    assert all(part == sorted(part) for part in got)


def test_slow_trainer_skips_evicted_elements_and_counts_them() -> None:
    with local_service(workers=0) as service:
        service.add_worker(cross_trainer_cache_size_bytes=100_000)
        options = {"rows": 10_000_000, "batch": 1_000, "max_outstanding_requests": 2}
        fast = iter(cached(service, "fast", "skip", **options))
        slow = iter(cached(service, "slow", "skip", **options))
        with fast, slow:
            begun = take(slow, 1)
            assert take(fast, 300) == list(range(300_000)), "the fast one is not held back"
            rest = take(slow, 50)
            assert begun == list(range(1_000))
            assert rest == sorted(set(rest)), "in order, none twice"
            assert missed(fast) == 0
            assert missed(slow) > 100
            assert rest[-1] >= missed(slow) * 1_000
            wait_until(lambda: shown_misses(service.target).get("slow", 0) > 100, "the status")
            assert shown_misses(service.target)["fast"] == 0


def shown_misses(target: str) -> dict[str, int]:
    with DispatcherConnection(parse_target(target)) as connection:
        jobs = connection.status()["jobs"]
    return {
        reader["trainer_id"]: reader["elements_missed"]
        for job in jobs
        for iteration in job["iterations"]
        for reader in iteration["readers"]
    }


def test_trainer_goes_on_at_restarted_worker_from_its_beginning(tmp_path: pathlib.Path) -> None:
    with process_cluster(tmp_path, workers=1) as cluster, ExitStack() as stack:
        iterator = stack.enter_context(iter(cached(cluster, "a", "restart")))
        assert take(iterator, 10) == list(range(100))
        cluster.workers[0].kill()
        cluster.add_worker()
        assert 0 in take(iterator, 500), "a new worker begins at the beginning"


def test_trainer_goes_on_after_the_only_worker_is_replaced() -> None:
    with local_service(workers=1) as service, ExitStack() as stack:
        iterator = stack.enter_context(iter(cached(service, "a", "left")))
        take(iterator, 10)
        service.workers[0].stop()
        service.add_worker()
        assert 0 in take(iterator, 200)


def test_dynamic_trainer_goes_on_after_the_only_worker_is_replaced() -> None:
    with local_service(workers=1) as service, ExitStack() as stack:
        iterator = stack.enter_context(iter(cached(service, "a", "left", policy=DYNAMIC)))
        begun = take(iterator, 10)
        service.workers[0].stop()
        service.add_worker()
        rest = take(iterator, 200)
        assert not set(begun) & set(rest), "its windows are not made again"


@pytest.mark.parametrize("policy", [DATA, FILE])
def test_static_shards_are_cached_too(tmp_path: pathlib.Path, policy: ds.ShardingPolicy) -> None:
    config = ds.DispatcherConfig(worker_addresses=["127.0.0.1:%port%"] * 2)
    paths = write_numbers(tmp_path, files=2, rows_per_file=100)
    dataset = ds.Dataset.from_parquet(paths).batch(10).repeat()
    with local_service(workers=2, config=config) as service:
        for trainer in ("a", "b"):
            with iter(cached(service, trainer, "s", dataset=dataset, policy=policy)) as iterator:
                assert set(take(iterator, 200)) == set(range(200))


def test_finite_coordinated_repeated_or_mixed_jobs_are_refused(service: LocalService) -> None:
    with pytest.raises(InvalidArgumentError, match="to be infinite, got one of cardinality 5"):
        cached(service, "a", "finite", dataset=ds.Dataset.range(5))
    with pytest.raises(InvalidArgumentError, match="exclude each other"):
        cached(service, "a", "rounds", consumer_index=0, num_consumers=2)
    remote = cached(service, "a", "twice")
    with iter(remote) as iterator:
        take(iterator, 1)
    with pytest.raises(InvalidArgumentError, match="one repetition without an end"):
        next(iter(remote))
    endless = ds.Dataset.range(ROWS).repeat().batch(10)
    plain = endless.distribute(OFF, service.target, job_name="twice")
    with pytest.raises(InvalidArgumentError, match=r"cross_trainer_cache \(existing True"):
        next(iter(plain))


def test_element_larger_than_the_cache_is_an_error() -> None:
    with local_service(workers=0) as service:
        service.add_worker(cross_trainer_cache_size_bytes=1_000)
        remote = cached(service, "a", "large", batch=1_000)
        with pytest.raises(InvalidArgumentError, match="does not fit the cross-trainer cache"):
            next(iter(remote))


def test_repeated_dataset_without_elements_is_an_error(service: LocalService) -> None:
    nothing = ds.Dataset.range(10).filter(ds.col("id") < 0).repeat().batch(2)
    remote = cached(service, "a", "empty", dataset=nothing)
    with pytest.raises(InvalidArgumentError, match="no elements on this worker"):
        next(iter(remote))
