"""Hosts of a network of their own, on this machine, which a test can cut off from all others.

Each host is a network namespace of Linux, bridged to the others and to this process. A host that is
cut off loses what is sent to it and by it without a word, as one that has lost power does. Needs
root. Invariant: nothing of it is left when the network is closed; if its process is killed, its
servers end at once, and the next network removes the rest.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from types import TracebackType
from typing import Any, Self

import pytest


def _can_make_hosts() -> bool:
    """True if this process may make namespaces and bridges; tried in a namespace that ends."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare", "setpriv"))):
        return False
    trial = ["unshare", "--net", "ip", "link", "add", "trial", "type", "bridge"]
    return subprocess.run(trial, capture_output=True, check=False).returncode == 0


needs_hosts = pytest.mark.skipif(
    not _can_make_hosts(), reason="needs root, the command ip, and network namespaces"
)

_numbers = itertools.count()
_NAME = re.compile(r"\b(?:b|p|ns)(\d+)x\d+(?:h\d+)?\b")


class Hosts:
    """A network of ``count`` hosts, numbered from 0; a context manager."""

    def __init__(self, count: int) -> None:
        # Test processes side by side have networks of their own. The name of an interface may have
        # 15 characters.
        self._name = f"{os.getpid()}x{next(_numbers)}"
        self._subnet = ""
        self._count = count
        self._programs: list[subprocess.Popen[str]] = []

    @property
    def program_address(self) -> str:
        """The address that the hosts reach this process at."""
        return f"{self._subnet}.1"

    def address(self, host: int) -> str:
        return f"{self._subnet}.{host + 2}"

    def __enter__(self) -> Self:
        _remove_left_over()
        self._subnet = _free_subnet()
        try:
            _ip(f"link add b{self._name} type bridge")
            _ip(f"addr add {self.program_address}/24 dev b{self._name}")
            _ip(f"link set b{self._name} up")
            for host in range(self._count):
                self._add(host)
        except BaseException:
            self.close()
            raise
        return self

    def _add(self, host: int) -> None:
        space, port = self._space(host), self._port(host)
        _ip(f"netns add {space}")
        _ip(f"link add {port} type veth peer name net netns {space}")
        _ip(f"link set {port} master b{self._name} up")
        _ip(f"-n {space} addr add {self.address(host)}/24 dev net")
        _ip(f"-n {space} link set net up")
        _ip(f"-n {space} link set lo up")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        for program in self._programs:
            program.kill()
            program.communicate()
        for host in range(self._count):
            # A namespace, and all that is in it, goes some time after its last process.
            _try_ip(f"link del {self._port(host)}")
            _try_ip(f"netns del {self._space(host)}")
        _try_ip(f"link del b{self._name}")

    def start(self, host: int, module: str, *arguments: object) -> dict[str, Any]:
        """Starts a server's command on a host, and returns what it says when it is ready."""
        command = [sys.executable, "-m", module, *map(str, arguments), "--ready-json"]
        command += ["--host", self.address(host), "--insecure-network"]
        place = ["setpriv", "--pdeathsig", "KILL", "ip", "netns", "exec", self._space(host)]
        program = subprocess.Popen([*place, *command], stdout=subprocess.PIPE, text=True)
        self._programs.append(program)
        assert program.stdout is not None
        ready: dict[str, Any] = json.loads(program.stdout.readline())
        return ready

    def cut_off(self, host: int) -> None:
        """Cuts a host off: nothing reaches it, nothing comes from it, and nobody is told.

        The others find within seconds, rather than a minute, that nobody has its address any more.
        """
        _ip(f"link set {self._port(host)} nomaster")
        _ip(f"neigh flush dev b{self._name}")
        for other in range(self._count):
            _ip(f"-n {self._space(other)} neigh flush dev net")

    def connect(self, host: int) -> None:
        """Ends :meth:`cut_off`."""
        _ip(f"link set {self._port(host)} master b{self._name}")

    def _space(self, host: int) -> str:
        return f"ns{self._name}h{host}"

    def _port(self, host: int) -> str:
        return f"p{self._name}h{host}"


def _ip(arguments: str) -> str:
    command = ["ip", *arguments.split()]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _try_ip(arguments: str) -> None:
    """Runs it where what it removes may not have been made."""
    with contextlib.suppress(subprocess.CalledProcessError):
        _ip(arguments)


def _free_subnet() -> str:
    """Returns the first three numbers of addresses that no interface has."""
    taken = _ip("-o -4 addr show")
    numbers = itertools.count(os.getpid())
    subnets = (f"10.{200 + number // 250 % 50}.{number % 250}" for number in numbers)
    return next(subnet for subnet in subnets if f" {subnet}." not in taken)


def names_of(process: int) -> list[str]:
    """Returns the names of the bridges, ports and namespaces of a process that still exist."""
    return [name for name, made_by in _names() if made_by == process]


def processes_in(space: str) -> str:
    """Returns the ids of the processes that run in a namespace."""
    return _ip(f"netns pids {space}")


def _names() -> list[tuple[str, int]]:
    """Returns the names of all networks' parts, each with the id of the process that made it."""
    shown = _ip("-o link show") + _ip("netns list")
    return sorted({(found[0], int(found[1])) for found in _NAME.finditer(shown)})


def _remove_left_over() -> None:
    for name, made_by in _names():
        if not os.path.exists(f"/proc/{made_by}"):
            _try_ip(f"netns del {name}" if name.startswith("ns") else f"link del {name}")
