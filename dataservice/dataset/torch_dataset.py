"""A dataset for PyTorch's DataLoader. The only module that imports torch.

Each element is a dict by column of tensors; columns that are no numbers stay NumPy arrays. In the
worker processes of a loader each reads its share of the elements. Invariant: a saved position
belongs to one process of a loader, which resumes at it exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import torch
from torch.utils.data import IterableDataset, get_worker_info

from dataservice.dataset.columns import to_numpy
from dataservice.dataset.iterator import DatasetIterator, FormedIterator


class Loadable(Protocol):
    """What is asked of a Dataset, whose method `torch` stands above this module."""

    @property
    def is_distributed(self) -> bool: ...
    def shard(self, num_shards: int, index: int) -> Loadable: ...
    def __iter__(self) -> DatasetIterator: ...


class TorchDataset(IterableDataset):
    """Batches of a dataset as dicts of tensors, with `state_dict` and `load_state_dict`.

    Positions are those before the next batch. A distributed dataset is not divided again among the
    workers of a loader: give its job a name, so that they share it, and start the workers with
    `multiprocessing_context="spawn"`, since gRPC cannot be used after a fork.
    """

    def __init__(self, dataset: Loadable) -> None:
        super().__init__()
        self._dataset = dataset
        self._iterator: DatasetIterator | None = None
        self._restored: Mapping[str, Any] | None = None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self._close()
        self._iterator = iterator = iter(self._share())
        if self._restored is not None:
            iterator.load_state_dict(self._restored)
            self._restored = None
        return FormedIterator(iterator, _tensors)

    def _share(self) -> Loadable:
        worker = get_worker_info()
        if worker is None or worker.num_workers == 1 or self._dataset.is_distributed:
            return self._dataset
        return self._dataset.shard(worker.num_workers, worker.id)

    def state_dict(self) -> dict[str, Any]:
        """The position of the last iterator, or the one that was loaded; {} before the first."""
        if self._restored is not None:
            return dict(self._restored)
        return {} if self._iterator is None else self._iterator.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iterator begins at `state`."""
        self._restored = dict(state) or None

    def _close(self) -> None:
        if self._iterator is not None:
            self._iterator.close()
            self._iterator = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_iterator": None}


def _tensors(batch: pa.RecordBatch) -> dict[str, Any]:
    return {name: _tensor(array) for name, array in to_numpy(batch).items()}


def _tensor(array: np.ndarray) -> Any:
    if array.dtype.kind not in "biuf":
        return array
    # A tensor can be written to, and Arrow's memory must not be.
    return torch.from_numpy(array.copy())
