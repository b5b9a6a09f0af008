"""Ids for things that come and go (readers, workers, iterations), of their host and process.

Random, hence kept out of everything that decides. Invariant: 48 random bits, so ids of one
cluster do not collide.
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
# New at every start of a kernel, and the same in all its containers.
_BOOT_ID = pathlib.Path("/proc/sys/kernel/random/boot_id")


def new_id(prefix: str) -> str:
    """``prefix`` followed by a dash and 12 random hexadecimal digits."""
    return f"{prefix}-{secrets.token_hex(6)}"


def process_age_s() -> float:
    """How long this process has run; where the system does not tell, since this was imported."""
    try:
        # The name, in brackets, may hold spaces; the start is the 20th field after it, in ticks.
        started = int(_OWN_STAT.read_text().rpartition(")")[2].split()[19])
        uptime_s = float(_UPTIME.read_text().split()[0])
        return max(0.0, uptime_s - started / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return time.monotonic() - _IMPORTED_S


@functools.cache
def host_identity() -> str:
    """Equal for processes on one host and only for them, as far as the host tells.

    A host's name alone is no identity: machines made from one image, and containers, share names.
    """
    try:
        boot = _BOOT_ID.read_text().strip()
    except OSError:
        boot = ""
    return f"boot:{boot}" if boot else f"name:{socket.gethostname()}"
