"""Frames that a process was told are durable survive its SIGKILL."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import threading

import pytest

from dataservice.runtime.journal import SqliteJournal

APPEND = """
import sys
from dataservice.runtime.journal import SqliteJournal
journal = SqliteJournal(sys.argv[1])
start = sum(1 for _ in journal.replay())
for index in range(start, 10**9, 5):
    journal.append([b"%d" % (index + part) * 50 for part in range(5)])
    if index % 1000 == 700:
        journal.replace(list(journal.replay()))
    print(index + 5, flush=True)
"""


@pytest.mark.parametrize("rounds", [4])
def test_acknowledged_frames_survive_sigkill(tmp_path: pathlib.Path, rounds: int) -> None:
    path = tmp_path / "journal"
    told = 0
    for number in range(rounds):
        process = subprocess.Popen(
            [sys.executable, "-c", APPEND, str(path)], stdout=subprocess.PIPE, text=True
        )
        timer = threading.Timer(60.0, process.kill)
        timer.start()
        assert process.stdout is not None
        with process.stdout as lines:
            # The child keeps appending while its line arrives, so it is killed at any point.
            for line in lines:
                told = max(told, int(line))
                if told >= (number + 1) * 400:
                    process.kill()
        process.wait(60.0)
        timer.cancel()
        journal = SqliteJournal(path)
        frames = list(journal.replay())
        journal.close()
        assert len(frames) >= told >= (number + 1) * 400
        assert len(frames) % 5 == 0
        assert frames == [b"%d" % index * 50 for index in range(len(frames))]
