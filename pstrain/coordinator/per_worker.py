"""Per-worker datasets and iterators: each trainer has one of its own.

Knows how they are named and pickled, not how they reach a trainer. Invariant: an iterator to which
the program has no reference left is dropped on the trainers; otherwise it is made again on a
trainer that comes back.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import dataservice
from dataservice.runtime.identity import new_id
from pstrain.errors import InvalidArgumentError, UnimplementedError
from pstrain.trainer.context import InputContext
from pstrain.trainer.epochs import element_spec, saved_epoch
from pstrain.trainer.resources import open_dataset


class Trainers(Protocol):
    """What iterators need of the coordinator."""

    @property
    def num_trainers(self) -> int: ...

    def define_resource(self, resource_id: str, source: tuple[Any, ...]) -> None:
        """Has every trainer make an iterator from (dataset, epoch, positions by trainer)."""

    def note_iterator(self, iterator: PerWorkerIterator) -> None:
        """Registers an iterator for as long as it is referenced."""

    def drop_resource(self, resource_id: str) -> None:
        """Has every trainer close its iterator."""

    def positions(self, resource_id: str) -> Mapping[int, Any]:
        """Returns state_dict() of each trainer's iterator, once no closure runs.

        None stands for an iterator that was not used, an Exception for one without a position.
        """


class PerWorkerIterator:
    """One iterator per trainer; as an argument of ``schedule`` it becomes the trainer's own.

    Its saved position is that of all trainers together. If a data service gives out the rows, any
    number of trainers can continue from it; otherwise as many trainers as saved it.
    """

    def __init__(
        self, source: object, epoch: int, trainers: Trainers, loaded: Callable[[int], None]
    ) -> None:
        self.resource_id = new_id("iterator")
        self.epoch = epoch
        self._source = source
        self._trainers = trainers
        self._loaded = loaded
        self._positions: dict[str, Any] = {}
        self._is_under_way = False
        self._finalizer = weakref.finalize(self, trainers.drop_resource, self.resource_id)
        self._finalizer.atexit = False
        trainers.define_resource(self.resource_id, (source, epoch, {}))
        trainers.note_iterator(self)

    def __iter__(self) -> PerWorkerIterator:
        return self

    def __repr__(self) -> str:
        return f"<PerWorkerIterator {self.resource_id}, epoch {self.epoch}>"

    def __next__(self) -> Any:
        raise UnimplementedError(
            "this iterator has its data on the trainers: pass it to a scheduled function and "
            "call next() there"
        )

    def state_dict(self) -> dict[str, Any]:
        """Returns the JSON-able position for :meth:`load_state_dict`; waits until no closure runs.

        Raises UnimplementedError, naming the iterator, if the data's position cannot be saved.
        """
        found = self._trainers.positions(self.resource_id)
        for position in found.values():
            if isinstance(position, Exception):
                raise position
        used = {str(index): position for index, position in found.items() if position is not None}
        state: dict[str, Any] = {"epoch": self.epoch}
        if used and all(dataservice.is_service_state(position) for position in used.values()):
            state["service"] = dataservice.merge_states(list(used.values()))
        elif used or self._positions:
            state["trainers"] = {**self._positions, **used}
            state["trainers_count"] = self._trainers.num_trainers
        elif self._is_under_way and (position := self._position_in_service()) is not None:
            state["service"] = position
        return state

    def note_use(self) -> None:
        """Notes that a closure is about to take elements."""
        self._is_under_way = True

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes every trainer's iterator again, at the saved position. No closure may be using it.

        Raises InvalidArgumentError for a position of another number of trainers, unless a data
        service gave out the rows.
        """
        count = self._trainers.num_trainers
        _check_position(state, count)
        if dataservice.is_service_state(reader := state.get("reader")):
            # One process has read the service, whose position is the same for trainers.
            state = {"epoch": state["epoch"], "service": reader}
        epoch, positions = state["epoch"], dict(state.get("trainers", {}))
        if "service" in state:
            # Other readers of the job would keep the position from being loaded.
            self._trainers.drop_resource(self.resource_id)
            _load_into_service(self._source, epoch, state["service"], count)
        elif not positions:
            self._rewind_service(epoch)
        self._is_under_way = "service" in state
        self._positions = positions
        self.epoch = epoch
        self._loaded(epoch)
        self._trainers.define_resource(self.resource_id, (self._source, epoch, positions))

    def rewind(self) -> None:
        """Restarts the epoch on every trainer; a data service gives out all its rows again."""
        self._rewind_service(self.epoch)
        self._positions, self._is_under_way = {}, False
        self._trainers.define_resource(self.resource_id, (self._source, self.epoch, {}))

    def _rewind_service(self, epoch: int) -> None:
        """Has a data service, if there is one, forget what trainers consumed of the epoch."""
        self._trainers.drop_resource(self.resource_id)
        state = self._position_in_service(epoch)
        if state is not None:
            rewound = dataservice.rewound_state(state)
            _load_into_service(self._source, epoch, rewound, self._trainers.num_trainers)

    def _position_in_service(self, epoch: int | None = None) -> Any:
        """Returns the epoch's position in a data service; None if no service counts rows."""
        epoch = self.epoch if epoch is None else epoch
        with _opened(self._source, epoch, self._trainers.num_trainers) as reader:
            if not hasattr(reader, "state_dict"):
                return None
            try:
                state = reader.state_dict()
            except UnimplementedError:
                return None  # no service to rewind: trainers start over by themselves
        return state if dataservice.is_service_state(state) else None

    def close(self) -> None:
        """Drops the trainers' iterators at once rather than when this object is collected."""
        self._finalizer()


class IteratorsInUse:
    """The iterators that are in use, in the order in which they were made. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made = 0
        self._used: weakref.WeakKeyDictionary[PerWorkerIterator, int] = weakref.WeakKeyDictionary()

    def add(self, iterator: PerWorkerIterator) -> None:
        with self._lock:
            self._made += 1
            self._used[iterator] = self._made

    def made_count(self) -> int:
        """Returns how many iterators were made so far."""
        with self._lock:
            return self._made

    def rewind_since(self, made: int) -> None:
        """Restarts the iterators that were made after the first ``made``."""
        with self._lock:
            later = [iterator for iterator, number in self._used.items() if number > made]
        for iterator in later:
            iterator.rewind()


def _check_position(state: Mapping[str, Any], trainers: int) -> None:
    """Raises InvalidArgumentError unless so many trainers can continue from a saved position."""
    saved_epoch(state)
    if "next" in state:
        raise InvalidArgumentError(
            "the position was saved while fit dealt out ranges of the data to trainers, and "
            "this data is read in another way: give fit the data in the same form as "
            "before, or callbacks.Checkpoint(..., resume=False)"
        )
    if state.get("reader") and not dataservice.is_service_state(state["reader"]):
        raise InvalidArgumentError(
            "the position was saved while one process read the data by itself, and the trainers of "
            "a cluster cannot continue from it: train in one process again, leave the iterator out "
            "of the checkpoint, or read from a data service (distribute, from_dataset_id)"
        )
    if state.get("trainers") and state.get("trainers_count") != trainers:
        raise InvalidArgumentError(
            f"the position was saved by {state.get('trainers_count')} trainers and there are "
            f"{trainers}: another number of trainers can continue only with data that a data "
            "service hands out (distribute, from_dataset_id)"
        )


@contextlib.contextmanager
def _opened(source: Any, epoch: int, trainers: int) -> Iterator[Any]:
    """Opens an iterator in this process that takes no element: only its position is used."""
    reader: Any = open_dataset(source, epoch, InputContext(trainers, 0), restores=True)
    try:
        yield reader
    finally:
        if hasattr(reader, "close"):
            reader.close()


def _load_into_service(source: Any, epoch: int, position: Any, trainers: int) -> None:
    """Moves a data service's job to a position, from where its next readers continue."""
    with _opened(source, epoch, trainers) as reader:
        reader.load_state_dict(position)


class PerWorkerDataset:
    """One dataset per trainer. Each ``iter`` is the next epoch of every trainer's dataset."""

    def __init__(self, source: object, trainers: Trainers, first_epoch: int = 0) -> None:
        self._source = source
        self._trainers = trainers
        self._next_epoch = first_epoch
        self._lock = threading.Lock()

    @property
    def element_spec(self) -> Any:
        """The Arrow schema of the elements; a dataset function is called here to learn it."""
        return element_spec(self._source)

    def __iter__(self) -> PerWorkerIterator:
        with self._lock:
            epoch = self._next_epoch
            self._next_epoch += 1
        return PerWorkerIterator(self._source, epoch, self._trainers, self._note_epoch)

    def __repr__(self) -> str:
        return f"<PerWorkerDataset of {self._source!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            "a per-worker dataset cannot be an argument of a function: pass iter(dataset)"
        )

    def _note_epoch(self, epoch: int) -> None:
        """Notes that an iterator was moved to ``epoch``: the next iterator has the one after."""
        with self._lock:
            self._next_epoch = epoch + 1
