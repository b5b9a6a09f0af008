"""Runs a function over a dataset until the data or the steps are used up: here, or on trainers.

The one place where training, evaluation and prediction differ between one process and a cluster.
Knows nothing of models. Invariant: it ends when every live trainer has seen the end of its data,
or when the steps asked for are done, whichever comes first.
"""

from __future__ import annotations

import collections
import itertools
import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa

import dataservice
from dataservice.errors import DataServiceWarning
from pstrain.chunks import ChunkSource
from pstrain.consistency import ASYNC
from pstrain.coordinator.client import ClusterCoordinator
from pstrain.coordinator.per_worker import PerWorkerDataset
from pstrain.coordinator.remote_value import RemoteValue
from pstrain.errors import CancelledError, InvalidArgumentError, UnimplementedError
from pstrain.input_sharding import AutoShardPolicy, DistributedDataset
from pstrain.resumption import Restorable
from pstrain.strategy import ParameterServerStrategy
from pstrain.trainer.context import InputContext, get_current_worker_index
from pstrain.trainer.resources import TrainerIterator, open_dataset

if TYPE_CHECKING:
    from pstrain.checkpoint_manager import CheckpointManager

Report = dict[str, Any]
"""What a run of a function says: at least ``steps`` (how many it took) and ``ended`` (no data)."""

StepFunction = Callable[[Any, int], Report]
"""``(iterator, steps)``: takes at most so many elements; must not raise at the end of the data."""


logger = logging.getLogger(__name__)

_LOST = (
    "a trainer was lost while it read the data: rows that it had taken and not finished were left "
    "out of this pass; those of a data service would have gone to the other trainers"
)
_ABSENT = (
    "only trainers %s of %d read their share of the rows in this pass, the others' were left out: "
    "distribute() the data to a data service, which gives rows to whoever is there"
)


class Executor(Restorable, Protocol):
    """Where the functions run."""

    def dataset(self, data: Any) -> Any:
        """A handle of which each ``iter`` is the next epoch."""

    def run(
        self,
        function: StepFunction,
        iterator: Any,
        steps: int | None,
        steps_per_execution: int,
        done: int = 0,
    ) -> Iterator[Report]:
        """Yields reports as runs end; ``done`` of the steps were done before."""

    def unreported(self) -> list[Report]:
        """Reports of the present :meth:`run` that are there and were not yielded yet."""

    def run_once(
        self, function: StepFunction, data: Any, steps: int | None, steps_per_execution: int
    ) -> Iterator[Report]:
        """One pass over the first ``steps`` elements (None: all): reports in their order."""


def as_source(data: Any, batch_size: int) -> Any:
    """A Dataset or dataset function from what users have: also a table, a DataFrame, arrays."""
    if isinstance(data, dataservice.Dataset | PerWorkerDataset) or callable(data):
        return data
    if _is_pandas(data):
        data = pa.Table.from_pandas(data, preserve_index=False)
    if isinstance(data, pa.Table | pa.RecordBatch):
        table = data if isinstance(data, pa.Table) else pa.Table.from_batches([data])
        return dataservice.Dataset.from_table(table).batch(batch_size)
    if isinstance(data, dict):
        return dataservice.Dataset.from_numpy(data).batch(batch_size)
    raise InvalidArgumentError(
        "data is a Dataset, a function that makes one, an Arrow table, a pandas DataFrame or a "
        f"dict of NumPy arrays, got {type(data).__name__}{_remedy(data)}"
    )


def _is_pandas(data: Any) -> bool:
    """Whoever has a frame has imported pandas, which is no dependency."""
    return isinstance(data, getattr(sys.modules.get("pandas"), "DataFrame", ()))


def _remedy(data: Any) -> str:
    if type(data).__name__ == "DataFrame":
        return "; write pyarrow.table(frame)"
    if isinstance(data, tuple):
        return "; labels are a column of it, which the model's schema names"
    return ""


def check_end(source: Any, steps: int | None, argument: str) -> None:
    """InvalidArgumentError for data without an end, where no number of steps gives it one."""
    if steps is None and isinstance(source, dataservice.Dataset) and source.is_endless:
        raise InvalidArgumentError(
            f"the data has no end (cardinality INFINITE): give {argument}, or leave out repeat()"
        )


def warn_of_end(what: str, done: int, wanted: str, rule: str) -> None:
    """The data had fewer steps than were asked for."""
    warnings.warn(
        f"the data ended after {done} steps of {what}, with {wanted}: {rule}; repeat() the "
        "dataset, or ask for fewer steps",
        DataServiceWarning,
        stacklevel=2,
    )


class _Epochs:
    """Makes the next epoch's iterator at each ``iter``."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self._epoch = 0

    def __iter__(self) -> _LocalIterator:
        epoch, self._epoch = self._epoch, self._epoch + 1
        return _LocalIterator(self._source, epoch, self._note_epoch)

    def _note_epoch(self, epoch: int) -> None:
        """An iterator was moved to an epoch: the next one follows it."""
        self._epoch = epoch + 1


class _LocalIterator:
    """One epoch in this process; saved and restored as a per-worker iterator is."""

    def __init__(self, source: Any, epoch: int, moved: Callable[[int], None]) -> None:
        self._source, self._moved = source, moved
        self._open(epoch)

    def __iter__(self) -> _LocalIterator:
        return self

    def __next__(self) -> Any:
        return next(self._reader)

    def state_dict(self) -> dict[str, Any]:
        """JSON-able; UnimplementedError for data whose position cannot be saved."""
        return {"epoch": self.epoch, "reader": self._reader.position()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.close()
        self._open(int(state["epoch"]))
        self._moved(self.epoch)
        if state.get("reader") is not None:
            self._reader.load_state_dict(state["reader"])
        else:
            self.rewind()

    def rewind(self) -> None:
        """A data service that counts its rows gives out all of the epoch again."""
        try:
            state = self._reader.state_dict()
        except (UnimplementedError, AttributeError):
            return
        if dataservice.is_service_state(state):
            self._reader.load_state_dict(dataservice.rewound_state(state))

    def close(self) -> None:
        self._reader.close()

    def _open(self, epoch: int) -> None:
        source, self.epoch = self._source, epoch
        self._reader = TrainerIterator(lambda: open_dataset(source, epoch, InputContext()))


class LocalExecutor:
    """Runs everything in this process; ``is_alone``: which is the only one of its training."""

    def __init__(self, *, is_alone: bool = True) -> None:
        self.resumes = is_alone

    def dataset(self, data: Any) -> _Epochs:
        return _Epochs(data)

    def run(
        self,
        function: StepFunction,
        iterator: Any,
        steps: int | None,
        steps_per_execution: int,
        done: int = 0,
    ) -> Iterator[Report]:
        while steps is None or done < steps:
            report = function(iterator, _share(steps, done, steps_per_execution))
            done += report["steps"]
            yield report
            if report["ended"]:
                return

    def run_once(
        self, function: StepFunction, data: Any, steps: int | None, steps_per_execution: int
    ) -> Iterator[Report]:
        iterator = iter(self.dataset(data))
        try:
            yield from self.run(function, iterator, steps, steps_per_execution)
        finally:
            iterator.close()

    def unreported(self) -> list[Report]:
        return []

    @property
    def checkpoint(self) -> None:
        return None

    def going_back(self, manager: CheckpointManager) -> AbstractContextManager[None]:  # noqa: ARG002
        return nullcontext()

    def went_back(self, error: Exception) -> bool:  # noqa: ARG002
        return False

    def confirm(self) -> None: ...

    def retire(self, is_behind: Callable[[], bool]) -> bool:
        return not is_behind()


class _Asked(NamedTuple):
    """A run that was scheduled: of so many steps, after so many losses."""

    value: RemoteValue
    share: int
    losses: int


class ClusterExecutor:
    """Runs functions on the trainers of a coordinator, several in flight on each."""

    resumes = True

    def __init__(self, coordinator: ClusterCoordinator) -> None:
        self._coordinator = coordinator
        self._deals = False
        self._in_flight: collections.deque[_Asked] = collections.deque()

    def unreported(self) -> list[Report]:
        return [asked.value.peek() for asked in self._in_flight if asked.value.has_value]

    @property
    def checkpoint(self) -> CheckpointManager | None:
        return self._coordinator.checkpoint

    def going_back(self, manager: CheckpointManager) -> AbstractContextManager[None]:
        return self._coordinator.going_back(manager)

    def went_back(self, error: Exception) -> bool:
        return self._coordinator.went_back(error)

    def confirm(self) -> None:
        self._coordinator.confirm()

    def retire(self, is_behind: Callable[[], bool]) -> bool:
        return self._coordinator.retire(is_behind)

    def dataset(self, data: Any) -> PerWorkerDataset:
        if isinstance(data, PerWorkerDataset):
            return data
        if not callable(data):
            # An epoch is one pass over the data for all trainers: they share one job, or are dealt
            # batches of what everyone reads, which is slower.
            self._deals = not getattr(data, "is_distributed", True)
            data = DistributedDataset(data, AutoShardPolicy.DATA)
        return self._coordinator.create_per_worker_dataset(data)

    def run(
        self,
        function: StepFunction,
        iterator: Any,
        steps: int | None,
        steps_per_execution: int,
        done: int = 0,
    ) -> Iterator[Report]:
        in_flight = self._in_flight = collections.deque()
        window = 4 * self._coordinator.num_trainers
        on_trainer = _OnTrainer(function)
        promised = done
        ended: set[int] = set()
        have_read: set[int] = set()
        losses = self._coordinator.stats()["losses"]
        while True:
            live = self._coordinator.live_trainers()
            if (now := self._coordinator.stats()["losses"]) != losses:
                # What a lost trainer had not finished is there again, for those at their end too.
                losses = now
                ended.clear()
                if self._deals and not self._coordinator.is_restoring:
                    logger.warning(_LOST)
            over = bool(ended) and ended >= live
            while len(in_flight) < window and not over and (steps is None or promised < steps):
                share = _share(steps, promised, steps_per_execution)
                value = self._coordinator.schedule(on_trainer, args=(iterator, share))
                in_flight.append(_Asked(value, share, losses))
                promised += share
            if not in_flight:
                if over and self._deals and len(have_read) < self._coordinator.num_trainers:
                    logger.warning(_ABSENT, sorted(have_read), self._coordinator.num_trainers)
                return
            value, share, asked_after = in_flight[0]
            report = self._fetch(value)
            in_flight.popleft()
            promised += report["steps"] - share
            if report["ended"]:
                have_read.add(report["trainer"])
                if asked_after == losses:
                    ended.add(report["trainer"])
            yield report

    def run_once(
        self, function: StepFunction, data: Any, steps: int | None, steps_per_execution: int
    ) -> Iterator[Report]:
        """Each element once, also where trainers are lost, if every trainer can read the data.

        A closure names the chunk that it reads, so one that runs again reads the same rows; what
        counts is its result, of which there is one. Data that trainers share otherwise (of the
        data service, or by a dataset function) is read as in :meth:`run`: a service takes rows for
        read when their report was heard, and gives others out again.
        """
        if not can_be_chunked(data):
            iterator = iter(self.dataset(data))
            yield from self.run(function, iterator, steps, steps_per_execution)
            return
        source = ChunkSource(data, steps_per_execution)
        readers = iter(self._coordinator.create_per_worker_dataset(source))
        on_chunk = _OnChunk(function)
        window = 4 * self._coordinator.num_trainers
        in_flight: collections.deque[RemoteValue] = collections.deque()
        chunks = itertools.count() if steps is None else range(-(-steps // steps_per_execution))
        shares = ((n, _share(steps, n * steps_per_execution, steps_per_execution)) for n in chunks)
        ended = False
        try:
            while True:
                while not ended and len(in_flight) < window and (share := next(shares, None)):
                    in_flight.append(self._coordinator.schedule(on_chunk, (readers, *share)))
                if not in_flight:
                    return
                report = self._fetch(in_flight.popleft())
                ended = ended or report["ended"]
                if report["steps"]:
                    yield report
        finally:
            readers.close()

    def _fetch(self, value: RemoteValue) -> Report:
        try:
            return value.fetch()  # type: ignore[no-any-return]
        except CancelledError:
            self._coordinator.join()  # raises the error that cancelled it
            raise
        except Exception as error:
            self._clear(error)
            raise

    def _clear(self, shown: Exception) -> None:
        """Lets the coordinator go on after an error that the caller is about to see."""
        try:
            self._coordinator.join(timeout=60)
        except type(shown):
            pass


class _OnTrainer:
    """Adds to a report which trainer made it."""

    def __init__(self, function: StepFunction) -> None:
        self._function = function

    def __call__(self, iterator: Any, steps: int) -> Report:
        return {**self._function(iterator, steps), "trainer": get_current_worker_index()}


class _OnChunk:
    """Runs a function over the elements of one chunk."""

    def __init__(self, function: StepFunction) -> None:
        self._function = function

    def __call__(self, readers: Any, chunk: int, steps: int) -> Report:
        return self._function(iter(next(readers).read(chunk)), steps)


def can_be_chunked(data: Any) -> bool:
    """Whether each trainer can read ``data`` by itself and finds the same rows as the others."""
    return isinstance(data, dataservice.Dataset) and not data.is_distributed


def _share(steps: int | None, done: int, steps_per_execution: int) -> int:
    return steps_per_execution if steps is None else min(steps_per_execution, steps - done)


def executor_of(model: Any, distributed: bool | None = None) -> Executor:
    """The cluster that the model's variables live on, or this process.

    In the V1 form each worker is a program of its own, so it runs what it is given itself.
    ``distributed`` False: this process in any case; True: InvalidArgumentError where there is no
    cluster.
    """
    strategy = getattr(model, "strategy", None)
    if not isinstance(strategy, ParameterServerStrategy):
        strategy = None
    if distributed and strategy is None:
        raise InvalidArgumentError(
            "distributed=True needs a model that was made inside strategy.scope()"
        )
    if strategy is None or distributed is False:
        return LocalExecutor(is_alone=getattr(model, "strategy", None) is None)
    return ClusterExecutor(ClusterCoordinator(strategy))


def steps_at_once(model: Any, wanted: int) -> int:
    """``wanted``, or 1 where the rule of consistency counts steps."""
    strategy = getattr(model, "strategy", None)
    if not isinstance(strategy, ParameterServerStrategy) or strategy.consistency == ASYNC:
        return wanted
    return 1


def take(iterator: Any, steps: int) -> Iterator[tuple[Any, float]]:
    """At most ``steps`` elements, each with the seconds it was waited for."""
    for _ in range(steps):
        started_s = time.perf_counter()
        try:
            element = next(iterator)
        except StopIteration:
            return
        yield element, time.perf_counter() - started_s
