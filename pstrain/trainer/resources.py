"""Per-trainer iterators: made on first use from a dataset function, shared by the closures.

Knows nothing of gRPC. Invariant: one iterator per resource and session, whose ``next`` is safe
from several closures at a time; a dataset function that fails is reported by each closure that
uses it, never by one that does not.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import dataservice
from pstrain.errors import ClosureInputError, InvalidArgumentError
from pstrain.parameters import current_staging
from pstrain.trainer.context import InputContext, call_with_context

_sources = itertools.count()

Taken = Callable[[int, Any], None]
"""Told of each element that was taken: the number of its iterator, and its receipt."""


class TrainerIterator:
    """An iterator over this trainer's dataset. ``next`` blocks until there is an element.

    ``wait_s`` is the time all callers together have waited in ``next``. ``taken`` is told of what
    has a receipt, in order; of the end too, which may use up rows that made no element.
    """

    def __init__(self, make: Callable[[], Iterator[Any]], taken: Taken | None = None) -> None:
        self._make = make
        self._taken = taken
        self._source = next(_sources)
        self._iterator: Iterator[Any] | None = None
        self._failure: ClosureInputError | None = None
        self._lock = threading.Lock()
        self.wait_s = 0.0

    def __iter__(self) -> TrainerIterator:
        return self

    def __next__(self) -> Any:
        started_s = time.perf_counter()
        run = current_staging() if self._taken is not None else None
        if run is not None and self._has_receipts():
            run.before_take()
        with self._lock:
            iterator = self._open()
            try:
                element = next(iterator)
            except StopIteration:
                self._note_taken(iterator)
                raise
            finally:
                self.wait_s += time.perf_counter() - started_s
            self._note_taken(iterator)
            return element

    def _has_receipts(self) -> bool:
        with self._lock:
            return bool(getattr(self._open(), "services", ()))

    def _note_taken(self, iterator: Any) -> None:
        if self._taken is None or not hasattr(iterator, "receipt"):
            return
        receipt = iterator.receipt()
        if not receipt.is_empty:
            self._taken(self._source, receipt)

    def state_dict(self) -> dict[str, Any]:
        """The position, as the dataset's own iterator gives it."""
        with self._lock:
            return self._open().state_dict()  # type: ignore[attr-defined, no-any-return]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a position given by :meth:`state_dict`."""
        with self._lock:
            self._open().load_state_dict(state)  # type: ignore[attr-defined]

    def close(self) -> None:
        """Ends the iterator without waiting for a closure that is inside ``next``."""
        iterator, self._iterator = self._iterator, None
        if iterator is not None and hasattr(iterator, "close"):
            iterator.close()

    def _open(self) -> Iterator[Any]:
        if self._failure is not None:
            raise self._failure
        if self._iterator is None:
            try:
                self._iterator = self._make()
            except Exception as error:
                self._failure = ClosureInputError(
                    f"the dataset of this iterator could not be made: "
                    f"{type(error).__name__}: {error}"
                )
                raise self._failure from error
        return self._iterator


def open_dataset(
    source: Any, epoch: int, context: InputContext, owner: str | None = None
) -> Iterator[Any]:
    """An iterator over ``source``: a dataset, or a function of no or one argument that makes one.

    ``epoch`` is the repetition to read; datasets that do not know epochs are read from the start.
    With an ``owner``, rows of a data service count as consumed when they are acknowledged.
    """
    dataset = source
    while callable(dataset):  # a function may return what distribute_datasets_from_function gave
        dataset = call_with_context(dataset, context)
    if isinstance(dataset, dataservice.Dataset) and owner is not None:
        return dataset.iterator(epoch=epoch, owner=owner)
    if hasattr(dataset, "iterator"):
        return dataset.iterator(epoch=epoch)  # type: ignore[no-any-return]
    if not hasattr(dataset, "__iter__"):
        raise InvalidArgumentError(
            f"a dataset function must return a Dataset, got {type(dataset).__name__}"
        )
    return iter(dataset)
