"""``pstrain launch --engine local``: runs every task of a program as a process of this machine.

Decides what the end of one task means for the others. Knows tasks by job and index, not what they
compute. Invariant: when :func:`run_locally` returns or raises, every task has ended.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import sys
import time
from typing import Final

from dataservice.runtime.process.signals import StopSignals
from pstrain.compiling import compile_kernels
from pstrain.launch.layout import Addresses, Layout
from pstrain.launch.local import ONE_CORE
from pstrain.launch.program import check_program
from pstrain.launch.tasks import Output, TaskProcess, stop_all

logger = logging.getLogger(__name__)

INTERRUPTED: Final = 130
_HOST: Final = "127.0.0.1"
_POLL_S: Final = 0.05
_RESTARTED_JOBS: Final = ("worker", "ps")
# A task that ends within _EARLY_END_S of its start, _EARLY_ENDS_MAX times in a row, is given up.
_EARLY_END_S: Final = 10.0
_EARLY_ENDS_MAX: Final = 5


def run_locally(layout: Layout, *, supervise: bool) -> int:
    """Runs all tasks until the chief ends; returns its exit code, or 1 if another failed first.

    ``supervise``: trainers and parameter servers that fail or are killed are started again, at
    their addresses. SIGINT and SIGTERM end all tasks; the exit code is then 130.
    """
    check_program(layout.program[0])
    stop = StopSignals()
    # Compiled once, into the cache, so that the tasks do not all compile at the same time.
    compile_kernels()
    return _LocalRun(layout, supervise).run(stop)


class _LocalRun:
    """The running tasks by job and index; restarts tasks that end, or ends the run."""

    def __init__(self, layout: Layout, supervise: bool) -> None:
        self._layout = layout
        self._supervise = supervise
        self._output = Output()
        self._addresses = _free_addresses(layout)
        self._running: dict[tuple[str, int], TaskProcess] = {}
        self._early_ends: dict[tuple[str, int], int] = {}

    def run(self, stop: StopSignals) -> int:
        try:
            for task in self._layout.tasks():
                self._start(*task)
            while not stop.wait(_POLL_S):
                code = self._poll()
                if code is not None:
                    return code
            return INTERRUPTED
        finally:
            stop_all(list(self._running.values()))

    def _poll(self) -> int | None:
        """Handles the tasks that have ended; returns the exit code, or None if the run goes on."""
        chief = self._running["chief", 0]
        if chief.returncode is not None:
            return self._chief_ended(chief)
        for (job, index), task in list(self._running.items()):
            if task.returncode is None:
                continue
            del self._running[job, index]
            task.finish(0.0)
            if task.returncode == 0 and job in _RESTARTED_JOBS:
                logger.info("%s has ended without an error", task.name)
            elif not self._may_restart(job, index, task):
                print(f"pstrain launch: {task.how_it_ended()}", file=sys.stderr)
                return 1
            else:
                logger.warning("%s; restarting it", task.how_it_ended())
                self._start(job, index)
        return None

    def _chief_ended(self, chief: TaskProcess) -> int:
        status = chief.finish(0.0)
        if status:
            print(f"pstrain launch: {chief.how_it_ended()}", file=sys.stderr)
        return status if status >= 0 else 128 - status

    def _may_restart(self, job: str, index: int, task: TaskProcess) -> bool:
        """Counts an end soon after the start; True if the task is to be started again."""
        is_early = time.monotonic() - task.started_s < _EARLY_END_S
        self._early_ends[job, index] = self._early_ends.get((job, index), 0) + 1 if is_early else 0
        return (
            self._supervise
            and job in _RESTARTED_JOBS
            and self._early_ends[job, index] < _EARLY_ENDS_MAX
        )

    def _start(self, job: str, index: int) -> None:
        command = self._layout.command(job, index, self._addresses, sys.executable)
        environment = self._layout.environment(job, index, self._addresses)
        name = f"{job}:{index}"
        self._running[job, index] = TaskProcess(
            name, command, {**ONE_CORE, **environment}, self._output
        )
        logger.info("%s is process %d", name, self._running[job, index].pid)


def _free_addresses(layout: Layout) -> Addresses:
    """Returns an address on this machine for each task, each with a different free port."""
    with contextlib.ExitStack() as stack:

        def free_port() -> int:
            listener = stack.enter_context(socket.socket())
            listener.bind((_HOST, 0))
            return int(listener.getsockname()[1])

        return {
            job: [f"{_HOST}:{free_port()}" for _ in range(count)]
            for job, count in layout.jobs.items()
        }
