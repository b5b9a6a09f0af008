"""An iterator whose elements come in another form, as dicts of arrays or rows.

Knows the iterator below and the form, not what either is made of. Invariant: positions, counts and
the end are those of the iterator below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from dataservice.dataset.iterator import DatasetIterator


class FormedIterator:
    """The elements of an iterator in another form, such as dicts of arrays; otherwise as it is."""

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
        """As of `DatasetIterator`."""
        return self._iterator.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As of `DatasetIterator`."""
        self._iterator.load_state_dict(state)

    def stats(self) -> dict[str, Any]:
        """As of `DatasetIterator`."""
        return self._iterator.stats()

    def close(self) -> None:
        """Gives up files and threads; idempotent."""
        self._iterator.close()

    def __repr__(self) -> str:
        return f"<elements of {self._iterator!r}>"

    def __enter__(self) -> FormedIterator:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
