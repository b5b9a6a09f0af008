"""Child processes on this machine that never outlive their parent.

The parent holds the writing end of a pipe. The child watches the other end and exits when the pipe
closes, which the kernel ensures however the parent dies. A child announces that it is ready by one
JSON line on its standard output; everything else that it prints goes to its log.

Knows nothing of what children do. Invariant: every wait is bounded, and a child that failed to
start is reported with the last lines of its log.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import logging
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from dataservice.errors import DeadlineExceededError, FailedPreconditionError, UnavailableError

logger = logging.getLogger(__name__)

PARENT_FD_ENV = "DATASERVICE_PARENT_FD"

_TAIL_LINES = 20
_TAIL_BYTES = 16 << 10
_KILLED_WAIT_S = 10.0
_STOPPED_WAIT_S, _STOPPED_POLL_S = 10.0, 0.001
# Thresholds of the garbage collector: new objects per collection of the youngest generation, then
# collections of each generation per collection of the next.
_COLLECT_AFTER = (20_000, 10, 10)


class ChildProcess:
    """A running child, made by `spawn_module`. Thread safe."""

    def __init__(self, process: subprocess.Popen[bytes], name: str, lifeline: int, log: IO[bytes]):
        self.pid = process.pid
        self.name = name
        self._process = process
        self._lifeline = lifeline
        self._log = log
        self._ready: dict[str, Any] | None = None
        self._output_ended = False
        self._changed = threading.Condition()
        self._closing = threading.Lock()
        self._closed = False
        self._tail = b""  # the end of the log, once the log is closed
        self._reader = threading.Thread(
            target=self._read_output, name=f"output of {name}", daemon=True
        )
        self._reader.start()

    @property
    def returncode(self) -> int | None:
        """The exit status, or the negative number of a signal; None while the child runs."""
        return self._process.poll()

    def wait_ready(self, timeout_s: float) -> dict[str, Any]:
        """Waits until the child is ready; returns the fields that it announced, including `pid`.

        Raises FailedPreconditionError if the child ended before, DeadlineExceededError if it took
        too long; both show the end of its log.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._output_ended, timeout_s)
            if self._ready is not None:
                return dict(self._ready)
            ended = self._output_ended
        if ended:
            status = self._wait(1.0)
            raise FailedPreconditionError(
                f"{self.name} ended with status {status} before it was ready{self._log_tail()}"
            )
        raise DeadlineExceededError(
            f"{self.name} (pid {self.pid}) was not ready within {timeout_s} s{self._log_tail()}"
        )

    def wait(self, timeout_s: float) -> int:
        """Waits for the child to end; returns its exit status.

        Raises DeadlineExceededError if the child still runs after `timeout_s`.
        """
        status = self._wait(timeout_s)
        if status is None:
            raise DeadlineExceededError(
                f"{self.name} (pid {self.pid}) still runs after {timeout_s} s"
            )
        return status

    def request_stop(self) -> None:
        """Asks the child to end, without waiting for it; resumes a suspended child first."""
        self._signal_group(signal.SIGCONT)
        if self.returncode is None:
            self._process.terminate()

    def terminate(self, timeout_s: float = 5.0) -> int:
        """Asks the child to end, kills it after `timeout_s`; returns its exit status."""
        self.request_stop()
        if self._wait(timeout_s) is None:
            logger.warning("%s ignored SIGTERM for %.1f s: killed", self.name, timeout_s)
        return self.kill()

    def kill(self) -> int:
        """Kills the child's process group and frees its resources; returns the exit status.

        Idempotent.
        """
        self._signal_group(signal.SIGKILL)
        status = self.wait(_KILLED_WAIT_S)
        with self._closing:
            if not self._closed:
                self._closed = True
                os.close(self._lifeline)
                self._reader.join(1.0)
                # A process that the child started may still hold the output and write to the log.
                if not self._reader.is_alive():
                    self._tail = self._end_of_log()
                    self._log.close()
        return status

    def suspend(self) -> None:
        """Freezes the child, which then behaves like a hung machine.

        Waits until all of its threads have stopped, since they run on for a while after the signal.
        Raises UnavailableError if the child has ended.
        """
        if not self._signal_group(signal.SIGSTOP) or not self._wait_stopped():
            raise UnavailableError(f"{self.name} (pid {self.pid}) has ended")

    def resume(self) -> None:
        """Lets a frozen child run again; raises UnavailableError if it has ended."""
        if not self._signal_group(signal.SIGCONT):
            raise UnavailableError(f"{self.name} (pid {self.pid}) has ended")

    def __enter__(self) -> ChildProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.terminate()

    def _wait(self, timeout_s: float) -> int | None:
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def _signal_group(self, number: signal.Signals) -> bool:
        # A process without a return code is not reaped, so no other process can have its id.
        if self.returncode is not None:
            return False
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def _wait_stopped(self) -> bool:
        """Waits until the child has stopped; returns False if it ended instead.

        Does not reap the child, so that other calls still get its exit status. Where Python cannot
        ask, as on macOS before version 3.13, it does not wait.
        """
        if not hasattr(os, "waitid"):
            return self._process.poll() is None
        look = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT
        deadline_s = time.monotonic() + _STOPPED_WAIT_S
        while time.monotonic() < deadline_s:
            try:
                found = os.waitid(os.P_PID, self.pid, look)
            except ChildProcessError:
                return False
            if found is not None:
                return found.si_code == os.CLD_STOPPED
            time.sleep(_STOPPED_POLL_S)
        raise DeadlineExceededError(
            f"{self.name} (pid {self.pid}) has not stopped {_STOPPED_WAIT_S} s after SIGSTOP"
        )

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                fields = _ready_fields(line) if self._ready is None else None
                if fields is None:
                    self._log.write(line)
                    continue
                with self._changed:
                    self._ready = fields
                    self._changed.notify_all()
        with self._changed:
            self._output_ended = True
            self._changed.notify_all()

    def _end_of_log(self) -> bytes:
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), _TAIL_BYTES, max(size - _TAIL_BYTES, 0))

    def _log_tail(self) -> str:
        with self._closing:
            tail = self._tail if self._log.closed else self._end_of_log()
        lines = tail.decode(errors="replace").splitlines()[-_TAIL_LINES:]
        return "; its last output:\n" + "\n".join(lines) if lines else "; it printed nothing"


def spawn_module(
    module: str,
    args: Sequence[str] = (),
    *,
    env: Mapping[str, str] | None = None,
    log_path: str | os.PathLike[str] | None = None,
) -> ChildProcess:
    """Starts `python -m module args` in a session of its own.

    `env` is added to this process's environment. Standard error, and all standard output but the
    ready line, is appended to `log_path`, or to a nameless temporary file.
    """
    log = _open_log(log_path)
    watched, lifeline = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *args],
            env={**os.environ, **(env or {}), PARENT_FD_ENV: str(watched)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            pass_fds=(watched,),
            start_new_session=True,
        )
    except BaseException:
        os.close(lifeline)
        log.close()
        raise
    finally:
        os.close(watched)
    return ChildProcess(process, f"python -m {module}", lifeline, log)


def exit_with_parent() -> None:
    """Makes this child process exit at once when its parent is gone.

    Does nothing in a process that `spawn_module` did not start. The kernel reports every kind of
    end of the parent. On Linux it then also resumes a frozen child, which would else stay for ever.
    """
    descriptor = os.environ.pop(PARENT_FD_ENV, None)
    if descriptor is None:
        return
    watched = int(descriptor)
    os.set_inheritable(watched, False)
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(watched, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(watched, fcntl.F_SETSIG, signal.SIGCONT)
        flags = fcntl.fcntl(watched, fcntl.F_GETFL)
        fcntl.fcntl(watched, fcntl.F_SETFL, flags | os.O_ASYNC)
    threading.Thread(target=_watch_parent, args=(watched,), name="parent", daemon=True).start()


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Disables the garbage collector in the block, and exempts all objects made so far afterwards.

    For the imports of the project's own processes. Imports make a hundred thousand objects that
    stay, and scanning them again and again takes a sixth of a server's start.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def collect_seldom() -> None:
    """Makes the garbage collector run seldom, and exempts all objects made so far.

    For a server that has imported what it needs: a full collection stops all threads for tens of
    milliseconds, and hardly any object that a server keeps becomes garbage.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)


def announce_ready(**fields: Any) -> None:
    """Prints a child's ready line with JSON-able `fields`, such as `address`."""
    print(json.dumps({"ready": True, "pid": os.getpid(), **fields}), flush=True)


def _watch_parent(watched: int) -> None:
    # Blocks all signals: one delivered to this thread would not wake the main thread, which must
    # handle it.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    while os.read(watched, 1):
        time.sleep(0.01)
    # Not sys.exit: other threads, and a main thread inside a C call, must not delay the end.
    os._exit(0)


def _ready_fields(line: bytes) -> dict[str, Any] | None:
    if not line.startswith(b'{"ready": true'):
        return None
    try:
        fields: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    del fields["ready"]
    return fields


def _open_log(path: str | os.PathLike[str] | None) -> IO[bytes]:
    if path is None:
        return tempfile.TemporaryFile("w+b", buffering=0)
    target = pathlib.Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        return target.open("a+b", buffering=0)
    except OSError as error:
        raise FailedPreconditionError(
            f"the log {str(path)!r} cannot be written: {error.strerror}; choose another folder for "
            "logs"
        ) from error
