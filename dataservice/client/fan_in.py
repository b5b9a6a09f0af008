"""Chooses the workers that one reader streams from, in jobs with many workers and many readers.

Responsible for which workers are chosen; `pairs` decides how many. Pure: knows no streams and no
clock. Invariant: a chosen worker stays chosen while it is a member; a reader leaves workers out
only if it chooses at least ``pairs.LEAST_WORKERS`` that are not failing; a worker that comes late
is chosen by as many readers, on average, as one that was there from the beginning.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

from dataservice import pairs

_Rank = tuple[bool, bytes]


class FanIn:
    """The choice of one reader, by rendezvous hashing, so that readers spread over the workers.

    ``is_here`` tells whether the worker at an address is in the reader's own process. Such workers
    are chosen first, as no others are as fast.
    """

    def __init__(self, reader_id: str, is_here: Callable[[str], bool] = lambda _: False) -> None:
        self._reader_id = reader_id
        self._is_here = is_here
        self._chosen: set[str] = set()
        self._ranks: dict[str, _Rank] = {}
        self._best_first: list[str] = []
        self.readers = 1
        """The number of readers that share the windows, including this one."""
        self.is_settled = True
        """Whether ``readers`` is final; until then the reader chooses the least number of workers,
        since a choice is never taken back."""

    def among(self, addresses: Mapping[str, str], failing: int) -> dict[str, str]:
        """Returns those of ``addresses``, by worker id, to read from.

        ``failing`` is the number of workers chosen before whose streams fail; as many others are
        added for them.
        """
        self._chosen &= addresses.keys()
        self._rank_all(addresses)
        count = pairs.LEAST_WORKERS
        if self.is_settled:
            count = pairs.workers_per_reader(len(addresses), self.readers)
        # The best of the present workers, however many are chosen already. Otherwise a reader that
        # has enough workers would never read from one that comes later.
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
