"""Ctrl-C while the data service is read: the iterator goes on, each row once, or is saved."""

from __future__ import annotations

import json
import linecache
import os
import pathlib
import signal
import subprocess
import sys
from collections import Counter
from types import FrameType
from typing import Any

import pytest

import dataservice as ds
from dataservice.client.connection import DispatcherConnection
from dataservice.client.read_spec import ReadSpec
from dataservice.client.reader import ServiceReader
from dataservice.errors import FailedPreconditionError
from dataservice.runtime.process.interrupts import HeldInterrupts
from tests.integration.service_cluster import local_service, process_cluster

ROWS = 6_000
_PROGRAM = """
import json, signal, sys, time
import dataservice as ds

INTERRUPTS = {signal.SIGINT}
signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)  # they come while it reads, not elsewhere

target, state_path, *resumes = sys.argv[1:]
data = ds.Dataset.range(6_000).map(lambda c: time.sleep(0.005) or c).batch(50)
it = iter(data.distribute(ds.ShardingPolicy.DYNAMIC, target).batch(130))
if resumes:
    with open(state_path) as file:
        it.load_state_dict(json.load(file))
seen, told = [], []
print("ready", flush=True)
more = True
while more:
    batch, interrupted = None, False
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTS)
        for batch in it:
            break
        signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)
    except KeyboardInterrupt:
        signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)
        interrupted = True
    if batch is not None:
        seen += batch["id"].to_pylist()
    if interrupted:
        told.append(list(seen))
        with open(state_path, "w") as file:
            json.dump(it.state_dict(), file)
        print("interrupted", flush=True)
    more = interrupted or batch is not None
print(json.dumps([seen, told]), flush=True)
"""


def test_interrupted_program_goes_on_and_can_save_its_position(
    tmp_path: pathlib.Path,
) -> None:
    with process_cluster(tmp_path / "logs", workers=2) as cluster:
        arguments = [cluster.target, str(tmp_path / "state.json")]
        with _start(arguments) as program:
            assert program.stdout is not None
            for _ in range(5):
                os.kill(program.pid, signal.SIGINT)
                assert program.stdout.readline() == "interrupted\n"
            seen, told = json.loads(program.stdout.readline())
        assert Counter(seen) == Counter(range(ROWS))
        assert len(told) == 5

        with _start([*arguments, "resumes"]) as program:
            assert program.stdout is not None
            rest, _ = json.loads(program.stdout.readline())
    assert Counter(told[-1] + rest) == Counter(range(ROWS))


def _start(arguments: list[str]) -> subprocess.Popen[str]:
    program = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, *arguments], stdout=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    return program


class _InterruptAtLine:
    """A tracer that sends SIGINT at the n-th line of the package that runs; ``arm`` sets n."""

    def __init__(self) -> None:
        self.lines = 0
        self.came = 0

    def arm(self, line: int) -> None:
        self._left = line
        sys.settrace(self._call)

    def _call(self, frame: FrameType, _event: str, _arg: object) -> Any:
        return self._line if "/dataservice/" in frame.f_code.co_filename else None

    def _line(self, frame: FrameType, event: str, _arg: object) -> Any:
        # From the last line on, Python runs no signal handler until the caller has the batch.
        source = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and source.strip() != "return formed":
            self._left -= 1
            if self._left == 0:
                self.came += 1
                signal.raise_signal(signal.SIGINT)
        return self._line


@pytest.mark.parametrize("form", ["batches", "arrays"])
def test_interrupt_at_any_line_loses_no_row(form: str) -> None:
    with local_service(workers=1) as service:
        remote = (
            ds.Dataset.range(ROWS).batch(10).distribute(ds.ShardingPolicy.DYNAMIC, service.target)
        )
        remote = remote.batch(15).map(lambda columns: {"id": columns["id"] + 0})
        it: Any = iter(remote) if form == "batches" else remote.numpy()
        interrupt, seen, line, ended = _InterruptAtLine(), [], 0, False
        try:
            while not ended:
                line += 1
                interrupt.arm(line)
                try:
                    batch = next(it)
                except KeyboardInterrupt:
                    continue
                except StopIteration:
                    ended = True
                    continue
                finally:
                    sys.settrace(None)
                seen += batch["id"].tolist() if form == "arrays" else batch["id"].to_pylist()
                if line > 100 and interrupt.came < line:
                    line = 0  # the call has fewer lines: starts over
        finally:
            it.close()
    assert interrupt.came > 100
    assert Counter(seen) == Counter(range(ROWS))


def test_interrupt_ends_the_wait_for_an_absent_dispatcher() -> None:
    spec = ReadSpec(
        target="127.0.0.1:1", dataset_id="1", policy=ds.ShardingPolicy.DYNAMIC, timeout_s=2.0
    )
    interrupts = HeldInterrupts()

    def join_interrupted() -> None:
        with interrupts:
            signal.raise_signal(signal.SIGINT)
            ServiceReader(spec, None, interrupts)

    with pytest.raises(KeyboardInterrupt) as raised:
        join_interrupted()
    assert interrupts.raised(raised.value), "only once the call had given up"


def test_interrupted_join_is_repeated_at_the_saved_position(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call, joins = DispatcherConnection._call, []

    def call_interrupted(
        self: DispatcherConnection, method: str, *args: Any, **options: Any
    ) -> Any:
        if method == "OpenIteration":
            joins.append(method)
            if len(joins) % 2:
                signal.raise_signal(signal.SIGINT)
        return call(self, method, *args, **options)

    def taken(it: Any, count: int) -> list[int]:
        rows: list[int] = []
        while len(rows) < count:
            try:
                rows += next(it)["id"].to_pylist()
            except KeyboardInterrupt:
                interruptions.append(len(rows))
        return rows

    interruptions: list[int] = []
    with local_service(workers=1) as service:
        data = ds.Dataset.range(100).batch(10)
        remote = data.distribute(ds.ShardingPolicy.DYNAMIC, service.target).batch(15).repeat(3)
        monkeypatch.setattr(DispatcherConnection, "_call", call_interrupted)
        with iter(remote) as it:
            rows = taken(it, 100)
            assert interruptions == [0]
            rows += taken(it, 45)
            state = it.state_dict()
        assert interruptions == [0, 0]
        with iter(remote) as it:
            it.load_state_dict(state)
            rows += taken(it, 155)
            assert interruptions == [0, 0, 0, 55]
            assert next(it, None) is None
    assert Counter(rows) == Counter([*range(100)] * 3)


def test_second_interrupt_while_a_batch_is_held_ends_the_iterator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted_twice(**_counts: float) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with local_service(workers=1) as service:
        data = ds.Dataset.range(100).batch(10)
        with iter(data.distribute(ds.ShardingPolicy.DYNAMIC, service.target)) as it:
            next(it)
            with monkeypatch.context() as patch:
                patch.setattr(it._own, "add", interrupted_twice)
                with pytest.raises(KeyboardInterrupt):
                    next(it)
            with pytest.raises(FailedPreconditionError):
                next(it)
