"""Claims of rows for keys, as messages to the servers that hold a key mapping, and their replies.

Knows no network. Invariant: each server gets one message, however many shards of the mapping it
holds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pstrain.config import ParameterConfig
from pstrain.features.eviction import Eviction, evict
from pstrain.features.key_map import KeyMaps, KeyQuery
from pstrain.paramserver.messages import Header, LateBody, Message, body_arrays
from pstrain.trainer.consistent_reads import WaitRestored, consistent_read
from pstrain.trainer.evicting import ServerSteps
from pstrain.trainer.outgoing import Answers
from pstrain.vocabulary import VariableSpec

Ask = Callable[[Mapping[int, Message]], Answers]


class KeyClaims(ABC):
    """The requests of parameters on servers for variables whose values are keys."""

    session: str
    wait_restored: WaitRestored
    key_maps: KeyMaps
    hold_closures: Callable[[], AbstractContextManager[None]]
    check_goes_on: Callable[[], None]
    """Raises an error if the program has to go back to a checkpoint itself."""

    @property
    @abstractmethod
    def config(self) -> ParameterConfig:
        """The time-outs of requests to servers."""

    @abstractmethod
    def _answers(self, messages_by_ps: Mapping[int, Message]) -> Answers:
        """Sends one message to each of some servers; returns the replies."""

    @abstractmethod
    def ask_all(self, headers: Mapping[int, Header], *, timeout_s: float) -> dict[int, Header]:
        """Sends messages without a body; returns the headers of the replies."""

    @consistent_read
    def claim(self, spec: VariableSpec, asked: KeyQuery, *, is_training: bool) -> NDArray[np.int64]:
        """Returns the rows of keys; below 0 for a key without a row (``NO_ROW``, ``NO_ROW_EVER``).

        Claims are made at once, apart from the changes of closures, and are idempotent.
        """
        return _claim(self._answers, spec, asked, is_training=is_training)

    @consistent_read
    def count_keys(self, spec: VariableSpec) -> dict[str, int]:
        """Counts the rows that are ``used`` and the claims that were ``refused``."""
        headers: dict[int, Header] = {}
        for index, shard in enumerate(spec.shards):
            header = headers.setdefault(shard.ps, {"kind": "count_keys", "shards": []})
            header["shards"].append([spec.id, index])
        replies = self.ask_all(headers, timeout_s=self.config.transfer_timeout_s).values()
        return {what: sum(reply[what] for reply in replies) for what in ("used", "refused")}

    @consistent_read
    def evict(self, eviction: Eviction) -> int:
        """Evicts keys, as :func:`pstrain.features.eviction.evict` does; returns how many.

        If a restore undoes the eviction before it has ended, it is done again afterwards, unless
        the program itself goes back to the checkpoint.
        """
        session = self.session
        with self.reassigning_rows([eviction.mapping.id]):
            self.check_goes_on()
            return evict(eviction, ServerSteps(self._answers, session, self.config.chunk_bytes))

    @contextmanager
    def reassigning_rows(self, variables: Sequence[int]) -> Iterator[None]:
        """Opens a scope that changes values at once.

        If they are keys, no closure may use the old rows of keys: running closures end first,
        others wait, and cached rows are forgotten. No snapshot is taken meanwhile.
        """
        if not self.key_maps.any_holds_keys(variables):
            yield
            return
        with self.hold_closures(), self.key_maps.moving:
            try:
                yield
            finally:
                self.key_maps.forget(variables)


def _claim(
    ask: Ask, spec: VariableSpec, asked: KeyQuery, *, is_training: bool
) -> NDArray[np.int64]:
    items: dict[int, list[list[int]]] = {}
    places: dict[int, list[slice]] = {}
    arrays: dict[int, list[Any]] = {}
    for index, part, (keys, _, starts, stops, may_claim) in asked.by_shard(spec):
        ps = spec.shards[index].ps
        items.setdefault(ps, []).append([spec.id, index, len(keys)])
        places.setdefault(ps, []).append(part)
        arrays.setdefault(ps, []).extend([keys, starts, stops, may_claim])
    header = {"kind": "claim", "is_training": is_training}
    replies = ask({ps: ({**header, "items": items[ps]}, LateBody.of(arrays[ps])) for ps in items})
    rows = np.empty(len(asked.keys), np.int64)
    for ps, reply in replies.items():
        parts = [("int64", (count,)) for _, _, count in items[ps]]
        for place, found in zip(places[ps], body_arrays(reply.body, parts), strict=True):
            rows[place] = found
    return rows
