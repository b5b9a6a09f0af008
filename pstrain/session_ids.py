"""The ids of sessions, which order them: of two sessions the one with the greater id is newer.

Servers and trainers prefer the newer session, so of two programs that take a cluster over at once
the same one wins everywhere. Knows no servers. Invariant: the sessions of one program lie together
in this order, so a program that restores its session does not displace a program that came later.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable

from dataservice.runtime.identity import new_id

_TIME = re.compile(r"session-(\d{20})\b")


def new_session(known: Iterable[str | None] = (), kind: str = "") -> str:
    """Returns the id of a session that is newer than the sessions ``known``.

    The id has the time, and a later one if the clock is behind that of an earlier program.
    ``kind`` is a part of the id.
    """
    times = [_time_of(session) for session in known if session is not None]
    time_ns = max([time.time_ns(), *(known_ns + 1 for known_ns in times)])
    return new_id(f"session-{time_ns:020d}{kind}")


def renewed(session: str) -> str:
    """Returns the id of the session by which a program replaces its own session."""
    first, _, number = session.partition(".")
    return f"{first}.{int(number or 0) + 1:06d}"


def is_older(session: str, other: str) -> bool:
    """True if ``session`` has to give way to ``other``."""
    return session < other


def _time_of(session: str) -> int:
    found = _TIME.match(session)
    return 0 if found is None else int(found[1])
