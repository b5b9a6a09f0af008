"""The order in which a session begins on the parameter servers of a cluster.

Serves the strategy with a coordinator and the chief of the V1 form, which say how a server is asked
and for how long. Invariant: once a session that takes over has begun everywhere, the program that
had the servers before gets none of them back; a session that is renewed takes no server from
another program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def take_over(servers: int, begin_at: Callable[[int], object]) -> None:
    """Begins a session on every server, in place of whichever session it has, in two rounds.

    A replaced program may restore its own session on a server that restarts, as long as it still
    holds another server. After the first round it holds none, so any server tells it that it was
    replaced; the second round takes back the servers that it restored meanwhile.
    """
    for ps in 2 * tuple(range(servers)):
        begin_at(ps)


def renew(
    replaced: str, statuses: Sequence[dict[str, Any]], begin_at: Callable[[int, str, str], object]
) -> None:
    """Begins a session on every server that still has the session ``replaced``, or has none.

    Starts with the servers that have a session, because these tell, by AbortedError, whether
    another program has taken over. ServerRestartedError if a server was restarted after its
    ``status`` was read: read all of them again.
    """
    for ps, status in sorted(enumerate(statuses), key=lambda each: each[1]["session"] is None):
        begin_at(ps, replaced, status["incarnation"])
