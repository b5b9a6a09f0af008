"""How many files and sockets this process may have open at once.

A shell usually limits its processes to 1,024, which a server with a socket per client can exceed.
The kernel allows many more to a process that asks. Knows nothing of who opens files. Invariant: the
limit is never lowered.
"""

from __future__ import annotations

import errno
from typing import Final

from dataservice.errors import ResourceExhaustedError

_REMEDY: Final = "allow it more (`ulimit -n`, LimitNOFILE= of systemd, --ulimit nofile= of docker)"
_MOST_FILES: Final = 65_536
# What a program has open besides what it asks for: with room, and at the very least.
_OTHER_FILES: Final = 512
_LEAST_OTHER_FILES: Final = 64


def allow_most_files() -> int | None:
    """Raises the limit to 65,536, or as far as the system allows; returns the limit.

    Returns None on systems without such limits. For server processes. A user's function that calls
    `select` there fails beyond 1,024 open files; under the old limit it could have opened none.
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


def allow_files(count: int, user: str) -> None:
    """Has the limit leave ``count`` files to ``user``, in a program that otherwise keeps its own.

    Raises ResourceExhaustedError, which names ``user``, if the system does not allow so many.
    """
    try:
        import resource
    except ImportError:  # not a Unix
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    granted = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    try:
        # No more than that, since `select` fails beyond 1,024 and macOS refuses large numbers.
        resource.setrlimit(resource.RLIMIT_NOFILE, (granted, hard))
    except (OSError, ValueError):
        granted = soft
    if granted < count + _LEAST_OTHER_FILES:
        raise ResourceExhaustedError(
            f"{user} takes {count:,} open files besides those of the program, and this system "
            f"allows a process {granted:,}: raise its hard limit (ulimit -Hn, or LimitNOFILE of "
            "the service)"
        )


def is_limit(error: BaseException) -> bool:
    """True if an error says that this process, or the system, may open no further file."""
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)


def limit_reached(who: str) -> ResourceExhaustedError:
    """Returns the error that says that ``who``, a process or its address, is at its limit."""
    return ResourceExhaustedError(
        f"{who} has as many files and sockets open as it may have: {_REMEDY}"
    )
