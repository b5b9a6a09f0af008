"""The ids of sessions, and the order that they give: which of two sessions is newer.

Servers and trainers prefer the newer session, so of two programs that take a cluster over at once
the same one wins everywhere. Knows no servers. Invariant: the sessions of one program lie together
in this order, so a program that restores its session does not displace a program that came later;
an id of another form is older than all others, so a new session can always replace it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable

from dataservice.runtime.identity import new_id

# The time may have more digits than new_session writes: it has to stay above every known time. The
# limits are those of conversions to int.
_FORM = re.compile(r"session-([0-9]{20,999})(-[^.]*)?(?:\.([0-9]{1,999}))?")


def new_session(known: Iterable[str | None] = (), kind: str = "") -> str:
    """Returns the id of a session that is newer than the sessions ``known``.

    The id has the time, and a later one if the clock is behind that of an earlier program.
    ``kind`` is a part of the id.
    """
    times = [_order(session)[0] for session in known if session is not None]
    time_ns = max([time.time_ns(), *(known_ns + 1 for known_ns in times)])
    return new_id(f"session-{time_ns:020d}{kind}")


def renewed(session: str) -> str:
    """Returns the id of the session by which a program replaces its own session."""
    first, _, number = session.partition(".")
    return f"{first}.{int(number or 0) + 1:06d}"


def is_older(session: str, other: str) -> bool:
    """True if ``session`` has to give way to ``other``."""
    return _order(session) < _order(other)


def _order(session: str) -> tuple[int, str, int, str]:
    """Returns the key by which sessions are ordered: the time and the rest of the id.

    The time is -1 if the id has another form than those of this module.
    """
    found = _FORM.fullmatch(session)
    if found is None:
        return -1, "", 0, session
    return int(found[1]), found[2] or "", int(found[3] or 0), session
