"""Child processes on this machine that never outlive their parent.

The parent holds the writing end of a pipe; the child watches the other end and exits when it
closes, which the kernel does however the parent dies. A child announces itself by one JSON line
on its standard output; all that it prints besides goes to its log.

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

__all__ = [
    "ChildProcess",
    "announce_ready",
    "collect_seldom",
    "exit_with_parent",
    "spawn_module",
    "without_collection",
]

logger = logging.getLogger(__name__)

PARENT_FD_ENV = "DATASERVICE_PARENT_FD"

_TAIL_LINES = 20
_TAIL_BYTES = 16 << 10
_KILLED_WAIT_S = 10.0
_STOPPED_WAIT_S, _STOPPED_POLL_S = 10.0, 0.001
# Objects more than before, and how many collections of one generation for one of the next.
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
        self._tail = b""  # of the log, once that is closed
        self._reader = threading.Thread(
            target=self._read_output, name=f"output of {name}", daemon=True
        )
        self._reader.start()

    @property
    def returncode(self) -> int | None:
        """Exit status, negative for the number of a signal; None while the child runs."""
        return self._process.poll()

    def wait_ready(self, timeout_s: float) -> dict[str, Any]:
        """The fields that the child announced, `pid` among them.

        FailedPreconditionError when it ended before, DeadlineExceededError when it took too long;
        both show the end of its log.
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
        """Exit status of the child once it ends. DeadlineExceededError when it does not."""
        status = self._wait(timeout_s)
        if status is None:
            raise DeadlineExceededError(
                f"{self.name} (pid {self.pid}) still runs after {timeout_s} s"
            )
        return status

    def request_stop(self) -> None:
        """Ask the child to end, without waiting for it."""
        self._signal_group(signal.SIGCONT)
        if self.returncode is None:
            self._process.terminate()

    def terminate(self, timeout_s: float = 5.0) -> int:
        """Ask the child to end, kill it when it has not after `timeout_s`; its exit status."""
        self.request_stop()
        if self._wait(timeout_s) is None:
            logger.warning("%s ignored SIGTERM for %.1f s: killed", self.name, timeout_s)
        return self.kill()

    def kill(self) -> int:
        """Kill the child and what it started in its session, release everything. Idempotent."""
        self._signal_group(signal.SIGKILL)
        status = self.wait(_KILLED_WAIT_S)
        with self._closing:
            if not self._closed:
                self._closed = True
                os.close(self._lifeline)
                self._reader.join(1.0)
                # Something that the child started may still hold its output, and be logged.
                if not self._reader.is_alive():
                    self._tail = self._end_of_log()
                    self._log.close()
        return status

    def suspend(self) -> None:
        """Freeze the child, as a hung machine would be. UnavailableError when it has ended.

        Its threads have stopped when this returns: they run on for a while after the signal.
        """
        if not self._signal_group(signal.SIGSTOP) or not self._wait_stopped():
            raise UnavailableError(f"{self.name} (pid {self.pid}) has ended")

    def resume(self) -> None:
        """Let a frozen child run again. UnavailableError when it has ended."""
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
        # The process is not reaped as long as it has no return code, so its id cannot be another's.
        if self.returncode is not None:
            return False
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def _wait_stopped(self) -> bool:
        """False when it ended instead; whoever waits for its end learns of that by itself."""
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
    """Start `python -m module args` in a session of its own.

    `env` is added to this process's environment. Standard error, and whatever is printed besides
    the ready line, is appended to `log_path`, or to a nameless temporary file.
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
    """In a child: from now on, exit at once when the parent is gone.

    Does nothing in a process that `spawn_module` did not start. The kernel reports the parent's
    end however it came, and resumes a child that is frozen (on Linux), which would stay for ever.
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
    """Keeps the garbage collector from running, and from ever looking at what is there at the end.

    For a process of our own while it imports: that makes a hundred thousand objects, which stay,
    and looking through them again and again is a sixth of a server's start.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def collect_seldom() -> None:
    """Keeps the garbage collector from looking through all objects again and again.

    For a process that serves and has imported what it needs: a full collection holds everybody up
    for tens of milliseconds, and hardly anything that a server keeps ever becomes garbage.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)


def announce_ready(**fields: Any) -> None:
    """In a child: print the ready line with JSON-able `fields`, such as `address`."""
    print(json.dumps({"ready": True, "pid": os.getpid(), **fields}), flush=True)


def _watch_parent(watched: int) -> None:
    # A signal that this thread took would not wake the main thread, which handles it.
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
