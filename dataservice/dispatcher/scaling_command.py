"""Runs a command of the user when another number of workers would be enough.

Owns the thread and the command's process; does not know how the number is estimated. Invariant:
whatever the command does, it ends by its deadline or by `stop`, and the dispatcher only logs its
failures.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Final

from dataservice.dispatcher.autoscale import Estimate, EstimateDebounce
from dataservice.runtime.threads import StoppableThread

logger = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 1.0
_POLL_S: Final = 0.1
_SHOWN_BYTES: Final = 2_000


class ScalingCommand:
    """A thread that watches the estimate and runs the command when it has changed for `stay_s`.

    It calls `get_estimate` about every second, more often for a short `stay_s`; None means that
    there is no estimate.
    """

    def __init__(
        self,
        command: str,
        get_estimate: Callable[[], Estimate | None],
        *,
        target: str,
        stay_s: float,
        timeout_s: float,
    ) -> None:
        self._command = command
        self._get_estimate = get_estimate
        self._target = target
        self._timeout_s = timeout_s
        self._debounce = EstimateDebounce(stay_s)
        self._every_s = min(_LOOK_EVERY_S, max(stay_s / 4, _POLL_S))
        self._thread = StoppableThread(self._run, owner="dispatcher", name="scaling-command")

    def start(self) -> ScalingCommand:
        """Starts the thread."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stops the thread and kills the command if it runs. Idempotent, bounded."""
        self._thread.stop()

    def _run(self, stop: threading.Event) -> None:
        while not stop.wait(self._every_s):
            try:
                estimate = self._get_estimate()
                if estimate is not None and self._debounce.is_due(estimate, time.monotonic()):
                    self._run_for(estimate, stop)
            except Exception:
                # The next attempt may succeed, and nothing else would report this to the user.
                logger.exception("could not run the command for the number of workers")

    def _run_for(self, estimate: Estimate, stop: threading.Event) -> None:
        logger.info(
            "%d workers, %d would be enough (%s): running %s",
            estimate.now,
            estimate.enough,
            estimate.reason,
            self._command,
        )
        environment = {
            **os.environ,
            "DATASERVICE_WORKERS_NOW": str(estimate.now),
            "DATASERVICE_WORKERS_ENOUGH": str(estimate.enough),
            "DATASERVICE_WORKERS_REASON": estimate.reason,
            "DATASERVICE_DISPATCHER": self._target,
        }
        fault, output = run_command(self._command, environment, self._timeout_s, stop)
        if fault:
            logger.warning("the command %r %s; it wrote: %s", self._command, fault, output or "-")


def run_command(
    command: str, environment: dict[str, str], timeout_s: float, stop: threading.Event
) -> tuple[str, str]:
    """Runs a shell command; returns its fault ("" if none) and the end of its output."""
    # A file, not a pipe: a process that the command leaves behind cannot block it or this thread.
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            shell=True,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        fault = _await(process, timeout_s, stop)
        size = output.seek(0, os.SEEK_END)
        output.seek(max(0, size - _SHOWN_BYTES))
        return fault, output.read().decode(errors="replace").strip()


def _await(process: subprocess.Popen[bytes], timeout_s: float, stop: threading.Event) -> str:
    deadline_s = time.monotonic() + timeout_s
    while (status := process.poll()) is None:
        late = time.monotonic() >= deadline_s
        if late or stop.is_set():
            _kill_group(process)
            return f"was killed after {timeout_s:g} s" if late else "was killed at the end"
        stop.wait(_POLL_S)
    return f"ended with status {status}" if status else ""


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kills the command and its child processes, which share its process group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        logger.debug("the command ended by itself")
    process.wait(_LOOK_EVERY_S)
