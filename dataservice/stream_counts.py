"""From how many workers each reader reads, where several readers share the windows of a job.

Each pair of a reader and a worker costs a stream, threads at both ends and calls to the dispatcher,
so a reader reads from a part of the workers only; the fewer readers there are, the larger the part.
Pure. Readers choose their number of workers by it, and the dispatcher hands out the last windows of
an epoch by it.
"""

from __future__ import annotations

from typing import Final

LEAST_WORKERS: Final = 8
# The average, so that a slow reader leaves none of its workers idle.
READERS_PER_WORKER: Final = 4


def workers_per_reader(workers: int, readers: int) -> int:
    """Returns from how many workers each reader reads, if all workers can be reached."""
    share = -(-READERS_PER_WORKER * workers // max(1, readers))
    return min(workers, max(LEAST_WORKERS, share))
