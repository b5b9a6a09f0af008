"""The latest grant of windows to each stream, found by the stream, its worker or its reader.

Pure; part of a window table. An epoch has a stream for each of thousands of pairs, and workers and
readers leave by the hundred, so that those of one of them are found without a walk through all.
Knows no windows but their indices. Invariant: both indexes hold exactly the streams that have a
grant.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import NamedTuple, TypeAlias

from dataservice.vocabulary import ReaderId, WorkerId

Stream: TypeAlias = tuple[WorkerId, ReaderId]


class Grant(NamedTuple):
    """The windows that a stream got under its latest request, by the request's sequence number."""

    sequence: int
    windows: tuple[int, ...]


class Grants(MutableMapping[Stream, Grant]):
    """The grants by stream. Not thread-safe."""

    def __init__(self) -> None:
        self._grants: dict[Stream, Grant] = {}
        self._readers_of: dict[WorkerId, set[ReaderId]] = {}
        self._workers_of: dict[ReaderId, set[WorkerId]] = {}

    def __getitem__(self, stream: Stream) -> Grant:
        return self._grants[stream]

    def __setitem__(self, stream: Stream, grant: Grant) -> None:
        if stream not in self._grants:
            worker, reader = stream
            self._readers_of.setdefault(worker, set()).add(reader)
            self._workers_of.setdefault(reader, set()).add(worker)
        self._grants[stream] = grant

    def __delitem__(self, stream: Stream) -> None:
        del self._grants[stream]
        worker, reader = stream
        self._readers_of[worker].discard(reader)
        self._workers_of[reader].discard(worker)

    def __iter__(self) -> Iterator[Stream]:
        return iter(self._grants)

    def __len__(self) -> int:
        return len(self._grants)

    def clear(self) -> None:
        """Forgets all grants at once, as an iteration that is finished does."""
        self._grants.clear()
        self._readers_of.clear()
        self._workers_of.clear()

    def workers(self) -> set[WorkerId]:
        """Returns the workers that have a grant."""
        return {worker for worker, readers in self._readers_of.items() if readers}

    def drop_worker(self, worker: WorkerId) -> None:
        """Forgets the grants of a worker that is gone."""
        for reader in self._readers_of.pop(worker, ()):
            del self._grants[worker, reader]
            self._workers_of[reader].discard(worker)

    def drop_reader(self, reader: ReaderId) -> None:
        """Forgets the grants for a reader that is gone."""
        for worker in self._workers_of.pop(reader, ()):
            del self._grants[worker, reader]
            self._readers_of[worker].discard(reader)
