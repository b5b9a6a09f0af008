"""An iterator that converts the elements of another one, for example to dicts of arrays.

Knows the inner iterator and the conversion, nothing of how either works. Invariant: positions,
counts and the end are those of the inner iterator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from dataservice.dataset.iterator import DatasetIterator


class FormedIterator:
    """An iterator with its elements converted by `form`, and otherwise unchanged."""

    def __init__(
        self, iterator: DatasetIterator, form: Callable[[pa.RecordBatch], dict[str, Any]]
    ) -> None:
        self._iterator = iterator
        self._form = form

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self

    def __next__(self) -> dict[str, Any]:
        return self._iterator.next_as(self._form)

    def state_dict(self) -> dict[str, Any]:
        """Returns the position before the next element; see `DatasetIterator.state_dict`."""
        return self._iterator.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Moves to a saved position; see `DatasetIterator.load_state_dict`."""
        self._iterator.load_state_dict(state)

    def stats(self) -> dict[str, Any]:
        """Returns counts and times; see `DatasetIterator.stats`."""
        return self._iterator.stats()

    def close(self) -> None:
        """Releases files and threads; idempotent."""
        self._iterator.close()

    def __repr__(self) -> str:
        return f"<elements of {self._iterator!r}>"

    def __enter__(self) -> FormedIterator:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
