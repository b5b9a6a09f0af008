"""Processes of a benchmark or a peer system, which end with their parent: starts and reads them.

A child prints JSON lines on its standard output and watches its standard input: when that ends,
because the parent stopped or died, the child ends too. Uses the standard library only, since it
runs in interpreters of other projects. Invariant: every wait has a deadline, and leaving `Children`
leaves no process behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any

_ROOT = Path(__file__).resolve().parents[2]
_CHILD_MARK = "BENCH_PEER_CHILD"
_ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "CUDA_VISIBLE_DEVICES": "-1",
    "PYTHONPATH": str(_ROOT),
    _CHILD_MARK: "1",
}


class PeerError(RuntimeError):
    """A peer could not be run: no interpreter, an early exit, or silence past the deadline."""


def find_interpreter(peer_python: str | None, module: str = "tensorflow") -> str:
    """Returns the interpreter to run a peer with: `peer_python`, else this one.

    Raises PeerError, which says how to name another one, if it does not run or has no `module`.
    """
    python = peer_python or sys.executable
    check = f"import importlib.util as u, sys; sys.exit(u.find_spec({module!r}) is None)"
    try:
        found = subprocess.run([python, "-c", check], timeout=60, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerError(f"{python} does not run: {error}; give --peer-python PATH") from error
    if not found:
        raise PeerError(f"{python} has no {module}; give --peer-python PATH of one that has")
    return python


def run_peer(
    module: str, arguments: list[str], *, peer_python: str | None = None, deadline_s: float = 180
) -> dict[str, Any]:
    """Returns the JSON line that `python -m module arguments` prints, within `deadline_s`."""
    with Children(deadline_s, find_interpreter(peer_python)) as children:
        return children.start(module, arguments).line()


class Child:
    """One child process; `line` waits for its next JSON line."""

    def __init__(self, command: list[str], log: IO[bytes], deadline: float) -> None:
        self._deadline = deadline
        self._log = log
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, **_ENVIRONMENT},
            cwd=_ROOT,
        )
        self._lines: queue.Queue[bytes] = queue.Queue(maxsize=64)
        self._pump = threading.Thread(target=self._read, name="peer-output", daemon=True)
        self._pump.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(b"{"):
                self._lines.put(line)
        self._lines.put(b"")

    def line(self) -> dict[str, Any]:
        """Returns the next JSON line; PeerError, with the end of the child's log, if none comes."""
        try:
            line = self._lines.get(timeout=max(self._deadline - time.monotonic(), 0.01))
        except queue.Empty:
            raise PeerError(
                f"no answer before the deadline; its log ends:\n{self._tail()}"
            ) from None
        if not line:
            code = self._process.wait(timeout=10)
            raise PeerError(f"a peer process ended with {code}; its log ends:\n{self._tail()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def tell(self, line: str) -> None:
        """Writes a line to a process that reads its standard input itself."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def _tail(self) -> str:
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(size - 4_000, 0))
        return self._log.read().decode(errors="replace")

    def peak_memory_bytes(self) -> int:
        """Returns the largest resident size that the process has had so far; Linux only."""
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
        raise PeerError(f"process {self._process.pid} does not tell its memory")

    def cpu_s(self) -> float:
        """Returns the CPU seconds that the process has used so far; Linux only."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        """Ends the process by SIGKILL; returns once it is gone."""
        self._process.kill()
        self._process.wait(timeout=10)

    def stop(self) -> None:
        """Ends the process: by end of input, after two seconds by force. Blocks at most 22 s."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=10)
        for _ in range(100):
            self._pump.join(timeout=0.1)
            if not self._pump.is_alive():
                break
            with contextlib.suppress(queue.Empty):
                self._lines.get_nowait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Children:
    """The child processes of one measurement, with one deadline for all; a context manager."""

    def __init__(self, deadline_s: float, python: str | None = None) -> None:
        self._deadline = time.monotonic() + deadline_s
        self._python = python or sys.executable
        self._children: list[Child] = []
        self._exits = contextlib.ExitStack()

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *_: object) -> None:
        for child in reversed(self._children):
            child.stop()
        self._exits.close()

    def start(self, module: str, arguments: list[str]) -> Child:
        """Starts `python -m module arguments` in the repository's root."""
        log = self._exits.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        child = Child([self._python, "-m", module, *arguments], log, self._deadline)
        self._children.append(child)
        return child


def say(**fields: Any) -> None:
    """Prints one JSON line, for the parent or the user."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def end_with_parent() -> None:
    """Makes this process, if `Child` started it, end without clean-up when its input ends."""
    if _CHILD_MARK not in os.environ:
        return

    def watch() -> None:
        while os.read(0, 4_096):
            pass
        os._exit(0)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def free_ports(count: int) -> list[int]:
    """Returns loopback ports that were just free, for servers that must be given their port."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
