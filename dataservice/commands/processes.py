"""Several workers as processes of one command: started together, restarted, stopped together.

For pipelines whose functions hold the GIL, which threads cannot speed up. Knows processes, nothing
of what they do. Invariant: no process outlives the command.
"""

from __future__ import annotations

import argparse
import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Final

from dataservice.commands.serving import POLL_S, announce
from dataservice.errors import DeadlineExceededError, InvalidArgumentError
from dataservice.runtime.process.children import ChildProcess, exit_with_parent, spawn_module
from dataservice.runtime.process.signals import StopSignals

logger = logging.getLogger(__name__)

EXIT_ERROR: Final = 2
# Exit statuses of a worker that reported an error or was told to stop; a restart would not help.
_DELIBERATE: Final = (0, EXIT_ERROR)
FIRST_PAUSE_S: Final = 1.0
MAX_PAUSE_S: Final = 30.0
# A worker that has run for this long did not die of a problem at its start.
HEALTHY_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 10.0
# Options with a value that are about all processes, and not about a single worker.
_OF_ALL_PROCESSES: Final = ("--processes", "--log-dir")


class Backoff:
    """The backoff before a process that died is started again. Pure."""

    def __init__(self) -> None:
        self._pause_s = FIRST_PAUSE_S

    def pause_s(self, lived_s: float) -> float:
        """Returns the pause after a process lived for `lived_s`; doubles with each short life."""
        if lived_s >= HEALTHY_S:
            self._pause_s = FIRST_PAUSE_S
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, MAX_PAUSE_S)
        return pause_s


class ProcessSlot:
    """The slot of one of the processes, and of those that replace it."""

    def __init__(self, start: Callable[[], ChildProcess]) -> None:
        self._start = start
        self._backoff = Backoff()
        self._due_s: float | None = None
        self._begin()

    def _begin(self) -> None:
        self._due_s = None
        self._began_s = time.monotonic()
        self.process = self._start()

    def restart_if_due(self) -> bool:
        """Replaces a dead process once its backoff is over; False if the slot needs none."""
        status = self.process.returncode
        if status is None:
            return True
        if status in _DELIBERATE:
            return False
        now_s = time.monotonic()
        if self._due_s is None:
            pause_s = self._backoff.pause_s(now_s - self._began_s)
            self._due_s = now_s + pause_s
            logger.error(
                "worker process %d ended with status %d; another one starts in %.0f s",
                *(self.process.pid, status, pause_s),
            )
            self.process.kill()
        elif now_s >= self._due_s:
            self._begin()
            logger.info("worker process %d starts in its place", self.process.pid)
        return True


def run_processes(options: argparse.Namespace) -> int:
    """Runs workers until all have ended for good or a signal comes; returns the exit status."""
    if options.port:
        raise InvalidArgumentError(
            f"--port {options.port} cannot be shared by {options.processes} processes; leave it "
            "out, or start the workers one by one"
        )
    stopping = StopSignals(once=True)
    exit_with_parent()
    arguments = [*single_worker_arguments(options.arguments), "--ready-json"]
    slots: list[ProcessSlot] = []
    try:
        for index in range(options.processes):
            log_path = options.log_dir and os.path.join(options.log_dir, f"worker-{index}.log")
            slots.append(ProcessSlot(_starter(arguments, log_path)))
        addresses = _await_ready(slots, stopping)
        if addresses is not None:
            announce(options, *addresses)
        while not stopping.wait(POLL_S):
            # A list, so that all slots are tended, and not only those up to the first that runs.
            running = [slot for slot in slots if slot.restart_if_due()]
            if not running:
                return max(slot.process.returncode or 0 for slot in slots)
        return 0
    finally:
        _end([slot.process for slot in slots])


def _starter(arguments: Sequence[str], log_path: str | None) -> Callable[[], ChildProcess]:
    return lambda: spawn_module("dataservice", arguments, log_path=log_path)


def _await_ready(slots: Sequence[ProcessSlot], stopping: StopSignals) -> list[str] | None:
    """Waits until all serve and returns their addresses; None if a signal came first.

    FailedPreconditionError if a worker ends before it serves.
    """
    addresses = []
    for slot in slots:
        while True:
            if stopping.is_set():
                return None
            try:
                addresses.append(str(slot.process.wait_ready(POLL_S)["address"]))
                break
            except DeadlineExceededError:
                # The worker waits for its dispatcher, and gives up by itself.
                continue
    return addresses


def _end(processes: Sequence[ChildProcess]) -> None:
    for process in processes:
        process.request_stop()
    for process in processes:
        process.terminate(_STOP_TIMEOUT_S)


def single_worker_arguments(arguments: Sequence[str]) -> list[str]:
    """Returns the same command line for one of the workers."""
    kept: list[str] = []
    is_value = False
    for argument in arguments:
        option, has_value, _ = argument.partition("=")
        is_dropped = is_value or option in (*_OF_ALL_PROCESSES, "--ready-json")
        if not is_dropped:
            kept.append(argument)
        is_value = not is_value and option in _OF_ALL_PROCESSES and not has_value
    return kept
