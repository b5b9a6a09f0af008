"""Plays one schedule with real processes and reports what went wrong.

Readers are threads of this process, except the one that will be killed. Invariant: each wait
(for the first row, the end, a snapshot, the readers' threads) lasts at most `PATIENCE_S`.
"""

from __future__ import annotations

import pathlib
import shutil
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import dataservice as ds
from dataservice.errors import DataServiceError
from tests.chaos.cluster import ChaosCluster
from tests.chaos.history import History, damage, missing_rows, shown
from tests.chaos.schedule import Schedule

PATIENCE_S = 90.0
RESTART_S = 30.0
"""A generous limit for a restarted dispatcher; `recoveries_s` has the times that were measured."""
_JOB = "shared"
_FILES = 8
_POLL_S = 0.02


class Result(NamedTuple):
    """The outcome of a run. `recoveries_s`: how long each dispatcher restart stopped the work."""

    faults: tuple[str, ...]
    seconds: float
    recoveries_s: tuple[float, ...]


def dataset_of(schedule: Schedule, folder: pathlib.Path) -> ds.Dataset:
    """Returns rows with ids from 0 on, which take one thread `schedule.seconds` to compute."""
    row_s = schedule.seconds / schedule.rows
    every = schedule.bad_every

    def take_time(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if every is not None and not np.all(columns["id"] % every):
            raise ValueError("a bad row")
        time.sleep(row_s * len(columns["id"]))
        return columns

    if schedule.source == "range":
        dataset = ds.Dataset.range(schedule.rows)
    else:
        ids = np.arange(schedule.rows)
        for index, part in enumerate(np.array_split(ids, _FILES)):
            pq.write_table(pa.table({"id": part}), folder / f"{index}.parquet", row_group_size=97)
        dataset = ds.Dataset.from_parquet(str(folder / "*.parquet"))
    dataset = dataset.map(take_time, schema=pa.schema({"id": pa.int64()}))
    if schedule.is_shuffled:
        dataset = dataset.shuffle(schedule.rows // 10, seed=5)
    return dataset.batch(schedule.batch_rows)


class _Readers:
    """Threads that read one job, each again and again past its end, until they are stopped."""

    def __init__(self, datasets: list[ds.Dataset], history: History) -> None:
        self.faults: list[str] = []
        self.left_out: dict[str, int] = {}
        self._history = history
        self._stop = threading.Event()
        self._iterators: list[Any] = []
        self._names = [f"reader-{index}" for index in range(len(datasets))]
        self._threads = [
            threading.Thread(target=self._read, args=(dataset, name), name=name, daemon=True)
            for dataset, name in zip(datasets, self._names, strict=True)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def _read(self, dataset: ds.Dataset, name: str) -> None:
        try:
            with iter(dataset) as iterator:
                self._iterators.append(iterator)
                while not self._stop.is_set():
                    for batch in iterator:
                        self._history.note_rows(batch.column("id").to_pylist())
                        if self._stop.is_set():
                            return
                    self.left_out[name] = iterator.stats()["skipped"]["function_rows"]
                    self._history.note_end(name)
                    self._stop.wait(0.05)
        except DataServiceError as error:
            if not self._stop.is_set():
                self.faults.append(f"{name} fails: {error!r}")

    def have_ended(self) -> bool:
        """True if every reader has seen the end after the last row that any reader got."""
        ends = [self._history.ended_s(name) for name in self._names]
        return all(end is not None and end > self._history.last_s for end in ends)

    def stop(self, timeout_s: float) -> None:
        """Closes all iterators and waits for the threads; one that does not stop is a fault."""
        self._stop.set()
        for iterator in self._iterators:
            iterator.close()
        deadline_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
            if thread.is_alive():
                self.faults.append(f"I10: {thread.name} does not stop")


def play(schedule: Schedule, folder: pathlib.Path) -> Result:
    """Runs a schedule; leaves logs, journal and rows in `folder`, which it first empties."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    history = History()
    with ChaosCluster(schedule, folder) as cluster:
        cluster.start()
        dataset = dataset_of(schedule, folder)
        if schedule.is_saved:
            return _play_saving(cluster, schedule, dataset)
        dataset_id = ds.register_dataset(cluster.target, dataset)
        if schedule.has_doomed_reader:
            cluster.start_doomed(dataset_id, _JOB)

        def remote() -> ds.Dataset:
            # Each reader needs its own: a dataset that is iterated again is another repetition.
            return ds.from_dataset_id(
                ds.ShardingPolicy.DYNAMIC,
                cluster.target,
                dataset_id,
                job_name=_JOB,
                data_transfer_protocol=schedule.protocol,
                on_error=schedule.on_error,
            )

        readers = _Readers([remote() for _ in range(schedule.readers)], history)
        began_s = time.monotonic()
        readers.start()
        cluster.release_doomed()
        try:
            faults = _drive(cluster, schedule, readers, history)
        finally:
            readers.stop(PATIENCE_S)
        return Result(
            tuple(dict.fromkeys((*faults, *readers.faults, *cluster.crashes()))),
            time.monotonic() - began_s,
            tuple(cluster.recoveries_s),
        )


def _play_saving(cluster: ChaosCluster, schedule: Schedule, dataset: ds.Dataset) -> Result:
    """Has the workers save the rows, and judges what is on disk at the end."""
    path = str(cluster.folder / "saved")
    began_s = time.monotonic()
    faults: list[str] = []
    try:
        snapshot = ds.save(dataset, path, cluster.target)
        _act_all(cluster, schedule)
        snapshot.wait(PATIENCE_S)
        rows = ds.Dataset.load(path).to_table()["id"].to_pylist()
        faults += damage(schedule.expected, rows, [])
        if missing := missing_rows(schedule.expected, rows, []):
            faults.append(f"I1: rows that were not saved: {shown(missing)}")
    except DataServiceError as error:
        faults.append(f"saving fails: {error!r}")
    seconds = time.monotonic() - began_s
    return Result((*faults, *cluster.crashes()), seconds, tuple(cluster.recoveries_s))


def _act_all(cluster: ChaosCluster, schedule: Schedule) -> None:
    """Carries out the schedule's actions, each at its time."""
    zero_s = time.monotonic()
    for action in schedule.actions:
        time.sleep(max(0.0, zero_s + action.at_s - time.monotonic()))
        cluster.act(action)


def _drive(
    cluster: ChaosCluster, schedule: Schedule, readers: _Readers, history: History
) -> list[str]:
    """Carries out the schedule, waits for the end, and returns the faults that it found."""
    has_begun = _wait(
        lambda: history.first_s or cluster.written_by_doomed() or readers.faults, PATIENCE_S
    )
    if not has_begun:
        return ["I10: no row ever came"]
    _act_all(cluster, schedule)

    def missing() -> set[int]:
        return missing_rows(schedule.expected, history.rows(), cluster.written_by_doomed())

    def damaged() -> list[str]:
        return readers.faults + damage(
            schedule.expected, history.rows(), cluster.written_by_doomed()
        )

    is_over = _wait(lambda: damaged() or (readers.have_ended() and not missing()), PATIENCE_S)
    faults = damaged()
    if not is_over:
        faults.append(f"I10: not all was over {PATIENCE_S:.0f} s after the last action")
        faults.append(f"rows that never came: {shown(missing())}; status: {cluster.status()}")
    return faults + _check_recoveries(cluster) + _check_left_out(schedule, readers)


def _check_left_out(schedule: Schedule, readers: _Readers) -> list[str]:
    """Checks that each left-out row was counted once, by the reader that would have got it."""
    counted, expected = sum(readers.left_out.values()), schedule.rows - len(schedule.expected)
    if schedule.has_doomed_reader or counted == expected:
        return []
    return [f"{expected} rows were left out, and the readers counted {readers.left_out}"]


def _check_recoveries(cluster: ChaosCluster) -> list[str]:
    """Names the restarts that took too long, unless another fault may be the reason."""
    if not cluster.schedule.restarts_only_dispatcher:
        return []
    return [
        f"the dispatcher needed {seconds:.1f} s to go on, more than {RESTART_S:.0f} s"
        for seconds in cluster.recoveries_s
        if seconds > RESTART_S
    ]


def _wait(condition: Callable[[], object], timeout_s: float) -> bool:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_POLL_S)
    return True
