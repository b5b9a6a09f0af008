"""`pstrain launch` on this machine runs one program as every task, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import psutil
import pytest

from tests.waiting import wait_until

PROGRAM = str(pathlib.Path(__file__).parent / "programs" / "launched.py")
DEADLINE_S = 90.0
SHAPE = ("--workers", "2", "--ps", "1")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pstrain", "launch", *arguments]


def finished(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )


class Launched:
    """A running launch, and the lines that it prints."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)

    def next_pids(self, count: int) -> dict[str, int]:
        """Returns the process ids of the next ``count`` tasks that print theirs, by name."""
        found: dict[str, int] = {}
        while len(found) < count:
            match = re.fullmatch(r"\[(.*)\] pid (\d+)\n", self._lines.get(timeout=DEADLINE_S))
            if match:
                found[match[1]] = int(match[2])
        return found

    def tasks(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


@contextlib.contextmanager
def launched(*arguments: str) -> Iterator[Launched]:
    with subprocess.Popen(
        command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield Launched(process)
        finally:
            process.kill()


def gone(tasks: list[psutil.Process]) -> Callable[[], bool]:
    def check() -> bool:
        alive = [task for task in tasks if task.is_running()]
        return not [task for task in alive if task.status() != psutil.STATUS_ZOMBIE]

    return check


def test_launch_ends_with_the_chief_and_its_exit_code() -> None:
    done = finished("--data-workers", "1", *SHAPE, "--", PROGRAM, "3")
    assert done.returncode == 3, done.stdout + done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith("[chief:0] {")]
    outcome = json.loads(said[0].removeprefix("[chief:0] "))
    assert outcome["job"] == "chief"
    assert outcome["steps"] >= 20
    assert {"[worker:0]", "[worker:1]", "[ps:0]"} < {line.split()[0] for line in
                                                     done.stdout.splitlines()}  # fmt: skip
    assert "chief:0 ended: exit code 3; its last lines:" in done.stderr


def test_failed_task_is_named_with_its_last_lines() -> None:
    done = finished("--data-workers", "0", *SHAPE, "--", PROGRAM, "0", "fail")
    assert done.returncode == 1
    assert "worker:1 ended: exit code 1; its last lines:\n    no luck today" in done.stderr


def test_supervised_tasks_are_restarted_and_interrupt_ends_all() -> None:
    with launched("--supervise", "--data-workers", "0", *SHAPE, "--", PROGRAM, "0", "wait") as run:
        first = run.next_pids(3)
        os.kill(first["worker:1"], signal.SIGKILL)
        assert list(run.next_pids(1)) == ["worker:1"]
        wait_until(lambda: len(run.tasks()) == 4, "all tasks")
        tasks = run.tasks()
        run.process.send_signal(signal.SIGINT)
        assert run.process.wait(DEADLINE_S) == 130
        assert gone(tasks)()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends tasks with their parent")
def test_killed_launcher_leaves_no_task() -> None:
    with launched("--workers", "1", "--ps", "1", "--data-workers", "0", "--", PROGRAM, "0", "wait") as run:  # fmt: skip  # noqa: E501
        run.next_pids(2)
        wait_until(lambda: len(run.tasks()) == 3, "all tasks")
        tasks = run.tasks()
        run.process.kill()
        wait_until(gone(tasks), "the end of all tasks")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--workers", "0", "--", "t.py"), "--workers: must be a positive integer, got 0"),
        (("--data-workers", "-1", "--", "t.py"), "--data-workers"),
        (("--engine", "boat", "--", "t.py"), "boat"),
        (("--tls-cert", "c.pem", "--", "t.py"), "--tls-key"),
        ((), "PROGRAM"),
    ],
    ids=["workers", "data-workers", "engine", "tls", "program"],
)
def test_wrong_option_values_are_refused_in_one_line(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from pstrain.__main__ import main

    code: object
    try:
        code = main(["launch", *arguments])
    except SystemExit as error:
        code = error.code
    assert code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_arguments_after_dashes_go_to_the_program(capfd: pytest.CaptureFixture[str]) -> None:
    done = finished("--workers", "1", "--ps", "1", "--data-workers", "0", "--", "echo", "--workers")
    assert "[chief:0] --workers" in done.stdout
    assert done.returncode == 0
    assert capfd.readouterr().err == ""
