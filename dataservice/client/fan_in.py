"""Chooses the workers that one reader streams from, where many workers meet many readers.

Which of them; how many is in `pairs`. Pure. Invariant: a worker that was chosen stays so while it
is there; nobody reads from fewer than ``pairs.LEAST_WORKERS``, nor leaves one out, unless that many
can be heard; a worker that comes later is chosen by as many readers as one that was there before
them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

from dataservice import pairs

_Rank = tuple[bool, bytes]


class FanIn:
    """The choice of one reader. By rendezvous hashing, so that readers spread over the workers.

    ``is_here`` tells of an address whether its worker is in the reader's own process: the first
    to be chosen, as no other is as fast.
    """

    def __init__(self, reader_id: str, is_here: Callable[[str], bool] = lambda _: False) -> None:
        self._reader_id = reader_id
        self._is_here = is_here
        self._chosen: set[str] = set()
        self._ranks: dict[str, _Rank] = {}
        self._best_first: list[str] = []
        self.readers = 1
        """Who share the windows, this reader too."""
        self.is_settled = True
        """Whether so many will stay; else it reads from the least, since it gives up no stream."""

    def among(self, addresses: Mapping[str, str], failing: int) -> dict[str, str]:
        """Those of ``addresses``, by worker id, to read from.

        ``failing``: so many of those chosen before cannot be heard, and others are added for them.
        """
        self._chosen &= addresses.keys()
        self._rank_all(addresses)
        count = pairs.LEAST_WORKERS
        if self.is_settled:
            count = pairs.workers_per_reader(len(addresses), self.readers)
        # The best of those that are there now, however many were chosen: else nobody who has
        # enough workers would read from one that is added to them.
        self._chosen.update(self._best_first[: count + failing])
        return {
            worker_id: addresses[worker_id] for worker_id in addresses if worker_id in self._chosen
        }

    def _rank_all(self, addresses: Mapping[str, str]) -> None:
        if addresses.keys() == self._ranks.keys():
            return
        self._ranks = {
            worker_id: self._ranks.get(worker_id) or self._rank(worker_id, address)
            for worker_id, address in addresses.items()
        }
        self._best_first = sorted(self._ranks, key=self._ranks.__getitem__)

    def _rank(self, worker_id: str, address: str) -> _Rank:
        text = f"{self._reader_id} {worker_id}"
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        return not self._is_here(address), digest
