"""How many files and sockets this process may have open at once.

A shell gives its processes 1,024, which a server of a socket per client uses up, and the kernel
many more to those who ask. Knows nothing of who opens them. Invariant: the limit never falls.
"""

from __future__ import annotations

from typing import Final

__all__ = ["allow_most_files"]

_MOST_FILES: Final = 65_536


def allow_most_files() -> int | None:
    """Raises the limit to 65,536, or what the system grants; the limit, None where none is told.

    For processes that serve. A user's function there that calls `select` fails beyond 1,024 open
    files, where it could have opened none.
    """
    try:
        import resource
    except ImportError:  # not a Unix
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError):  # macOS refuses what is beyond its own limit
        return soft
    return most
