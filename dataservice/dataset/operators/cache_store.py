"""The contents of a cache, in memory or a file: batches, each with the input's position before it.

A file is an Arrow IPC file; the plan and the seeds that filled it are in the metadata of its
schema, the positions in the metadata of its batches. Knows nothing of who fills or reads it.
Invariant: a file under its final name is complete.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa

from dataservice.dataset.stream import State
from dataservice.errors import DataServiceError, FailedPreconditionError, SourceError

_PLAN: Final = b"dataservice.plan"
_TYPED_PLAN: Final = b"dataservice.typed_plan"
_PLANS: Final = (_PLAN, _TYPED_PLAN)
_SEEDS: Final = b"dataservice.seeds"
_STATE: Final = b"dataservice.state"


class Contents(ABC):
    """The complete contents of a cache."""

    seeds: tuple[int, ...] = ()

    @abstractmethod
    def __len__(self) -> int:
        """Returns the number of batches."""

    @abstractmethod
    def batch(self, number: int) -> pa.RecordBatch:
        """Returns the batch of this number."""

    @abstractmethod
    def state(self, number: int) -> State | None:
        """Returns the input's position before that batch; None if it could not be stored."""

    @abstractmethod
    def close(self) -> None:
        """Closes the file, if there is one."""


class CacheWriter(ABC):
    """A writer of the elements of the first pass."""

    @abstractmethod
    def add(self, batch: pa.RecordBatch, state: State) -> None:
        """Stores a batch and the input's position before it."""

    @abstractmethod
    def finish(self) -> None:
        """Makes the contents visible to later passes."""

    @abstractmethod
    def abandon(self) -> None:
        """Drops the contents."""


class MemoryContents(Contents):
    """Contents in memory."""

    def __init__(self, kept: list[tuple[pa.RecordBatch, State]], seeds: tuple[int, ...]) -> None:
        self._kept = kept
        self.seeds = seeds

    def __len__(self) -> int:
        return len(self._kept)

    def batch(self, number: int) -> pa.RecordBatch:
        return self._kept[number][0]

    def state(self, number: int) -> State:
        return self._kept[number][1]

    def close(self) -> None:
        return


class MemoryWriter(CacheWriter):
    """A writer that fills the entry of `seeds` in the memory of a cache."""

    def __init__(self, memory: dict[Any, MemoryContents], seeds: tuple[int, ...]) -> None:
        self._memory = memory
        self._seeds = seeds
        self._kept: list[tuple[pa.RecordBatch, State]] = []

    def add(self, batch: pa.RecordBatch, state: State) -> None:
        self._kept.append((batch, state))

    def finish(self) -> None:
        self._memory.setdefault(self._seeds, MemoryContents(self._kept, self._seeds))

    def abandon(self) -> None:
        self._kept = []


def open_file(path: str, plan: str, typed_plan: Callable[[], str]) -> Contents | None:
    """Opens a cache file; None if there is none.

    `typed_plan` returns the fingerprint of the plan with all types stated, "" if unknown; it is
    called only if the file was not filled by `plan`. FailedPreconditionError for the file of
    another plan, SourceError for a damaged file and for a folder.
    """
    if not os.path.exists(path):
        return None
    if os.path.isdir(path):
        raise SourceError(
            f"cache takes the path of a file, and {path!r} is a folder: name a file in it, as in "
            f"cache({os.path.join(path, 'rows.arrow')!r})"
        )
    handle = None
    try:
        handle = pa.memory_map(path)
        return _FileContents(path, handle, plan, typed_plan)
    except (pa.ArrowException, OSError, ValueError) as error:
        if handle is not None:
            handle.close()
        if isinstance(error, DataServiceError):
            raise
        raise _damaged(path, error) from error


def _damaged(path: str, error: BaseException) -> SourceError:
    return SourceError(
        f"{path!r} cannot be read as a cache: {error}; if it is a damaged one, delete it, and the "
        "next pass fills it anew; otherwise give cache another path"
    )


class _FileContents(Contents):
    def __init__(self, path: str, handle: Any, plan: str, typed_plan: Callable[[], str]) -> None:
        self._path = path
        self._handle = handle
        self._reader = pa.ipc.open_file(handle)
        metadata = self._reader.schema.metadata or {}
        found = {metadata[key].decode(errors="replace") for key in _PLANS if metadata.get(key)}
        if plan not in found and typed_plan() not in found:
            raise FailedPreconditionError(
                f"{path!r} holds the cache of another dataset (plan "
                f"{' or '.join(sorted(found)) or 'unknown'}, this is "
                f"{plan}); delete it, or give cache another path"
            )
        self._schema = self._reader.schema.remove_metadata()
        self.seeds = tuple(json.loads(metadata[_SEEDS]))

    def __len__(self) -> int:
        return int(self._reader.num_record_batches)

    def batch(self, number: int) -> pa.RecordBatch:
        try:
            batch = self._reader.get_batch(number)
            batch.validate(full=True)
        except (pa.ArrowException, OSError) as error:
            raise _damaged(self._path, error) from error
        return pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)

    def state(self, number: int) -> State | None:
        try:
            _, metadata = self._reader.get_batch_with_custom_metadata(number)
            state: State | None = json.loads(metadata[_STATE])
        except (pa.ArrowException, OSError, KeyError, ValueError, TypeError) as error:
            raise _damaged(self._path, error) from error
        return state

    def close(self) -> None:
        self._handle.close()


class FileWriter(CacheWriter):
    """A writer to a temporary file, renamed at the end; of several writers, the last wins."""

    def __init__(
        self,
        path: str,
        plan: str,
        typed_plan: Callable[[], str],
        seeds: tuple[int, ...],
        schema_of: Callable[[], pa.Schema],
    ) -> None:
        self._path = path
        self._partial = f"{path}.{secrets.token_hex(4)}.partial"
        self._metadata = {_PLAN: plan.encode(), _SEEDS: json.dumps(list(seeds)).encode()}
        self._typed_plan = typed_plan
        self._schema_of = schema_of
        self._sink: Any = None
        self._writer: Any = None
        self._discard: weakref.finalize[Any, Any] | None = None

    def _open(self, schema: pa.Schema) -> None:
        try:
            self._sink = open(self._partial, "xb")  # noqa: SIM115
        except OSError as error:
            raise SourceError(
                f"the cache {self._path!r} cannot be written: {error}; give cache the path of a "
                "file in a directory that exists and may be written"
            ) from error
        # A pass that is dropped without close() must not leave its temporary file behind.
        self._discard = weakref.finalize(self, _discard, self._sink, self._partial)
        metadata = {**self._metadata, _TYPED_PLAN: self._typed_plan().encode()}
        self._writer = pa.ipc.new_file(self._sink, schema.with_metadata(metadata))

    def add(self, batch: pa.RecordBatch, state: State) -> None:
        if self._writer is None:
            self._open(batch.schema)
        with self._abandoned_on_failure():
            self._writer.write_batch(batch, {_STATE: _encoded(state)})

    def finish(self) -> None:
        if self._writer is None:
            self._open(self._schema_of())
        with self._abandoned_on_failure():
            self._writer.close()
            self._sink.flush()
            os.fsync(self._sink.fileno())
            os.replace(self._partial, self._path)
        self._sink.close()
        if self._discard is not None:
            self._discard.detach()

    @contextlib.contextmanager
    def _abandoned_on_failure(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            self.abandon()
            raise SourceError(f"the cache {self._path!r} cannot be written: {error}") from error

    def abandon(self) -> None:
        if self._discard is not None:
            self._discard()


def _encoded(state: State) -> bytes:
    """Returns a position as JSON; null for a data service's, which is an object of the run."""
    try:
        return json.dumps(state).encode()
    except TypeError:
        return b"null"


def _discard(sink: Any, partial: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(partial)
    # On a full disk, writing what is buffered fails again; it is not needed.
    with contextlib.suppress(OSError):
        sink.close()
