"""Scripts that run again, trainers that join late, and the fate of jobs that nobody reads."""

from __future__ import annotations

import logging
import os
import pathlib
import time
from collections.abc import Iterator

import numpy as np
import pytest

import dataservice as ds
from dataservice.__main__ import main
from dataservice.client.connection import DispatcherConnection
from dataservice.errors import FailedPreconditionError
from dataservice.vocabulary import parse_target
from tests.integration.service_cluster import LocalService, local_service, read_ids
from tests.programs import run_program, start_program
from tests.waiting import wait_until

OFF, DYNAMIC = ds.ShardingPolicy.OFF, ds.ShardingPolicy.DYNAMIC
SCRIPT = """
import sys
import dataservice as ds
remote = ds.Dataset.range(1_000).batch(10).distribute(sys.argv[2], sys.argv[1], job_name="train")
for epoch in range(2):
    print(epoch, sum(batch.num_rows for batch in remote))
"""


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    with local_service(workers=1) as running:
        yield running


def test_script_run_again_is_told_its_job_was_read_to_its_end(
    service: LocalService, capsys: pytest.CaptureFixture[str]
) -> None:
    first = run_program(SCRIPT, service.target, "distributed_epoch")
    assert first.stdout.split() == ["0", "1000", "1", "1000"], first.stderr
    again = run_program(SCRIPT, service.target, "distributed_epoch")
    assert again.returncode != 0
    assert again.stdout == ""
    assert "repetition 0 of job train was read to its end" in again.stderr
    assert "dataservice jobs delete" in again.stderr
    address = parse_target(service.target)
    assert main(["jobs", "list", address]) == 0
    listed = capsys.readouterr().out
    assert "1 ended" in listed
    assert "finished" in listed
    assert main(["jobs", "delete", address, "train"]) == 0
    remote = ds.Dataset.range(1_000).batch(10).distribute(DYNAMIC, address, job_name="train")
    assert len(read_ids(remote)) == 1_000


def test_trainer_of_another_host_that_starts_after_the_end_gets_no_rows(
    service: LocalService,
) -> None:
    script = SCRIPT.replace('"train"', '"late-host"')
    first = run_program(script, service.target, "distributed_epoch")
    assert first.stdout.split() == ["0", "1000", "1", "1000"], first.stderr
    elsewhere = "import socket\nsocket.gethostname = lambda: 'another-host'\n" + script
    late = run_program(elsewhere, service.target, "distributed_epoch")
    assert late.stdout.split() == ["0", "0", "1", "0"], late.stderr
    assert "before this program started, on another host" in late.stderr


@pytest.mark.parametrize("policy", [OFF, DYNAMIC])
def test_second_reading_of_a_finished_repetition_is_refused(
    service: LocalService, policy: ds.ShardingPolicy
) -> None:
    for epoch in range(2):
        remote = ds.Dataset.range(100).distribute(policy, service.target, job_name=f"r{policy}")
        if epoch:
            with pytest.raises(FailedPreconditionError, match=f"read to its end .* {os.getpid()}"):
                next(iter(remote))
        else:
            assert len(read_ids(remote)) == 100


def named(service: LocalService, dataset_id: str, job: str) -> ds.Dataset:
    return ds.from_dataset_id(DYNAMIC, service.target, dataset_id, job_name=job)


@pytest.mark.parametrize("policy", [OFF, DYNAMIC])
def test_late_trainer_gets_an_empty_epoch_and_then_its_part(
    service: LocalService, policy: ds.ShardingPolicy
) -> None:
    dataset_id = ds.register_dataset(service.target, ds.Dataset.range(1_000).batch(10))
    first, late, other = (
        ds.from_dataset_id(policy, service.target, dataset_id, job_name=f"late-{policy}")
        for _ in range(3)
    )
    assert sorted(read_ids(first)) == list(range(1_000))
    assert read_ids(other) == []
    with pytest.raises(FailedPreconditionError, match="delivers each repetition once"):
        read_ids(other.take(1))
    with iter(first) as second_epoch:
        got = next(second_epoch).column("id").to_pylist()
        assert read_ids(late) == []
        got += read_ids(late)
        got += [i for batch in second_epoch for i in batch.column("id").to_pylist()]
    assert sorted(got) == list(range(1_000))


def test_late_reader_of_endless_repetitions_joins_the_current_one(
    service: LocalService,
) -> None:
    dataset_id = ds.register_dataset(service.target, ds.Dataset.range(10).batch(10))
    first, late = (iter(named(service, dataset_id, "endless").repeat()) for _ in range(2))
    with first, late:
        for _ in range(3):
            next(first)
        assert sorted(next(late).column("id").to_pylist()) == list(range(10))


def test_rest_of_an_earlier_run_is_read_with_a_warning(
    service: LocalService, caplog: pytest.LogCaptureFixture
) -> None:
    dataset_id = ds.register_dataset(service.target, ds.Dataset.range(10_000).batch(10))
    with iter(named(service, dataset_id, "left")) as iterator:
        got = next(iterator).column("id").to_pylist()
    with caplog.at_level(logging.WARNING):
        got += read_ids(named(service, dataset_id, "left"))
    assert sorted(got) == list(range(10_000))
    assert any("was partly read by process" in record.message for record in caplog.records)


def test_rows_read_under_policy_off_go_to_no_later_reader(
    service: LocalService, tmp_path: pathlib.Path
) -> None:
    gate = tmp_path / "gate"

    def slowly(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        time.sleep(0.02)  # so that the reader has confirmed nothing yet
        # Closing loses what a reader has fetched ahead; the gate leaves it nothing to fetch.
        while columns["id"][0] >= 50 and not gate.exists():
            time.sleep(0.005)
        return columns

    slow = ds.Dataset.range(80).batch(10).map(slowly)
    first, other = (slow.distribute(OFF, service.target, job_name="slow") for _ in range(2))
    with iter(first) as iterator:
        got = [i for _ in range(5) for i in next(iterator).column("id").to_pylist()]
    gate.touch()
    assert sorted(got + read_ids(other)) == list(range(80))


def test_resume_from_saved_state_warns_of_no_earlier_reading(
    service: LocalService, caplog: pytest.LogCaptureFixture
) -> None:
    dataset_id = ds.register_dataset(service.target, ds.Dataset.range(10_000).batch(10))
    with iter(named(service, dataset_id, "resumed")) as iterator:
        got = next(iterator).column("id").to_pylist()
        state = iterator.state_dict()
    with caplog.at_level(logging.WARNING), iter(named(service, dataset_id, "resumed")) as again:
        again.load_state_dict(state)
        got += [i for batch in again for i in batch.column("id").to_pylist()]
    assert sorted(got) == list(range(10_000))
    assert not [record for record in caplog.records if "was partly read by" in record.message]


def jobs_of(target: str) -> list[dict[str, object]]:
    with DispatcherConnection(parse_target(target)) as connection:
        jobs: list[dict[str, object]] = connection.status()["jobs"]
    return jobs


def test_idle_job_is_collected_and_frees_its_name() -> None:
    config = ds.DispatcherConfig(job_gc_timeout_ms=200, job_gc_check_interval_ms=50)
    with local_service(workers=1, config=config) as service:
        dataset_id = ds.register_dataset(service.target, ds.Dataset.range(100).batch(10))
        remote = named(service, dataset_id, "idle")
        assert len(read_ids(remote)) == 100
        with iter(remote) as half:
            next(half)
        with pytest.raises(FailedPreconditionError, match="read to its end"):
            read_ids(named(service, dataset_id, "idle"))
        wait_until(lambda: not jobs_of(service.target), "the collection")
        assert len(read_ids(named(service, dataset_id, "idle"))) == 100


def test_private_jobs_of_a_killed_program_are_collected() -> None:
    script = (
        "import sys, dataservice as ds\n"
        "iterators = []\n"
        "for mode in ('parallel_epochs', 'distributed_epoch'):\n"
        "    remote = ds.Dataset.range(10**6).batch(10).distribute(mode, sys.argv[1])\n"
        "    iterators.append(iter(remote))\n"
        "    next(iterators[-1])\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    config = ds.DispatcherConfig(client_timeout_ms=1_000)
    with local_service(workers=1, config=config) as service:
        with start_program(script, service.target) as program:
            assert program.stdout is not None
            assert program.stdout.readline() == "ready\n"
            assert len(jobs_of(service.target)) == 2
            program.kill()
        wait_until(lambda: not jobs_of(service.target), "the collection")


def test_finished_repetition_is_remembered_after_dispatcher_restart(tmp_path: pathlib.Path) -> None:
    config = ds.DispatcherConfig(work_dir=tmp_path, fault_tolerant_mode=True)
    dataset = ds.Dataset.range(1_000).batch(10)
    with local_service(workers=1, config=config) as service:
        assert len(read_ids(dataset.distribute(DYNAMIC, service.target, job_name="train"))) == 1_000
    with ds.DispatchServer(config) as dispatcher:
        remote = dataset.distribute(DYNAMIC, dispatcher.target, job_name="train")
        with pytest.raises(FailedPreconditionError, match="read to its end"):
            next(iter(remote))
