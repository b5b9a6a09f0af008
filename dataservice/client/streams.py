"""A reader's streams by worker: which are open, which broke, and when to retry.

Responsible for opening, reopening and dropping streams as workers come and go. Knows no rows. Not
thread safe: the reader's lock guards it. Invariant: after a stream broke, its worker gets a new one
only once the dispatcher was told, so that leases of the two streams cannot be confused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

from dataservice.client.worker_stream import WorkerStream
from dataservice.errors import DataLossError, DataServiceError
from dataservice.runtime.threads import StoppableThread

Stream = TypeVar("Stream", bound=WorkerStream)

MAX_DAMAGED_STREAMS = 10
_RECONNECT_FIRST_S = 0.2
_RECONNECT_MAX_S = 2.0


class Slot(Generic[Stream]):
    """A worker's place among the streams."""

    def __init__(self, stream: Stream, attempts: int, error: str = "") -> None:
        self.stream = stream
        self.attempts = attempts
        self.error = error  # what the last stream broke with
        self.has_ended = False
        self.is_reported = False
        self.more_follows = False
        self.broken_s: float | None = None

    def is_done(self) -> bool:
        """True if nothing more will come from this stream."""
        return self.has_ended or self.broken_s is not None

    def is_due(self, now_s: float) -> bool:
        """True if the stream broke, the dispatcher knows it, and the retry backoff has passed."""
        if self.broken_s is None or not self.is_reported:
            return False
        pause_s = min(_RECONNECT_FIRST_S * 2**self.attempts, _RECONNECT_MAX_S)
        return now_s >= self.broken_s + pause_s


def stop_threads(own: StoppableThread, streams: Iterable[WorkerStream], timeout_s: float) -> None:
    """Stops a reader's own thread and those of its streams, all within ``timeout_s``.

    A thread inside the transport can crash the process when the interpreter shuts down.
    """
    deadline_s = time.monotonic() + timeout_s
    own.stop(timeout_s)
    for stream in streams:
        stream.stop(max(0.0, deadline_s - time.monotonic()))


class StreamTable(Generic[Stream]):
    """The streams of one reader, by worker. `open_stream(worker_id, address)` starts a stream."""

    def __init__(self, open_stream: Callable[[str, str], Stream]) -> None:
        self._open_stream = open_stream
        self._slots: dict[str, Slot[Stream]] = {}
        # The workers whose streams broke and have brought no rows since: usually none of thousands.
        self._troubled: dict[str, None] = {}
        self._damaged = 0

    def update(self, workers: Mapping[str, str], now_s: float) -> None:
        """Opens streams to new workers, reopens broken ones, drops those to lost workers."""
        if not self._troubled and workers.keys() == self._slots.keys():
            return
        for worker_id in [known for known in self._slots if known not in workers]:
            self._slots.pop(worker_id).stream.drop()
            self._troubled.pop(worker_id, None)
        for worker_id, address in workers.items():
            slot = self._slots.get(worker_id)
            if slot is None:
                self._slots[worker_id] = Slot(self._open_stream(worker_id, address), 0)
            elif slot.is_due(now_s):
                stream = self._open_stream(worker_id, address)
                self._slots[worker_id] = Slot(stream, slot.attempts + 1, slot.error)

    def record_frame(self, stream: WorkerStream, *, more_follows: bool = False) -> None:
        """Records that rows arrived, so the worker is well, and whether more frames follow."""
        if (slot := self._slot_of(stream)) is not None:
            slot.more_follows = more_follows
            if slot.attempts and slot.broken_s is None:
                slot.attempts = 0
                del self._troubled[stream.worker_id]

    def record_end(self, stream: WorkerStream) -> None:
        """Records that the worker has nothing more for this reader."""
        if (slot := self._slot_of(stream)) is not None:
            slot.has_ended = True

    def record_broken(self, stream: WorkerStream, error: DataServiceError, now_s: float) -> bool:
        """Records that the stream broke, so that rows leased to it may not arrive.

        Returns False if too many streams were damaged to try again.
        """
        self._damaged += isinstance(error, DataLossError)
        if (slot := self._slot_of(stream)) is not None:
            slot.broken_s = now_s
            slot.error = str(error)
            self._troubled[stream.worker_id] = None
        return self._damaged <= MAX_DAMAGED_STREAMS

    def _slot_of(self, stream: WorkerStream) -> Slot[Stream] | None:
        """Returns the stream's slot; None if a newer stream has it, or its worker is gone."""
        slot = self._slots.get(stream.worker_id)
        return slot if slot is not None and slot.stream is stream else None

    def unreported(self) -> tuple[Slot[Stream], ...]:
        """Returns the slots whose streams broke without a report to the dispatcher so far."""
        slots = self._troubled_slots()
        return tuple(slot for slot in slots if slot.broken_s is not None and not slot.is_reported)

    def _troubled_slots(self) -> list[Slot[Stream]]:
        return [self._slots[worker_id] for worker_id in self._troubled]

    def await_reopening(self) -> bool:
        """True if a stream broke and has yet to be opened again."""
        return any(slot.broken_s is not None for slot in self._troubled_slots())

    def count_failing(self) -> int:
        """Returns the number of workers whose streams broke and have brought no rows since."""
        slots = self._troubled_slots()
        return sum(slot.broken_s is not None or slot.attempts > 0 for slot in slots)

    def unreachable(self) -> dict[str, str]:
        """Returns the addresses of workers that did not answer at the last attempt, and why."""
        silent = (slot for slot in self._troubled_slots() if not slot.stream.is_heard)
        return {slot.stream.address: slot.error for slot in silent}

    def can_reach_some(self) -> bool:
        """True if at least one worker is not known to be unreachable."""
        return len(self.unreachable()) < len(self._slots)

    def have_announced_frames(self) -> bool:
        """True if a worker with an open stream has announced another frame."""
        return any(slot.more_follows and not slot.is_done() for slot in self._slots.values())

    def are_done(self) -> bool:
        """True if nothing more will come from any stream."""
        return all(slot.is_done() for slot in self._slots.values())

    def have_ended(self, worker_ids: Iterable[str]) -> bool:
        """True if each of these workers said that it has nothing more."""
        slots = (self._slots.get(worker_id) for worker_id in worker_ids)
        return all(slot is not None and slot.has_ended for slot in slots)

    def open_of(self, worker_ids: Iterable[str]) -> dict[str, Stream]:
        """Returns those of these workers' streams from which more may come."""
        slots = ((worker_id, self._slots.get(worker_id)) for worker_id in worker_ids)
        return {
            worker_id: slot.stream
            for worker_id, slot in slots
            if slot is not None and not slot.is_done()
        }

    def all(self) -> list[Stream]:
        """Returns every stream."""
        return [slot.stream for slot in self._slots.values()]
