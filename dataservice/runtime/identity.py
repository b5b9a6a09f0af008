"""Ids for things that come and go (readers, workers, iterations) and of the host they are on.

Random, hence kept out of everything that decides. Invariant: 48 random bits, so ids of one
cluster do not collide.
"""

from __future__ import annotations

import functools
import pathlib
import secrets
import socket

# New at every start of a kernel, and the same in all its containers.
_BOOT_ID = pathlib.Path("/proc/sys/kernel/random/boot_id")


def new_id(prefix: str) -> str:
    """``prefix`` followed by a dash and 12 random hexadecimal digits."""
    return f"{prefix}-{secrets.token_hex(6)}"


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
