"""A launched task as a process of this machine: its output, and its end with its descendants.

Knows commands and environments, not what they are for. Invariant: once a task was stopped, or the
process that started it has died in whatever way, the task's process is gone.
"""

from __future__ import annotations

import collections
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Final

__all__ = ["Output", "TaskProcess", "stop_all"]

_TAIL_LINES: Final = 20
_STOP_TIMEOUT_S: Final = 5.0
_KILLED_TIMEOUT_S: Final = 10.0
_OUTPUT_TIMEOUT_S: Final = 2.0


class Output:
    """The standard output that all tasks share; writes whole lines, one by one. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._broken = False

    def line(self, name: str, text: str) -> None:
        """Writes ``text`` after the task's name. A closed standard output is not an error."""
        with self._lock:
            if not self._broken:
                try:
                    print(f"[{name}] {text}", flush=True)
                except (BrokenPipeError, ValueError):
                    self._broken = True


class TaskProcess:
    """One running task, in a session of its own, so that what it starts ends with it.

    Create it on a thread that outlives the task: the kernel kills the task with that thread.
    """

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], output: Output
    ) -> None:
        self.name = name
        self.started_s = time.monotonic()
        self._tail: collections.deque[str] = collections.deque(maxlen=_TAIL_LINES)
        self._output = output
        tether = [sys.executable, "-m", "pstrain.launch.tethered", str(os.getpid())]
        self._process = subprocess.Popen(
            [*tether, *command],
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name=f"output of {name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit status, negative for the number of a signal; None while the task runs."""
        return self._process.poll()

    def how_it_ended(self) -> str:
        """Returns a text for people: the task's status, and the last lines that it wrote."""
        self._reader.join(_OUTPUT_TIMEOUT_S)
        status = self.returncode
        how = f"exit code {status}"
        if status is not None and status < 0:
            with contextlib.suppress(ValueError):
                how = f"killed by {signal.Signals(-status).name}"
        lines = "\n".join(f"    {line}" for line in list(self._tail))
        return f"{self.name} ended: {how}" + (f"; its last lines:\n{lines}" if lines else "")

    def request_stop(self) -> None:
        """Asks the task to end, without waiting."""
        if self.returncode is None:
            self._process.terminate()

    def finish(self, timeout_s: float) -> int:
        """Waits for the end, at most ``timeout_s``, then kills what is left; returns the status.

        What the task has started is killed too, in any case.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(timeout_s, 0.0))
        # The process group keeps its number as long as any process in it lives.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        status = self._process.wait(_KILLED_TIMEOUT_S)
        self._reader.join(_OUTPUT_TIMEOUT_S)
        return status

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            for line in stream:
                text = line.decode(errors="replace").rstrip("\r\n")
                self._tail.append(text)
                self._output.line(self.name, text)


def stop_all(tasks: Sequence[TaskProcess]) -> None:
    """Asks all tasks to end, then kills those that have not ended within a few seconds."""
    for task in tasks:
        task.request_stop()
    deadline_s = time.monotonic() + _STOP_TIMEOUT_S
    for task in tasks:
        task.finish(deadline_s - time.monotonic())
