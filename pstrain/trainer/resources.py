"""Per-trainer iterators: made on first use from a dataset function, shared by the closures.

Knows nothing of gRPC. Invariant: one iterator per resource and session, whose ``next`` is safe
from several closures at a time; the error of a dataset function is raised in each closure that uses
the iterator, and in no other; a closed iterator reads no more, and opens nothing.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import dataservice
from pstrain.errors import (
    CancelledError,
    ClosureInputError,
    InvalidArgumentError,
    UnimplementedError,
)
from pstrain.trainer.context import InputContext, call_with_context
from pstrain.trainer.staging import ClosureRun
from pstrain.variables.parameters import current_staging

logger = logging.getLogger(__name__)

_sources = itertools.count()
_CLOSED = "this per-worker iterator was closed: make another with iter()"

OnTaken = Callable[[int, Any], None]
"""Is called for each element that was taken: with the number of its iterator, and its receipt."""


class TakenElement(NamedTuple):
    """An element as it was taken, with its receipt, and the position before it if known."""

    element: Any
    receipt: Any
    position: dict[str, Any] | None


class _LockThen(AbstractContextManager[None]):
    """A lock scope that calls ``after`` after its end; a class, for each element enters two."""

    def __init__(self, lock: threading.Lock, after: Callable[[], None]) -> None:
        self._lock, self._after = lock, after

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        self._after()


class TrainerIterator:
    """An iterator over this trainer's dataset. ``next`` blocks until there is an element.

    ``on_taken`` is called, in order, for each element that has a receipt, and for the end, which
    may use up rows that made no element. ``resource_id``: the program's name for the iterator.
    """

    def __init__(
        self,
        make: Callable[[], Iterator[Any]],
        on_taken: OnTaken | None = None,
        resource_id: str = "",
    ) -> None:
        self._make = make
        self._on_taken = on_taken
        self._resource_id = resource_id
        self._source = next(_sources)
        self._iterator: Iterator[Any] | None = None
        self._failure: ClosureInputError | None = None
        self._returned: deque[TakenElement] = deque()
        self._lock = threading.Lock()
        self._exclusive = _LockThen(self._lock, self._close_left_open)
        self._closing = threading.Lock()  # held briefly, also while another thread is in `next`
        self._is_closed = False
        self._left_open: Any = None

    def __iter__(self) -> TrainerIterator:
        return self

    def __next__(self) -> Any:
        run = current_staging() if self._on_taken is not None else None
        if run is not None and self._has_receipts():
            run.before_take()
        keeps = isinstance(run, ClosureRun) and run.keeps_elements
        with self._exclusive:
            try:
                kept = self._returned.popleft() if self._returned else self._take(keeps)
            except StopIteration:
                if isinstance(run, ClosureRun):
                    run.ended_resources.add(self._resource_id)
                raise
            if isinstance(run, ClosureRun):
                run.has_taken = True
            self._note_taken(kept.receipt)
            if keeps:
                run.keep(self, kept)  # type: ignore[union-attr]
            return kept.element

    def get_next(self) -> Any:
        """Does what ``next(iterator)`` does, as in TensorFlow."""
        return next(self)

    def _take(self, keeps: bool) -> TakenElement:
        iterator: Any = self._open()
        position = None
        is_local = not getattr(iterator, "services", None)
        if keeps and is_local and hasattr(iterator, "state_dict"):
            position = iterator.state_dict()
        try:
            element = next(iterator)
        except StopIteration:
            self._note_taken(self._receipt(iterator))
            raise
        return TakenElement(element, self._receipt(iterator), position)

    def give_back(self, element: TakenElement) -> None:
        """Makes the element that was taken last the next one again."""
        with self._exclusive:
            self._returned.appendleft(element)

    def _has_receipts(self) -> bool:
        with self._exclusive:
            return bool(getattr(self._open(), "services", ()))

    def _receipt(self, iterator: Any) -> Any:
        if self._on_taken is None or not hasattr(iterator, "receipt"):
            return None
        receipt = iterator.receipt()
        return None if receipt.is_empty else receipt

    def _note_taken(self, receipt: Any) -> None:
        if self._on_taken is not None and receipt is not None:
            self._on_taken(self._source, receipt)

    def position(self) -> dict[str, Any] | None:
        """Returns the position; None before the first use. UnimplementedError if it has none."""
        with self._exclusive:
            iterator: Any = self._iterator
            if iterator is None:
                return None
            if self._returned and self._returned[0].position is not None:
                return self._returned[0].position
            if not hasattr(iterator, "state_dict"):
                raise UnimplementedError(
                    f"{type(iterator).__name__} has no state_dict(), so its position cannot be "
                    "saved: read a Dataset, or leave the iterator out of the checkpoint"
                )
            return iterator.state_dict()

    def state_dict(self) -> dict[str, Any]:
        """Returns the position, as the dataset's own iterator gives it."""
        with self._exclusive:
            if self._returned and self._returned[0].position is not None:
                return self._returned[0].position
            return self._open().state_dict()  # type: ignore[attr-defined]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a position given by :meth:`state_dict`."""
        with self._exclusive:
            self._returned.clear()
            self._open().load_state_dict(state)  # type: ignore[attr-defined]

    def close(self) -> None:
        """Ends the iterator for good, without waiting for a closure that is inside ``next``.

        Any later use raises CancelledError: a closure of a session that is over must not read on in
        the name of a reader that nothing settles. Idempotent.
        """
        with self._closing:
            self._is_closed = True
            iterator, self._iterator = self._iterator, None
        if not _close(iterator):
            with self._closing:
                self._left_open = iterator
            # A thread inside `next` closes it when it leaves; if none is inside, close it here.
            if self._lock.acquire(blocking=False):
                self._lock.release()
                self._close_left_open()

    def _close_left_open(self) -> None:
        """Closes the iterator that :meth:`close` could not, because a thread was inside of it."""
        if not self._is_closed:
            return
        with self._closing:
            iterator, self._left_open = self._left_open, None
        _close(iterator)

    def _open(self) -> Iterator[Any]:
        if self._failure is not None:
            # Each raise adds to the traceback, which travels to the program: drop what was added.
            raise self._failure.with_traceback(None)
        with self._closing:
            iterator = self._iterator
            if self._is_closed:
                raise CancelledError(_CLOSED)
        return self._made() if iterator is None else iterator

    def _made(self) -> Iterator[Any]:
        """Makes the iterator; closes it again if this object was closed meanwhile."""
        try:
            iterator = self._make()
        except Exception as error:
            self._failure = ClosureInputError(
                f"the dataset of this iterator could not be made: {type(error).__name__}: {error}"
            )
            raise self._failure from error
        with self._closing:
            if not self._is_closed:
                self._iterator = iterator
                return iterator
        _close(iterator)
        raise CancelledError(_CLOSED)


def _close(iterator: Any) -> bool:
    """Closes an iterator; False if it is based on a generator that another thread is inside of.

    Other errors of a user's ``close`` are logged, because no caller waits for them.
    """
    try:
        if iterator is not None and hasattr(iterator, "close"):
            iterator.close()
    except Exception as error:
        if isinstance(error, ValueError) and "already executing" in str(error):
            return False
        logger.warning("the dataset of a per-worker iterator was not closed: %r", error)
    return True


def open_dataset(
    source: Any,
    epoch: int,
    context: InputContext,
    owner: str | None = None,
    *,
    restores: bool = False,
) -> Iterator[Any]:
    """Opens ``source``: a dataset, or a function of no or one argument that makes one.

    ``epoch``: the repetition to read; datasets without epochs are read from the start. With an
    ``owner``, rows of a data service count as consumed when they are acknowledged. ``restores``: no
    rows are read before a position is loaded.
    """
    dataset = source
    if isinstance(source, dataservice.Dataset):
        dataset = source.for_reader(context.input_pipeline_id)
    while callable(dataset):  # a function may return what distribute_datasets_from_function gave
        dataset = call_with_context(dataset, context)
    if isinstance(dataset, dataservice.Dataset):
        return dataset.iterator(epoch=epoch, owner=owner, restores=restores)
    if hasattr(dataset, "iterator"):
        return dataset.iterator(epoch=epoch)
    if not hasattr(dataset, "__iter__"):
        raise InvalidArgumentError(
            f"a dataset function must return a Dataset, got {type(dataset).__name__}: end "
            "it with `return dataset`"
        )
    return iter(dataset)
