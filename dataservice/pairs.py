"""How many pairs of a reader and a worker have a stream, where many readers share the windows.

Each costs a stream, threads at both ends and calls to the dispatcher, so readers read from some
workers each, the more the fewer readers there are. Pure: readers choose by it, and the dispatcher
deals the last windows out by it.
"""

from __future__ import annotations

from typing import Final

LEAST_WORKERS: Final = 8
# On average, so that a slow reader leaves none of its workers idle.
READERS_PER_WORKER: Final = 4


def workers_per_reader(workers: int, readers: int) -> int:
    """From how many of the workers each of the readers reads, if all can be heard."""
    share = -(-READERS_PER_WORKER * workers // max(1, readers))
    return min(workers, max(LEAST_WORKERS, share))
