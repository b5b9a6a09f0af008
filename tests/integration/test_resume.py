"""Resuming in mid-epoch from a saved position: before and after together, every row once.

With other numbers of workers, other dispatchers, other readers, for the tenth time, and with
operators after `distribute` that hold rows.
"""

from __future__ import annotations

import json
import pathlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import dataservice as ds
import pstrain as ps
from dataservice.client.connection import DispatcherConnection
from dataservice.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    UnavailableError,
    UnimplementedError,
)
from dataservice.vocabulary import parse_target
from pstrain.coordinator.per_worker import PerWorkerIterator
from pstrain.variables.scope import local_parameters
from tests.integration.service_cluster import (
    LocalService,
    local_service,
    process_cluster,
    write_numbers,
)
from tests.waiting import wait_until

DYNAMIC, OFF = ds.ShardingPolicy.DYNAMIC, ds.ShardingPolicy.OFF
ROWS = 3_000
# With two workers.
each_policy = pytest.mark.parametrize(("policy", "times"), [(DYNAMIC, 1), (OFF, 2)])


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    with local_service(workers=2) as shared:
        yield shared


def read(iterator: Any, batches: int = 1 << 30) -> list[int]:
    """Returns the ids of the next ``batches`` batches, or of all that are left."""
    ids: list[int] = []
    for _ in range(batches):
        batch = next(iterator, None)
        if batch is None:
            break
        ids.extend(batch.column("id").to_pylist())
    return ids


def saved(iterator: Any) -> dict[str, Any]:
    state = iterator.state_dict()
    text = json.dumps(state)
    assert json.loads(text) == state
    return json.loads(text)


def read_resuming(make: Callable[[], ds.Dataset], counts: list[int]) -> list[int]:
    """Returns the ids that a program reads which is resumed after each of ``counts`` batches."""
    ids: list[int] = []
    state: dict[str, Any] | None = None
    for count in (*counts, 1 << 30):
        with iter(make()) as iterator:
            if state is not None:
                iterator.load_state_dict(state)
            ids += read(iterator, count)
            state = saved(iterator)
    return ids


@each_policy
def test_job_resumed_ten_times_gives_every_row_once_or_once_per_worker(
    service: LocalService, policy: ds.ShardingPolicy, times: int
) -> None:
    def make() -> ds.Dataset:
        data = ds.Dataset.range(ROWS).shuffle(200).filter(ds.col("id") % 3 != 0).batch(16)
        return data.distribute(policy, service.target, max_outstanding_requests=4)

    ids = read_resuming(make, [1, 9, 0, 4, 17, 2, 1, 30, 0, 5])
    assert sorted(ids) == sorted([i for i in range(ROWS) if i % 3] * times)


@pytest.mark.parametrize(
    "after",
    [
        lambda d: d.batch(48),
        lambda d: d.map(lambda c: c).batch(7).prefetch(3),
        lambda d: d.filter(ds.col("id") >= 0).prefetch(2),
        lambda d: d.skip(0).take(ROWS).batch(100),
    ],
    ids=["batch", "map-batch-prefetch", "filter-prefetch", "take-batch"],
)
def test_operators_after_distribute_resume_without_loss(service: LocalService, after: Any) -> None:
    def make() -> ds.Dataset:
        return after(ds.Dataset.range(ROWS).distribute(DYNAMIC, service.target))  # type: ignore

    assert sorted(read_resuming(make, [3, 1, 2, 5])) == list(range(ROWS))


@each_policy
def test_rebatched_rows_of_workers_resume_without_loss(
    service: LocalService, policy: ds.ShardingPolicy, times: int
) -> None:
    def make() -> ds.Dataset:
        remote = ds.Dataset.range(ROWS).batch(32).distribute(policy, service.target)
        return remote.unbatch().batch(50).prefetch(2)

    assert sorted(read_resuming(make, [3, 1, 10])) == sorted([*range(ROWS)] * times)


def test_repeats_before_and_after_distribute_resume_without_loss(service: LocalService) -> None:
    def inside() -> ds.Dataset:
        return (
            ds.Dataset.range(500)
            .shuffle(50)
            .repeat(3)
            .batch(20)
            .distribute(DYNAMIC, service.target)
        )

    def outside() -> ds.Dataset:
        return ds.Dataset.range(500).batch(20).distribute(DYNAMIC, service.target).repeat(3)

    for make in (inside, outside):
        assert sorted(read_resuming(make, [20, 20, 7, 11])) == sorted(list(range(500)) * 3)


def test_position_at_the_end_resumes_at_the_end(service: LocalService) -> None:
    remote = ds.Dataset.range(100).batch(10).prefetch(2).distribute(DYNAMIC, service.target)
    with iter(remote) as iterator:
        assert len(read(iterator)) == 100
        state = saved(iterator)
    with iter(remote) as iterator:
        iterator.load_state_dict(state)
        assert read(iterator) == []
        assert saved(iterator)["stream"]["done"] == state["stream"]["done"]


def test_position_after_many_rows_stays_small(service: LocalService) -> None:
    remote = ds.Dataset.range(200_000).batch(100).distribute(DYNAMIC, service.target)
    with iter(remote) as iterator:
        read(iterator, 900)
        assert len(json.dumps(iterator.state_dict())) < 2_000


def test_state_of_another_dataset_or_for_a_used_iterator_is_refused(service: LocalService) -> None:
    def make(rows: int, **more: Any) -> ds.Dataset:
        return ds.Dataset.range(rows).batch(10).distribute(DYNAMIC, service.target, **more)

    with iter(make(100)) as iterator:
        read(iterator, 2)
        state = saved(iterator)
        with pytest.raises(
            FailedPreconditionError, match="elements were already taken from this iterator"
        ):
            iterator.load_state_dict(state)
        assert len(read(iterator)) == 80, "a refused state changes nothing"
    for other in (make(200), make(100, delivery="at_most_once")):
        with iter(other) as iterator, pytest.raises(InvalidArgumentError, match="another dataset"):
            iterator.load_state_dict(state)
    with iter(make(100)) as iterator:
        state["stream"]["division"] = "something else"
        with pytest.raises(InvalidArgumentError, match="counts other windows"):
            iterator.load_state_dict(state)


def test_state_is_refused_after_files_changed(
    service: LocalService, tmp_path: pathlib.Path
) -> None:
    paths = write_numbers(tmp_path, files=3, rows_per_file=100)
    remote = ds.Dataset.from_parquet(paths).batch(10)
    with iter(remote.distribute(DYNAMIC, service.target)) as iterator:
        read(iterator, 2)
        state = saved(iterator)
    write_numbers(tmp_path, files=4, rows_per_file=100)
    iterator = iter(remote.distribute(DYNAMIC, service.target))
    with iterator, pytest.raises(InvalidArgumentError, match="counts other windows"):
        iterator.load_state_dict(state)


@pytest.mark.parametrize("after", [1, 3])
def test_off_policy_resumes_with_another_number_of_workers(
    service: LocalService, after: int
) -> None:
    data = ds.Dataset.range(ROWS).shuffle(100).batch(10)
    with iter(data.distribute(OFF, service.target)) as iterator:
        ids = read(iterator, 130)
        state = saved(iterator)
    with local_service(workers=after) as fresh, iter(data.distribute(OFF, fresh.target)) as rest:
        rest.load_state_dict(state)
        ids += read(rest)
        state = saved(rest)
        with iter(data.distribute(OFF, fresh.target)) as nothing:
            nothing.load_state_dict(state)
            assert read(nothing) == [], "the end is a position"
    assert sorted(ids) == sorted([*range(ROWS)] * 2)


@pytest.mark.parametrize("protocol", ["shared_memory", "flight", None])
def test_off_policy_workers_resume_near_the_position(
    tmp_path: pathlib.Path, protocol: str | None
) -> None:
    """Otherwise they would compute all consumed elements again: days, after days of training."""
    made, in_haste = tmp_path / "made", tmp_path / "in haste"

    def slow(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if not in_haste.exists():
            time.sleep(0.01)
        with made.open("a") as file:
            file.write(f"{columns['id'][0]}\n")
        return columns

    def begin(service: LocalService) -> Any:
        data = ds.Dataset.range(ROWS).shuffle(100, seed=5).batch(2).map(slow)
        return iter(
            data.distribute(
                OFF, service.target, max_outstanding_requests=4, data_transfer_protocol=protocol
            )
        )

    with local_service(workers=1) as service, begin(service) as iterator:
        ids, bookmarks = read(iterator, 1), [None]
        while not any(bookmarks):
            ids += read(iterator, 5)
            state = saved(iterator)
            bookmarks = [bookmark for *_, bookmark in state["stream"]["tasks"]]
    (bookmark,) = bookmarks
    assert bookmark is not None
    made.write_text("")
    in_haste.touch()
    with local_service(workers=1) as service, begin(service) as rest:
        rest.load_state_dict(state)
        ids += read(rest)
    assert sorted(ids) == list(range(ROWS))
    # Plus the elements on which registration tries the function.
    assert len(made.read_text().split()) <= (ROWS - bookmark[0]) // 2 + 30


def test_positions_of_shared_off_jobs_are_unimplemented(service: LocalService) -> None:
    remote = ds.Dataset.range(100).batch(10).distribute(OFF, service.target, job_name="passes")
    with iter(remote) as iterator:
        read(iterator, 1)
        with pytest.raises(UnimplementedError, match=r"'passes'.*leave job_name out.*DYNAMIC"):
            iterator.state_dict()
    states = []
    for _ in range(2):
        with iter(ds.Dataset.range(100).batch(10).distribute(OFF, service.target)) as alone:
            states.append(alone.state_dict())
    with pytest.raises(UnimplementedError, match="cannot be merged"):
        ds.merge_states(states)


def test_position_of_shuffle_after_distribute_is_refused(service: LocalService) -> None:
    remote = ds.Dataset.range(100).distribute(DYNAMIC, service.target).shuffle(10).batch(10)
    with iter(remote) as iterator:
        read(iterator, 1)
        with pytest.raises(UnimplementedError, match="position of shuffle after distribute"):
            iterator.state_dict()


# Jobs that several readers share


def shared(service: LocalService, name: str, timeout_s: float = 20.0) -> ds.Dataset:
    data = ds.Dataset.range(ROWS).shuffle(100).batch(10)
    return data.distribute(
        DYNAMIC, service.target, job_name=name, timeout_s=timeout_s, max_outstanding_requests=4
    )


def two_readers(service: LocalService, name: str) -> tuple[list[int], list[dict[str, Any]]]:
    """Reads a part with two readers, after a third has read and left; returns rows and states."""
    with iter(shared(service, name)) as first, iter(shared(service, name)) as second:
        with iter(shared(service, name)) as third:
            ids = read(third, 5)
        for _ in range(4):
            ids += read(first, 7) + read(second, 3)
        return ids, [saved(first), saved(second)]


def test_readers_of_shared_job_resume_from_their_own_states(service: LocalService) -> None:
    ids, states = two_readers(service, "own")
    with iter(shared(service, "own")) as first, iter(shared(service, "own")) as second:
        first.load_state_dict(states[0])
        second.load_state_dict(states[1])
        ids += read(first, 20) + read(second, 20)
        states = [saved(first), saved(second)]
    with iter(shared(service, "own")) as only:
        only.load_state_dict(ds.merge_states(states))
        ids += read(only)
    assert sorted(ids) == list(range(ROWS))


def test_position_asked_for_at_once_waits_until_those_of_the_others_are_loaded(
    service: LocalService, caplog: pytest.LogCaptureFixture
) -> None:
    """As the worker processes of a loader ask for it, each before it reads."""
    ids, states = two_readers(service, "at once")
    with (
        iter(shared(service, "at once")) as first,
        iter(shared(service, "at once")) as second,
        ThreadPoolExecutor(1) as pool,
    ):
        first.load_state_dict(states[0])
        early = pool.submit(saved, first)
        wait_until(lambda: early.done() or "DescribePosition" in caplog.text, "a first answer")
        second.load_state_dict(states[1])
        states = [early.result(timeout=20), saved(second)]
    with iter(shared(service, "at once")) as only:
        only.load_state_dict(ds.merge_states(states))
        ids += read(only)
    assert sorted(ids) == list(range(ROWS))


def test_merged_states_resume_in_one_reader_on_a_fresh_dispatcher(service: LocalService) -> None:
    ids, states = two_readers(service, "merged")
    with local_service(workers=1) as fresh:
        merged = ds.merge_states(states)
        for name in ("merged", None):
            data = ds.Dataset.range(ROWS).shuffle(100).batch(10)
            with iter(data.distribute(DYNAMIC, fresh.target, job_name=name)) as only:
                only.load_state_dict(merged)
                assert sorted(ids + read(only)) == list(range(ROWS))


def test_resume_of_shared_job_names_the_missing_reader(service: LocalService) -> None:
    _, states = two_readers(service, "missing")
    missing = states[1]["stream"]["origins"][0]
    with iter(shared(service, "missing", timeout_s=2.0)) as alone:
        alone.load_state_dict(states[0])
        with pytest.raises(DeadlineExceededError, match=f"{missing}.*merge_states"):
            next(alone)


def rows_used(connection: DispatcherConnection, name: str) -> int:
    jobs = [job for job in connection.status()["jobs"] if job["name"] == name]
    return sum(i["rows_consumed"] for job in jobs for i in job["iterations"])


def test_loading_a_state_while_the_job_is_still_read_is_refused(service: LocalService) -> None:
    with iter(shared(service, "busy")) as reading:
        read(reading, 40)
        state = saved(reading)
        with DispatcherConnection(parse_target(service.target)) as connection:
            wait_until(lambda: rows_used(connection, "busy") >= 400, "the report of rows")
        iterator = iter(shared(service, "busy", timeout_s=2.0))
        message = r"still read by .*dataservice jobs delete"
        with iterator, pytest.raises(UnavailableError, match=message):
            iterator.load_state_dict(state)
        rest = read(reading)
    with iter(shared(service, "busy")) as again:
        again.load_state_dict(state)
        assert sorted(read(again)) == sorted(rest), "one that nobody reads gives way"


# Processes


@pytest.mark.parametrize(("before", "after"), [(1, 3), pytest.param(3, 1, marks=pytest.mark.long)])
def test_job_resumes_on_another_dispatcher_with_other_workers(
    tmp_path: pathlib.Path, before: int, after: int
) -> None:
    paths = write_numbers(tmp_path, files=4, rows_per_file=5_000, group_rows=500)

    def make(target: str) -> ds.Dataset:
        data = ds.Dataset.from_parquet(paths).shuffle(2_000).filter(ds.col("id") % 5 != 0)
        return data.batch(64).distribute(DYNAMIC, target).prefetch(2)

    ids: list[int] = []
    state: dict[str, Any] | None = None
    for number, workers in enumerate((before, after)):
        (tmp_path / f"logs-{number}").mkdir()
        with (
            process_cluster(tmp_path / f"logs-{number}", workers=workers) as cluster,
            iter(make(cluster.target)) as iterator,
        ):
            if state is not None:
                iterator.load_state_dict(state)
            ids += read(iterator, 60 if not number else 1 << 30)
            state = saved(iterator)
    assert sorted(ids) == [i for i in range(20_000) if i % 5]


def test_checkpoint_restores_the_position_of_its_data(
    service: LocalService, tmp_path: pathlib.Path
) -> None:
    def make() -> ds.Dataset:
        return ds.Dataset.range(ROWS).batch(10).distribute(DYNAMIC, service.target)

    with local_parameters():
        step = ps.Variable(3)
        with iter(make()) as iterator:
            ids = read(iterator, 70)
            ps.Checkpoint(step=step, data=iterator).save(tmp_path)
            read(iterator, 20)
        step.assign(9)
        with iter(make()) as iterator:
            ps.Checkpoint(step=step, data=iterator).restore(tmp_path)
            assert int(step) == 3
            assert sorted(ids + read(iterator)) == list(range(ROWS))


def test_position_at_the_end_keeps_rows_that_a_closed_reader_left_unread(
    service: LocalService,
) -> None:
    remote = ds.Dataset.range(ROWS).distribute(DYNAMIC, service.target, job_name="left since")
    with remote.iterator(0) as ending, remote.iterator(0) as leaving:
        ids = [*read(leaving, 1), *read(ending)]
        leaving.close()
        state = saved(ending)
    with remote.iterator(0) as going_on:
        going_on.load_state_dict(state)
        assert sorted(ids + read(going_on)) == list(range(ROWS))


class NoTrainers:
    """A coordinator whose trainers hold no positions: only the data service does."""

    num_trainers = 1

    def define_resource(self, resource_id: str, source: tuple[Any, ...]) -> None: ...
    def drop_resource(self, resource_id: str) -> None: ...
    def note_iterator(self, iterator: PerWorkerIterator) -> None: ...
    def positions(self, resource_id: str) -> dict[int, Any]:  # noqa: ARG002
        return {}


def test_rewound_iterators_read_finished_epochs_again(service: LocalService) -> None:
    dataset_id = ds.register_dataset(service.target, ds.Dataset.range(100))

    def dataset() -> ds.Dataset:
        return ds.from_dataset_id(DYNAMIC, service.target, dataset_id, job_name="begin-again")

    iterators = [PerWorkerIterator(dataset, epoch, NoTrainers(), print) for epoch in range(2)]
    for _ in range(3):
        for iterator in iterators:
            iterator.rewind()
        for iterator in iterators:
            with dataset().iterator(iterator.epoch) as reader:
                assert sorted(read(reader)) == list(range(100))
        # The next readers come only when no reader of this pass is left.
        wait_until(lambda: not readers_of(service, "begin-again"), "the readers to be gone")


def readers_of(service: LocalService, job: str) -> int:
    with DispatcherConnection(parse_target(service.target)) as connection:
        jobs = [each for each in connection.status()["jobs"] if job in str(each["name"])]
    return sum(len(i["readers"]) for each in jobs for i in each["iterations"])


def test_position_is_exact_after_prefetch_reached_the_end_of_a_shared_job(
    service: LocalService,
) -> None:
    def make() -> ds.Dataset:
        remote = (
            ds.Dataset.range(400)
            .batch(10)
            .distribute(DYNAMIC, service.target, job_name="ahead", max_outstanding_requests=2)
        )
        return remote.prefetch(100)

    with iter(make()) as iterator:
        ids = read(iterator, 1)
        thread = iterator._stream._stream._thread
        assert thread is not None
        wait_until(lambda: not thread.is_alive(), "the end of reading ahead")
        ids += read(iterator, 4)
        state = saved(iterator)
    with iter(make()) as iterator:
        iterator.load_state_dict(state)
        assert sorted(ids + read(iterator)) == list(range(400))
