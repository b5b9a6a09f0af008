"""The number of workers that would be enough, as estimated with real readers and workers."""

from __future__ import annotations

import json
import pathlib
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dataservice as ds
from dataservice.__main__ import main
from dataservice.client.connection import DispatcherConnection
from dataservice.dispatcher.autoscale import Estimate
from dataservice.dispatcher.scaling_command import ScalingCommand, run_command
from dataservice.vocabulary import parse_target
from tests.integration.service_cluster import local_service
from tests.waiting import is_running, wait_until

OFF, DYNAMIC = ds.ShardingPolicy.OFF, ds.ShardingPolicy.DYNAMIC


def endless() -> ds.Dataset:
    """Returns endless data: an estimate takes a while, and a job that has ended gets none."""
    return ds.Dataset.range(10**7).repeat()


def slow(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    time.sleep(0.01)
    return columns


def estimate_at(target: str) -> dict[str, Any] | None:
    with DispatcherConnection(parse_target(target)) as connection:
        estimate: dict[str, Any] | None = connection.status()["workers_enough"]
    return estimate


def reading(dataset: ds.Dataset, pause_s: float, stop: threading.Event) -> threading.Thread:
    def read() -> None:
        with iter(dataset) as iterator:
            for _ in iterator:
                if stop.wait(pause_s):
                    return

    thread = threading.Thread(target=read)
    thread.start()
    return thread


@pytest.mark.parametrize("policy", [OFF, DYNAMIC])
def test_fast_reader_raises_the_estimate_and_slow_reader_lowers_it(
    policy: ds.ShardingPolicy, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    note = tmp_path / "note"
    config = ds.DispatcherConfig(
        on_workers_enough=f'echo "$DATASERVICE_WORKERS_NOW $DATASERVICE_WORKERS_ENOUGH" > {note}',
        workers_enough_stay_ms=200,
    )
    rows = endless().map(slow, schema=pa.schema({"id": pa.int64()}))
    cases: list[tuple[ds.Dataset, float, Callable[[dict[str, Any]], bool]]] = [
        (rows.batch(5_000), 0.0, lambda found: found["enough"] > 2),
        (endless().batch(100), 0.02, lambda found: found["enough"] < 2),
    ]
    for dataset, pause_s, is_right in cases:
        note.unlink(missing_ok=True)
        with local_service(workers=0, config=config) as service:
            for _ in range(2):
                service.add_worker(threads=1)
            stop = threading.Event()
            thread = reading(dataset.distribute(policy, service.target), pause_s, stop)

            def estimated(target: str = service.target, is_right: Any = is_right) -> bool:
                found = estimate_at(target)
                return found is not None and is_right(found)

            def told(is_right: Any = is_right) -> bool:
                words = note.read_text().split() if note.exists() else []
                return len(words) == 2 and words[0] == "2" and is_right({"enough": int(words[1])})

            try:
                wait_until(estimated, "the estimate")
                wait_until(told, "the command")
                assert main(["status", parse_target(service.target)]) == 0
            finally:
                stop.set()
                thread.join(60.0)
        assert " would be enough (" in capsys.readouterr().out


def test_status_as_json_holds_the_estimate_and_its_reason() -> None:
    with local_service(workers=1) as service:
        assert estimate_at(service.target) is None
        stop = threading.Event()
        rows = endless().map(slow, schema=pa.schema({"id": pa.int64()})).batch(100)
        thread = reading(rows.distribute(OFF, service.target), 0.0, stop)
        try:
            wait_until(lambda: estimate_at(service.target) is not None, "an estimate")
            found = estimate_at(service.target)
        finally:
            stop.set()
            thread.join(60.0)
        assert found is not None
        assert set(found) == {"now", "enough", "wait_share", "busy_share", "reason"}
        assert json.dumps(found)


NEVER_STOPPED = threading.Event()


def test_failed_command_is_reported_with_its_output() -> None:
    fault, output = run_command("echo no such cluster; exit 3", {}, 5.0, NEVER_STOPPED)
    assert (fault, output) == ("ended with status 3", "no such cluster")
    assert run_command("true", {}, 5.0, NEVER_STOPPED) == ("", "")


def test_hanging_command_is_killed_with_its_children(tmp_path: pathlib.Path) -> None:
    note = tmp_path / "pid"
    started_s = time.monotonic()
    command = f"sleep 600 & echo $! > {note}; echo waiting; sleep 600"
    fault, output = run_command(command, {"PATH": "/bin:/usr/bin"}, 1.0, NEVER_STOPPED)
    assert (fault, output) == ("was killed after 1 s", "waiting")
    stopping = threading.Event()
    stopping.set()
    assert run_command("sleep 600", {}, 600.0, stopping)[0] == "was killed at the end"
    assert time.monotonic() - started_s < 60.0
    wait_until(lambda: not is_running(int(note.read_text())), "the end of what it started")


def test_scaling_command_survives_failed_looks_and_commands(
    caplog: pytest.LogCaptureFixture,
) -> None:
    looks: list[int] = []

    def look() -> Estimate | None:
        looks.append(len(looks))
        if len(looks) == 1:
            raise OSError("not now")
        return Estimate(1, 1 + len(looks), 0.5, 1.0, "input-bound")

    watcher = ScalingCommand("exit 7", look, target="grpc://a:1", stay_s=0.0, timeout_s=5.0)
    watcher.start()
    try:
        wait_until(lambda: "ended with status 7" in caplog.text, "the second look")
        assert "not now" in caplog.text
    finally:
        watcher.stop()
