"""Iterators over a dataset that runs in this process, with positions that can be saved.

A saved position is a JSON-able dict: the plan's fingerprint, the epoch, the seeds that were drawn,
and the state of the stream. Invariant: an iterator that failed or was closed yields nothing more,
so no row is ever left out silently. A failed iterator raises its error again at each call. After
Ctrl-C an iterator goes on from its position before the interrupt, or is closed.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from types import TracebackType
from typing import Any, Final, NoReturn, TypeVar

import pyarrow as pa

from dataservice.dataset.anchor import Anchor
from dataservice.dataset.node import Node, times_of, unrepeatable, walk
from dataservice.dataset.omission_log import OmissionLog
from dataservice.dataset.optimise import optimise
from dataservice.dataset.positions import (
    check_saveable,
    goes_on_after_interrupt,
    without_live_positions,
)
from dataservice.dataset.receipts import Receipt, ReceiptSources
from dataservice.dataset.seeds import identity_of, node_of_identity
from dataservice.dataset.statistics import StatsCounter
from dataservice.dataset.stream import BatchStream, RunContext, State
from dataservice.dataset.timing import WorkLog
from dataservice.errors import FailedPreconditionError, InvalidArgumentError
from dataservice.runtime.machine.cores import available_cores
from dataservice.runtime.process.interrupts import NO_INTERRUPTS, HeldInterrupts, can_hold

_VERSION: Final = 1

Form = TypeVar("Form")


class DatasetIterator:
    """An iterator over the record batches of one pass. Threads that share it take turns.

    With `receipt_sources`, rows of a data service count as consumed once a receipt was
    acknowledged. With `restores`, nothing is read before a position is loaded.
    """

    def __init__(
        self,
        node: Node,
        epoch: int,
        stats: StatsCounter,
        receipt_sources: ReceiptSources | None = None,
        *,
        restores: bool = False,
    ) -> None:
        self._receipt_sources = receipt_sources
        self._node = node
        self._epoch = epoch
        self._stats = stats
        self._own = StatsCounter()
        self._omissions = OmissionLog()
        self._began_s = time.perf_counter()
        self._ended_s: float | None = None  # when the last batch was handed over
        self._failure: Exception | None = None
        self._failed_at: TracebackType | None = None
        # Reentrant: a signal handler may take a batch while its own thread holds the lock.
        self._turn = threading.RLock()
        self._interrupts = HeldInterrupts() if goes_on_after_interrupt(node) else NO_INTERRUPTS
        # A batch that was read but not returned because of an interrupt; the position before it.
        self._kept: tuple[pa.RecordBatch, State] | None = None
        # The position at which to reopen a stream that an interrupt broke off.
        self._broken_off: Anchor | None = None
        self._anchor = Anchor() if _can_go_back(node) else None
        self._stream: BatchStream | None = self._opened(node, epoch, restores=restores)
        stats.add(iterators=1)

    def _opened(self, node: Node, epoch: int, *, restores: bool = False) -> BatchStream:
        # The stream must not refer to the iterator, or an abandoned iterator would never be freed.
        closed = threading.Event()
        self._closed = closed
        plan = optimise(node)
        times = times_of(walk(plan))
        # A new log for this stream: the times of the stream before it are in the totals already.
        self._omissions.work = WorkLog()
        self._stats.watch(times, self._omissions.work)
        self._times = times
        self._retire = weakref.finalize(self, self._stats.retire, times, self._omissions.work)
        context = RunContext(
            epoch=epoch,
            cancelled=closed.is_set,
            threads=available_cores(),
            times=times,
            omitted=self._omissions.open_run(),
            restores=restores,
            receipt_sources=self._receipt_sources,
            interrupts=self._interrupts,
        )
        return plan.run(context)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        return self.next_as(_as_it_is)

    def get_next(self) -> pa.RecordBatch:
        """Does what ``next(iterator)`` does, as in TensorFlow."""
        return next(self)

    def next_as(self, form: Callable[[pa.RecordBatch], Form]) -> Form:
        """Returns the next batch, converted by `form`.

        A KeyboardInterrupt loses no rows: the next call returns the same rows, and the position
        stays the one before them. If the dataset reads the data service, the interrupt is held back
        until no rows are in hand; if it does not, the input of these rows is read again. If the
        dataset does both, or does not yield the same rows again, the interrupt closes the iterator.
        """
        if self._interrupts is NO_INTERRUPTS:
            return self._next_restorable(form)
        if self._kept is None and not can_hold():
            return form(self._next())
        self._check_failed()
        with self._interrupts as interrupts:
            if self._kept is None:
                before = self._state()
                try:
                    self._kept = self._next(), before
                except KeyboardInterrupt as error:
                    # False for a second interrupt: a batch that was in hand then may be lost.
                    if not interrupts.raised(error):
                        self._give_up()
                    raise
            try:
                formed = form(self._kept[0])
            except Exception:
                # Raised once: the next call returns the next batch, as without a service.
                self._kept = None
                raise
            interrupts.let_through()
        self._kept = None
        return formed

    def _next_restorable(self, form: Callable[[pa.RecordBatch], Form]) -> Form:
        anchor = self._anchor
        if anchor is None or self._failure is not None or not (anchor.is_set or can_hold()):
            return form(self._next())
        anchor.move(self._state)
        try:
            formed = form(self._next())
            # Inside the try: an interrupt just before it would lose the element in hand.
            anchor.count_element()
        except KeyboardInterrupt:
            self._give_up()
            self._broken_off = anchor
            raise
        except Exception:
            anchor.count_element()
            raise
        return formed

    def _check_failed(self) -> None:
        """Raises the error that ended the iterator again, with its original traceback only."""
        if self._failure is not None:
            raise self._failure.with_traceback(self._failed_at)

    def _next(self) -> pa.RecordBatch:
        # Locks here, where callers handle an interrupt. If a caller held the lock instead, an
        # interrupt that came while it is released, after the batch was made, would lose the batch.
        with self._turn:
            return self._next_in_turn()

    def _next_in_turn(self) -> pa.RecordBatch:
        self._check_failed()
        stream = self._live()
        began_s = time.perf_counter()
        between_s = 0.0 if self._ended_s is None else began_s - self._ended_s
        try:
            batch = next(stream)
        except StopIteration:
            self._omissions.announce_total()
            raise
        except BaseException as error:
            if not self._interrupts.raised(error):
                self._failure = error if isinstance(error, Exception) else None
                self._failed_at = error.__traceback__
                self._give_up()
            raise
        self._ended_s = time.perf_counter()
        waited_s = self._ended_s - began_s
        for counter in (self._stats, self._own):
            counter.add(batches=1, rows=batch.num_rows, wait_s=waited_s, compute_s=between_s)
        return batch

    def stats(self) -> dict[str, Any]:
        """Returns the counts and times of this iterator.

        `rows`, `elements`, `seconds` since the iterator was made, `wait_seconds` spent in `next`
        and their share `wait_share`; `verdict` as in `Dataset.stats`. `operators` of this process
        and `worker_operators` of the data workers have `name`, `batches`, `rows` and `time_s` each.
        `skipped` holds the counts and first messages of what on_error="skip" left out. An iterator
        over the data service adds `bytes` and `rows_per_second` of its reader.
        """
        total = self._own.total()
        seconds = max(time.perf_counter() - self._began_s, 1e-9)
        own = {
            "rows": total.rows,
            "elements": total.batches,
            "seconds": seconds,
            "wait_seconds": total.wait_s,
            "wait_share": min(1.0, total.wait_s / seconds),
            "verdict": total.verdict,
            "operators": [asdict(operator) for operator in self._times.totals()],
            "worker_operators": [asdict(o) for o in self._omissions.work.totals()],
            "skipped": self._omissions.total().to_json(),
        }
        return own | (self._stream.stats() if self._stream is not None else {})

    def _state(self) -> State:
        return self._live().state() if self._kept is None else self._kept[1]

    def _live(self) -> BatchStream:
        if self._stream is None and self._broken_off is not None:
            self._stream = self._restored(self._node, self._epoch, self._broken_off.restore)
            self._broken_off = None
        if self._stream is None:
            raise FailedPreconditionError(
                "the iterator is closed, or an error or interrupt ended it; make a new one with "
                "iter(dataset)"
            )
        return self._stream

    def state_dict(self) -> dict[str, Any]:
        """Returns the position before the next batch, for `load_state_dict` in any process.

        If the dataset reads the data service, the position says which rows were consumed, except
        those that other live readers of the job consumed; see `dataservice.merge_states`. Raises
        UnimplementedError if the position of an operator after `distribute` would not be exact,
        naming the operator, and for a job with a name under another policy than DYNAMIC.
        """
        check_saveable(self._node)
        return {
            "version": _VERSION,
            **identity_of(self._node),
            "epoch": self._epoch,
            "stream": without_live_positions(self._state()),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Moves to a position that an iterator over the same plan saved.

        Raises InvalidArgumentError for a position of another plan or version, or a malformed one,
        and FailedPreconditionError if the dataset reads the data service and an element of this
        iterator was taken already.
        """
        self._live()
        node = self._node_of(state)
        if self._own.total().batches and any(inner.kind == "service" for inner in walk(node)):
            raise FailedPreconditionError(
                "elements were already taken from this iterator, and the data service counts "
                "them as read; load the state into a new iterator, before its first element"
            )
        self.close()
        try:
            epoch = int(state["epoch"])
            position = state["stream"]
            stream = self._restored(node, epoch, lambda opened: opened.restore(position))
        except (KeyError, TypeError, IndexError) as error:
            raise InvalidArgumentError(f"malformed iterator state: {error!r}") from error
        self._node, self._epoch, self._stream = node, epoch, stream
        self._anchor = Anchor() if self._anchor is not None else None

    def _restored(
        self, node: Node, epoch: int, restore: Callable[[BatchStream], None]
    ) -> BatchStream:
        stream = self._opened(node, epoch, restores=True)
        try:
            restore(stream)
        except BaseException:
            stream.close()
            raise
        return stream

    def _node_of(self, state: Mapping[str, Any]) -> Node:
        if not isinstance(state, Mapping) or state.get("version") != _VERSION:
            raise InvalidArgumentError(
                f"not an iterator state of version {_VERSION}: {state!r:.200}"
            )
        return node_of_identity(self._node, state)

    def receipt(self) -> Receipt:
        """Returns a receipt for the rows of all elements so far.

        At the end of the pass it is also for rows that made no element. If the position of an
        operator after `distribute` cannot be saved, it may be for some rows of later elements too.
        Raises FailedPreconditionError for an iterator without `receipt_sources`.
        """
        if self._receipt_sources is None:
            raise FailedPreconditionError("this iterator has no holder: its rows are used up")
        return self._receipt_sources.receipt(self._state())

    @property
    def services(self) -> list[str]:
        """The targets of the data services that wait for receipts of this iterator."""
        return [] if self._receipt_sources is None else self._receipt_sources.services

    def close(self) -> None:
        """Releases files and threads; idempotent."""
        self._failure = self._failed_at = None
        self._give_up()
        if self._receipt_sources is not None:
            self._receipt_sources.abandon()

    def _give_up(self) -> None:
        self._closed.set()
        self._kept = self._broken_off = None
        self._retire()
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an iterator stays in its process; give away the dataset, and the iterator's "
            "state_dict() for its position"
        )

    def __repr__(self) -> str:
        kinds = " > ".join(node.kind for node in walk(self._node))
        is_closed = self._stream is None and self._broken_off is None
        state = ", closed" if is_closed else ""
        return f"<DatasetIterator of {kinds}, epoch {self._epoch}{state}>"

    def __enter__(self) -> DatasetIterator:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def _can_go_back(root: Node) -> bool:
    """True if rows can be read again: the plan is repeatable and reads no data service."""
    return not unrepeatable(root) and all(node.kind != "service" for node in walk(root))


def _as_it_is(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch
