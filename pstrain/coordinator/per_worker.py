"""Datasets and iterators of which every trainer has its own.

Knows how they are named and pickled, not how they reach a trainer. Invariant: an iterator that
nobody holds any more is dropped on the trainers; one that is held is made anew on a trainer that
comes back.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from dataservice.runtime.identity import new_id
from pstrain.errors import FailedPreconditionError, InvalidArgumentError
from pstrain.trainer.context import InputContext, call_with_context

Positions = Mapping[str, Any]
"""Saved positions of a dataset's iterators, by trainer."""


class PerWorkerIterator:
    """One iterator per trainer; as an argument of ``schedule`` it becomes the trainer's own.

    Its saved position is its epoch: a job of the data service gives those who join an epoch again
    what nobody has consumed of it. ``ask`` gives the positions, by trainer, of what trainers read
    by themselves; None: such data starts its epoch again.
    """

    def __init__(
        self,
        epoch: int,
        define: Callable[[str, int, Positions], None],
        drop: Callable[[str], None],
        ask: Callable[[PerWorkerIterator], Positions] | None = None,
    ) -> None:
        self.resource_id = new_id("iterator")
        self.epoch = epoch
        self._define = define
        self._ask = ask
        self._finalizer = weakref.finalize(self, drop, self.resource_id)
        self._finalizer.atexit = False
        define(self.resource_id, epoch, {})

    def __iter__(self) -> PerWorkerIterator:
        return self

    def __next__(self) -> Any:
        raise FailedPreconditionError(
            "this iterator has its data on the trainers: pass it to a scheduled function and "
            "call next() there"
        )

    def state_dict(self) -> dict[str, Any]:
        """JSON-able; what :meth:`load_state_dict` takes. May ask the trainers, so it blocks."""
        positions = {} if self._ask is None else self._ask(self)
        return {"epoch": self.epoch, "positions": positions}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes every trainer's iterator anew, in the saved epoch. No closure may be using it."""
        epoch = state.get("epoch")
        if not isinstance(epoch, int) or epoch < 0:
            raise InvalidArgumentError(f"not a position of a per-worker iterator: {dict(state)!r}")
        self.epoch = epoch
        self._define(self.resource_id, epoch, state.get("positions", {}))

    def close(self) -> None:
        """Drops the trainers' iterators now rather than when this object is collected."""
        self._finalizer()


class PerWorkerDataset:
    """One dataset per trainer. Each ``iter`` is the next epoch of every trainer's dataset."""

    def __init__(
        self,
        source: object,
        define: Callable[[str, tuple[object, int, Positions]], None],
        drop: Callable[[str], None],
        ask: Callable[[PerWorkerIterator], Positions] | None = None,
    ) -> None:
        self._source = source
        self._define = define
        self._drop = drop
        self._ask = ask
        self._epochs = itertools.count()
        self._lock = threading.Lock()

    @property
    def element_spec(self) -> Any:
        """The Arrow schema of the elements; a function is called here once to know it."""
        source: Any = self._source
        while callable(source) and not hasattr(source, "element_spec"):
            source = call_with_context(source, InputContext())
        return source.schema if hasattr(source, "schema") else source.element_spec

    def __iter__(self) -> PerWorkerIterator:
        with self._lock:
            epoch = next(self._epochs)
        return PerWorkerIterator(epoch, self._define_epoch, self._drop, self._ask)

    def _define_epoch(self, resource_id: str, epoch: int, positions: Positions) -> None:
        self._define(resource_id, (self._source, epoch, positions))
