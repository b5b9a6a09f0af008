"""A request to a parameter server as it arrived, and its reply.

Knows no network, no session and no values. Invariant: a body goes with the header it came with.
"""

from __future__ import annotations

from typing import NamedTuple

from pstrain.paramserver.headers import Header
from pstrain.paramserver.messages import Body, Received

Reply = tuple[Header, Body]


class Call(NamedTuple):
    """A request as it arrived."""

    header: Header
    body: Received
