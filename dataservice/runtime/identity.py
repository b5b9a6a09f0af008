"""Ids of short-lived things (readers, workers, iterations), and the identity of host and process.

Ids are random, so code that decides must not make them. Invariant: an id has 48 random bits, so the
ids of one cluster do not collide.
"""

from __future__ import annotations

import functools
import os
import pathlib
import secrets
import socket
import time

_IMPORTED_S = time.monotonic()
_OWN_STAT = pathlib.Path("/proc/self/stat")
_UPTIME = pathlib.Path("/proc/uptime")
# Changes at every start of the kernel, and is the same in all containers on that kernel.
_BOOT_ID = pathlib.Path("/proc/sys/kernel/random/boot_id")


def new_id(prefix: str) -> str:
    """Returns ``prefix`` followed by a dash and 12 random hexadecimal digits."""
    return f"{prefix}-{secrets.token_hex(6)}"


def process_age_s() -> float:
    """Returns how long this process has run.

    If the system does not tell, returns the time since this module was imported.
    """
    try:
        # The process name, in brackets, may contain spaces; the start time, in clock ticks, is the
        # 20th field after it.
        started = int(_OWN_STAT.read_text().rpartition(")")[2].split()[19])
        uptime_s = float(_UPTIME.read_text().split()[0])
        return max(0.0, uptime_s - started / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return time.monotonic() - _IMPORTED_S


@functools.cache
def host_identity() -> str:
    """Returns an identity that is equal for processes on one host, and different on other hosts.

    It is the boot id of the kernel. Only if that cannot be read is it the host's name, which
    machines made from one image, and containers, may share.
    """
    try:
        boot = _BOOT_ID.read_text().strip()
    except OSError:
        boot = ""
    return f"boot:{boot}" if boot else f"name:{socket.gethostname()}"
