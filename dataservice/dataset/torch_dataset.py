"""A dataset for PyTorch's DataLoader. The only module that imports torch.

Each element is a dict of tensors by column name. Times and durations become integers, since torch
has no types for them; columns that are not numbers stay NumPy arrays. Each worker process of a
loader reads its share of the elements. Invariant: a saved position belongs to one process of a
loader, which resumes exactly there.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import torch
from torch.utils.data import IterableDataset, get_worker_info

from dataservice.dataset.formed_iterator import FormedIterator
from dataservice.dataset.iterator import DatasetIterator
from dataservice.dataset.numpy_views import to_numpy
from dataservice.errors import InvalidArgumentError, SchemaError

logger = logging.getLogger(__name__)

_WORKERS_MAX: Final = 256
_EPOCH_BITS: Final = 32
# Of loaders that are read at a time, two of so many are rarely in the same place.
_LOADERS: Final = 128
_OPEN_TIMEOUT_S: Final = 30.0
_OPEN_POLL_S: Final = 0.01


class Loadable(Protocol):
    """What this module needs of a Dataset, which it cannot import: `Dataset.torch` imports it."""

    @property
    def is_distributed(self) -> bool: ...
    def shard(self, num_shards: int, index: int) -> Loadable: ...
    def shared(self, job_name: str) -> Loadable: ...
    def iterator(self, epoch: int) -> DatasetIterator: ...
    def __iter__(self) -> DatasetIterator: ...


class TorchDataset(IterableDataset[dict[str, Any]]):
    """The batches of a dataset as dicts of tensors, with `state_dict` and `load_state_dict`.

    Times are int64, in the unit of their column: since 1970, or the length of a duration. Positions
    are those before the next batch. Together, the workers of a loader read each element once, and
    each pass over a loader is the next epoch. The workers read a distributed dataset as one job,
    under its own job name or one made up here; start them with `multiprocessing_context="spawn"`
    then, since gRPC cannot be used after a fork.
    """

    def __init__(self, dataset: Loadable) -> None:
        super().__init__()
        self._dataset = dataset
        self._job_name = f"torch-{secrets.token_hex(8)}"
        self._passes = _Passes()
        self._iterator: FormedIterator | None = None
        self._restored: Mapping[str, Any] | None = None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self._close()
        worker = get_worker_info()
        iterator = iter(self._dataset) if worker is None else self._opened(worker)
        self._iterator = FormedIterator(iterator, _tensors)
        if self._restored is not None:
            iterator.load_state_dict(self._restored)
            if worker is not None:
                self._passes.resume(worker, self._restored["epoch"])
            self._restored = None
        if worker is not None and self._dataset.is_distributed:
            self._iterator = _LoaderIterator(iterator, self._passes, worker)
        return self._iterator

    def _opened(self, worker: Any) -> DatasetIterator:
        if worker.num_workers > _WORKERS_MAX:
            raise InvalidArgumentError(
                f"a DataLoader can have at most {_WORKERS_MAX} workers, got "
                f"num_workers={worker.num_workers}"
            )
        return self._share(worker).iterator(self._passes.begin(worker))

    def _share(self, worker: Any) -> Loadable:
        if self._dataset.is_distributed:
            # A loader with another number of workers counts passes from 0, so it has its own job.
            return self._dataset.shared(f"{self._job_name}-{worker.num_workers}")
        if worker.num_workers == 1:
            return self._dataset
        return self._dataset.shard(worker.num_workers, worker.id)

    def state_dict(self) -> dict[str, Any]:
        """Returns the position of the last iterator, or the loaded one; {} before the first."""
        if self._restored is not None:
            return dict(self._restored)
        return {} if self._iterator is None else self._iterator.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next iterator begin at `state`."""
        self._restored = dict(state) or None

    def _close(self) -> None:
        if self._iterator is not None:
            self._iterator.close()
            self._iterator = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_iterator": None}

    def __repr__(self) -> str:
        return f"<TorchDataset of {self._dataset!r}>"


class _Passes:
    """The epochs of the passes over loaders, by number of workers.

    The workers of a pass have the same epoch, also if several loaders are read at a time, or if an
    earlier pass was broken off before all of them had begun it: they know a pass by its loader, and
    that by the seed that it draws. In shared memory, since a loader may start its workers anew for
    each pass. A pass, loader and epoch, is one number, and 0 is none, so that workers that begin at
    the same time write the same.
    """

    def __init__(self) -> None:
        self._begun = _shared_zeros(_WORKERS_MAX + 1)
        self._latest = _shared_zeros(_LOADERS)
        self._joined = _shared_zeros(_LOADERS, _WORKERS_MAX)
        self._open = _shared_zeros(_LOADERS, _WORKERS_MAX)
        self._awaited = 0  # the pass for whose workers this one has waited

    def begin(self, worker: Any) -> int:
        """Returns the epoch of the pass that a worker begins."""
        # Read before the pass and written after it: who finds a pass counted finds it begun.
        epoch = int(self._begun[worker.num_workers])
        loader = _loader_of(worker)
        latest = int(self._latest[loader % _LOADERS])
        is_begun = latest >> _EPOCH_BITS == loader
        # A worker that lives on, or whose loader has a fixed seed, has the same seed in each pass.
        if is_begun and int(self._joined[loader % _LOADERS, worker.id]) != latest:
            self._joined[loader % _LOADERS, worker.id] = latest
            return latest % (1 << _EPOCH_BITS) - 1
        self._join(worker, epoch)
        self._begun[worker.num_workers] = max(epoch + 1, int(self._begun[worker.num_workers]))
        return epoch

    def resume(self, worker: Any, epoch: int) -> None:
        """Notes that a worker is in the pass of this epoch; the next pass is of the one after."""
        self._join(worker, epoch)
        self._begun[worker.num_workers] = epoch + 1

    def note_open(self, worker: Any) -> None:
        """Notes that the iterator of a worker is open, in the pass that it has begun or resumed."""
        place = _loader_of(worker) % _LOADERS
        self._open[place, worker.id] = self._joined[place, worker.id]

    def await_open(self, worker: Any) -> None:
        """Waits, once, until all workers of the pass have opened their iterators.

        Positions of workers that read one job can be loaded only if each knows of all others. The
        workers of a loader start at the same time, so if one is missing for long, another loader is
        in the same place, or the worker is lost, which the loader will say.
        """
        place = _loader_of(worker) % _LOADERS
        mine = int(self._open[place, worker.id])
        if mine == self._awaited:
            return
        self._awaited = mine
        until_s = time.monotonic() + _OPEN_TIMEOUT_S
        while not bool((self._open[place, : worker.num_workers] == mine).all()):
            if time.monotonic() > until_s:
                logger.warning("not all %d workers of a loader have begun", worker.num_workers)
                return
            time.sleep(_OPEN_POLL_S)

    def _join(self, worker: Any, epoch: int) -> None:
        loader = _loader_of(worker)
        begun = (loader << _EPOCH_BITS) + epoch + 1
        self._joined[loader % _LOADERS, worker.id] = begun
        self._latest[loader % _LOADERS] = begun


class _LoaderIterator(FormedIterator):
    """The iterator of a loader's worker over a job that all its workers read."""

    def __init__(self, iterator: DatasetIterator, passes: _Passes, worker: Any) -> None:
        super().__init__(iterator, _tensors)
        self._passes, self._worker = passes, worker
        passes.note_open(worker)

    def state_dict(self) -> dict[str, Any]:
        self._passes.await_open(self._worker)
        return super().state_dict()


def _shared_zeros(*shape: int) -> Any:
    return torch.zeros(shape, dtype=torch.int64).share_memory_()


def _loader_of(worker: Any) -> int:
    """Returns 31 bits of what the workers of a pass have in common, and those of others do not."""
    return hash((worker.seed - worker.id, worker.num_workers)) % (1 << (63 - _EPOCH_BITS))


def _tensors(batch: pa.RecordBatch) -> dict[str, Any]:
    return {name: _tensor(array, name) for name, array in to_numpy(batch).items()}


def _tensor(array: np.ndarray, name: str) -> Any:
    if array.dtype.kind in "mM":
        array = _counted(array, name)
    if array.dtype.kind not in "biuf":
        return array
    # A copy, since a tensor can be written to and Arrow's memory must not be.
    return torch.from_numpy(array.copy())


def _counted(times: np.ndarray, name: str) -> np.ndarray:
    """Converts times to int64: a loader fails on others, even if the column is not used."""
    if np.isnat(times).any():
        raise SchemaError(
            f"column {name!r} of {times.dtype} has nulls, which an int64 tensor cannot hold; leave "
            f"those rows out first, with filter(~col({name!r}).is_null()), or the column, with "
            "select()"
        )
    return times.view(np.int64)
