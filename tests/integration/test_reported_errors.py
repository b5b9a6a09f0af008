"""Errors that reach a reader: failing functions, files and elements, and impossible requests."""

from __future__ import annotations

import itertools
import logging
import pathlib
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

import dataservice as ds
from dataservice.errors import (
    DataLossError,
    DeadlineExceededError,
    InvalidArgumentError,
    NotFoundError,
    SchemaError,
    UnauthenticatedError,
    UnavailableError,
    UserFunctionError,
)
from dataservice.runtime.checksum import checksum
from tests.integration.service_cluster import LocalService, local_service, read_ids, write_numbers
from tests.ports import free_port

DYNAMIC = ds.ShardingPolicy.DYNAMIC
OFF = ds.ShardingPolicy.OFF


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    with local_service(workers=2) as running:
        yield running


def test_function_error_is_raised_on_each_read_and_the_worker_lives(
    service: LocalService,
) -> None:
    def explode(_columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        raise ZeroDivisionError("my own mistake")

    schema = pa.schema({"id": pa.int64()})
    remote = ds.Dataset.range(1_000).map(explode, schema=schema)
    iterator = iter(remote.distribute(DYNAMIC, service.target))
    with pytest.raises(UserFunctionError) as caught:
        next(iterator)
    error = caught.value
    assert "my own mistake" in str(error)
    assert str(error).endswith(f"on data worker {error.worker}")
    assert "explode" in error.user_traceback
    assert error.worker in {worker.address for worker in service.workers}
    with pytest.raises(UserFunctionError):
        next(iterator)
    again = ds.Dataset.range(10).distribute(DYNAMIC, service.target)
    assert sorted(read_ids(again)) == list(range(10))


@pytest.mark.parametrize("policy", [DYNAMIC, OFF])
def test_function_that_exits_is_reported_and_the_worker_lives(
    service: LocalService, policy: ds.ShardingPolicy
) -> None:
    def leave(_columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        sys.exit("enough")

    remote = ds.Dataset.range(1_000).map(leave, schema=pa.schema({"id": pa.int64()}))
    with pytest.raises(UserFunctionError, match="map raised SystemExit: enough"):
        read_ids(remote.distribute(policy, service.target))
    again = ds.Dataset.range(10).distribute(DYNAMIC, service.target)
    assert sorted(read_ids(again)) == list(range(10))


def test_function_error_in_a_batch_names_its_files(
    service: LocalService, tmp_path: pathlib.Path
) -> None:
    def explode(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if 12 in columns["id"]:
            raise ValueError("twelve")
        return columns

    files = ds.Dataset.from_parquet(write_numbers(tmp_path, files=2, rows_per_file=10))
    remote = files.shuffle(5, seed=1).batch(4).map(explode).distribute(DYNAMIC, service.target)
    with pytest.raises(UserFunctionError, match="a batch of rows from ") as caught:
        list(remote)
    assert ".parquet row group 0 rows 0..9" in caught.value.source


@pytest.mark.parametrize("error", [NotFoundError, ValueError])
def test_unknown_dataset_id_is_not_found(service: LocalService, error: type[Exception]) -> None:
    with pytest.raises(error, match="Dataset id 4711 not found"):
        ds.from_dataset_id(DYNAMIC, service.target, 4711)


def test_mismatched_element_spec_is_refused(service: LocalService) -> None:
    dataset_id = ds.register_dataset(service.target, ds.Dataset.range(3))
    with pytest.raises(SchemaError, match="element_spec differs"):
        ds.from_dataset_id(
            OFF, service.target, dataset_id, element_spec=pa.schema({"id": pa.int32()})
        )


def test_job_name_with_another_policy_is_refused(service: LocalService) -> None:
    dataset = ds.Dataset.range(10)
    held = iter(dataset.distribute(DYNAMIC, service.target, job_name="taken"))
    with pytest.raises(InvalidArgumentError, match=r"taken.*policy"):
        iter(dataset.distribute(OFF, service.target, job_name="taken"))
    held.close()


def test_plan_that_cannot_be_split_is_refused_at_distribute(service: LocalService) -> None:
    with pytest.raises(InvalidArgumentError, match="take"):
        ds.Dataset.range(10).batch(2).take(2).distribute(DYNAMIC, service.target)


def test_distributing_a_distributed_dataset_is_refused(service: LocalService) -> None:
    remote = ds.Dataset.range(10).distribute(DYNAMIC, service.target)
    with pytest.raises(InvalidArgumentError, match="already"):
        remote.distribute(OFF, service.target)


def test_wrong_token_is_refused(service: LocalService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATASERVICE_TOKEN", "not-the-token")
    with pytest.raises(UnauthenticatedError):
        ds.register_dataset(service.target, ds.Dataset.range(3), timeout_s=30)


def test_absent_dispatcher_is_given_up_at_the_timeout_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    address = f"127.0.0.1:{free_port()}"
    began_s = time.monotonic()
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises((UnavailableError, DeadlineExceededError), match=address),
    ):
        ds.register_dataset(address, ds.Dataset.range(3), timeout_s=3)
    assert time.monotonic() - began_s < 30
    assert f"waiting for the dispatcher at {address}" in caplog.text


def test_dispatcher_that_starts_late_is_waited_for() -> None:
    port = free_port()
    ids: list[str] = []

    def register() -> None:
        ids.append(ds.register_dataset(f"127.0.0.1:{port}", ds.Dataset.range(3), timeout_s=60))

    registering = threading.Thread(target=register)
    registering.start()
    with ds.DispatchServer(ds.DispatcherConfig(port=port)):
        registering.join(60)
    assert ids


def test_damaged_elements_are_replayed_not_delivered(
    service: LocalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = itertools.count()

    def sometimes_wrong(body: pa.Buffer) -> int:
        return checksum(body) ^ (next(calls) in (3, 40))

    monkeypatch.setattr("dataservice.worker.outgoing.checksum", sometimes_wrong)
    remote = (
        ds.Dataset.range(20_000)
        .batch(100)
        .distribute(DYNAMIC, service.target, data_transfer_protocol="flight")
    )
    assert sorted(read_ids(remote)) == list(range(20_000))
    assert next(calls) > 40


def test_repeatedly_damaged_streams_are_data_loss(
    service: LocalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dataservice.worker.outgoing.checksum", lambda _body: 0)
    monkeypatch.setattr("dataservice.client.streams.MAX_DAMAGED_STREAMS", 2)
    remote = (
        ds.Dataset.range(1_000)
        .batch(100)
        .distribute(DYNAMIC, service.target, data_transfer_protocol="flight")
    )
    with pytest.raises(DataLossError, match="checksum"):
        read_ids(remote)
