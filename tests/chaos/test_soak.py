"""gRPC and Flight, servers and clients, share one process for a while without starvation.

All parts of a data service run in this process, with many streams and with constant calls to the
dispatcher, as heartbeats are. For 2 s by default, 20 s if `--chaos-seeds` asks for the long set.
"""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import pyarrow as pa
import pytest

import dataservice as ds
from dataservice.client.connection import DispatcherConnection
from dataservice.errors import DataServiceError
from dataservice.vocabulary import parse_target
from tests.integration.service_cluster import LocalService, local_service
from tests.waiting import wait_until

pytestmark = pytest.mark.chaos

READERS = 8
WORKERS = 2
BATCH_ROWS = 40_000
# No thread may pause for longer; a worker whose heartbeat pauses loses its lease, below.
LONGEST_GAP_S = 20.0
LEASE_MS = 20_000
LEAST_BEATS = 5


class RepeatedAction:
    """A thread that repeats an action and records the longest time between two of them."""

    def __init__(self, name: str) -> None:
        self.count = 0
        self.longest_s = 0.0
        self.error: BaseException | None = None
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._guarded, name=name)
        self._last_s = time.monotonic()

    def _guarded(self) -> None:
        try:
            self.run()
        except (DataServiceError, AssertionError) as error:
            self.error = error

    def run(self) -> None:
        raise NotImplementedError

    def beat(self) -> None:
        now_s = time.monotonic()
        self.longest_s = max(self.longest_s, now_s - self._last_s)
        self._last_s = now_s
        self.count += 1


class Reading(RepeatedAction):
    """A reader of an endless dataset from all workers."""

    def __init__(self, index: int, target: str) -> None:
        super().__init__(f"reading-{index}")
        endless = ds.Dataset.range(10 * BATCH_ROWS).repeat().batch(BATCH_ROWS)
        self._remote = endless.distribute(
            ds.ShardingPolicy.OFF, target, data_transfer_protocol="flight"
        )

    def run(self) -> None:
        with iter(self._remote) as iterator:
            for batch in iterator:
                check_rows(batch)
                self.beat()
                if self.stop.is_set():
                    return


class Calling(RepeatedAction):
    """A client that asks the dispatcher for its status, on a channel of its own."""

    def __init__(self, target: str) -> None:
        super().__init__("calling")
        self._target = parse_target(target)
        self.worker_ids: set[str] = set()

    def run(self) -> None:
        with DispatcherConnection(self._target) as connection:
            while not self.stop.wait(0.02):
                self.worker_ids |= {w["worker_id"] for w in connection.status()["workers"]}
                self.beat()


def check_rows(batch: pa.RecordBatch) -> None:
    ids = batch.column("id").to_numpy()
    assert len(ids) == BATCH_ROWS
    assert ids[0] % BATCH_ROWS == 0
    assert np.array_equal(ids, np.arange(ids[0], ids[0] + BATCH_ROWS))


def run_together(service: LocalService, seconds: float) -> list[RepeatedAction]:
    """Reads and calls for ``seconds`` and until all have made progress; returns the records."""
    pulses: list[RepeatedAction] = [Reading(index, service.target) for index in range(READERS)]
    pulses.append(Calling(service.target))
    for pulse in pulses:
        pulse.thread.start()
    threading.Event().wait(seconds)
    wait_until(
        lambda: all(pulse.count >= LEAST_BEATS or pulse.error for pulse in pulses), "all to go on"
    )
    for pulse in pulses:
        pulse.stop.set()
    for pulse in pulses:
        pulse.thread.join(60)
        assert not pulse.thread.is_alive(), pulse.thread.name
    return pulses


def soak(seconds: float) -> None:
    config = ds.DispatcherConfig(worker_timeout_ms=LEASE_MS)
    with local_service(workers=WORKERS, config=config) as service:
        pulses = run_together(service, seconds)
    for pulse in pulses:
        assert pulse.error is None, f"{pulse.thread.name}: {pulse.error!r}"
        assert pulse.longest_s < LONGEST_GAP_S, pulse.thread.name
    calling = pulses[-1]
    assert isinstance(calling, Calling)
    assert len(calling.worker_ids) == WORKERS, "a worker missed its lease and registered again"


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def own_threads() -> set[threading.Thread]:
    """Returns the threads that Python started.

    Each thread of Flight that has run Python stays listed in ``threading``, even after its end.
    """
    return {t for t in threading.enumerate() if not isinstance(t, threading._DummyThread)}


def test_streams_and_calls_share_a_process_without_starvation_or_leaks(
    request: pytest.FixtureRequest,
) -> None:
    is_long = request.config.getoption("--chaos-seeds") > 0
    # A first run makes what the transports keep for the life of the process.
    soak(0.5)
    threads, files = own_threads(), open_files()
    soak(20.0 if is_long else 2.0)
    wait_until(lambda: own_threads() <= threads, "the end of all threads")
    wait_until(lambda: open_files() < files + READERS, "the closing of sockets")
