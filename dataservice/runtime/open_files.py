"""How many files and sockets this process may have open at once.

A shell usually limits its processes to 1,024, which a server with a socket per client can exceed.
The kernel allows many more to a process that asks. Knows nothing of who opens files. Invariant: the
limit is never lowered.
"""

from __future__ import annotations

from typing import Final

from dataservice.errors import ResourceExhaustedError

_MOST_FILES: Final = 65_536


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
    """Raises the limit if it is below ``count``, for a program that otherwise keeps its own.

    Raises ResourceExhaustedError, which names ``user``, if the system does not allow so many.
    """
    try:
        import resource
    except ImportError:  # not a Unix
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY or limit >= count:
        return
    granted = allow_most_files()
    if granted is not None and granted < count:
        raise ResourceExhaustedError(
            f"{user} takes about {count:,} open files, and this system allows a process {granted:,}"
            ": raise its hard limit (ulimit -Hn, or LimitNOFILE of the service)"
        )
