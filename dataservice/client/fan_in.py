"""Which workers feed one reader, where many workers meet many readers.

Each pair of them costs a stream, threads at both ends and calls to the dispatcher, so readers that
share the windows of an epoch read from some workers each, the more the fewer readers there are.
Pure. Invariant: a worker that was chosen stays so while it is there; nobody reads from fewer than
``LEAST`` workers, nor leaves one out, unless that many can be heard.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

LEAST: Final = 8
# Readers of each worker, on average, so that a slow one leaves none of its workers idle.
_READERS_PER_WORKER: Final = 4


class FanIn:
    """The choice of one reader. By rendezvous hashing, so that readers spread over the workers."""

    def __init__(self, reader_id: str) -> None:
        self._reader_id = reader_id
        self._chosen: set[str] = set()
        self.readers = 1
        """Who share the windows, this reader too."""

    def among(self, addresses: Mapping[str, str], failing: int) -> dict[str, str]:
        """Those of ``addresses``, by worker id, to read from.

        ``failing``: so many of those chosen before cannot be heard, and others are added for them.
        """
        self._chosen &= addresses.keys()
        share = -(-_READERS_PER_WORKER * len(addresses) // max(1, self.readers))
        more = max(LEAST, share) + failing - len(self._chosen)
        if more > 0:
            others = sorted(addresses.keys() - self._chosen, key=self._rank)
            self._chosen.update(others[:more])
        return {
            worker_id: addresses[worker_id] for worker_id in addresses if worker_id in self._chosen
        }

    def _rank(self, worker_id: str) -> bytes:
        return hashlib.blake2b(f"{self._reader_id} {worker_id}".encode(), digest_size=8).digest()
