"""Drops variables from the parameter servers once nothing refers to them.

Knows no values. Invariant: what cannot be dropped now is dropped later; a server that does not
answer holds the program up for a short time only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, Final

from pstrain.errors import DataServiceError
from pstrain.paramserver.messages import Header
from pstrain.variables.lifetimes import Lifetimes
from pstrain.vocabulary import VariableSpec

logger = logging.getLogger(__name__)

_TIMEOUT_S: Final = 5.0


def drop_ended(
    lifetimes: Lifetimes, ask_all: Callable[..., Any], within_s: float | None
) -> list[VariableSpec]:
    """Drops the variables whose lifetimes have ended; returns them, or none if it has to be later.

    ``within_s``: how long servers may take, at most a few seconds. ``ask_all``: sends a message to
    each of several servers.
    """
    timeout_s = _TIMEOUT_S if within_s is None else min(_TIMEOUT_S, within_s)
    ended = lifetimes.take_ended() if timeout_s > 0 else []
    dropped: list[VariableSpec] = []
    try:
        if ended:
            ask_all(_messages(ended), timeout_s=timeout_s)
        dropped = ended
    except DataServiceError as error:
        logger.warning("dropped variables are still on parameter servers: %s", error)
    finally:
        if not dropped:
            lifetimes.put_back(ended)
    return dropped


def forget_those_of(variables: Iterable[int], known: dict[tuple[int, int], Any]) -> None:
    """Removes what is ``known`` by (variable id, shard index); other threads may add to it."""
    dropped = set(variables)
    for key in known.copy():
        if key[0] in dropped:
            known.pop(key, None)


def _messages(ended: list[VariableSpec]) -> dict[int, Header]:
    messages: dict[int, Header] = {}
    for spec in ended:
        for ps in {shard.ps for shard in spec.shards}:
            message = messages.setdefault(ps, {"kind": "delete", "variables": []})
            message["variables"].append(spec.id)
    return messages
