"""The operator that keeps what its input yields, in memory or in a file, for later passes.

The first complete pass fills the cache. The input always runs as epoch 0, so that a position means
the same rows in every process, whether or not the cache is filled there. A file appears under its
name when it is complete. Invariant: a cache is served only once it is complete, and only to the
plan that filled it.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable
from typing import Any, ClassVar

import pyarrow as pa

from dataservice.dataset.node import Node, freeze_schemas, register_node, walk
from dataservice.dataset.operators.base import Operator
from dataservice.dataset.operators.cache_store import (
    CacheWriter,
    Contents,
    FileWriter,
    MemoryContents,
    MemoryWriter,
    open_file,
)
from dataservice.dataset.plan import fingerprint
from dataservice.dataset.seeds import drawn_seeds
from dataservice.dataset.sources.paths import is_local
from dataservice.dataset.stream import BatchStream, RunContext, State
from dataservice.errors import (
    DataServiceError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
)

logger = logging.getLogger(__name__)


@register_node
@dataclasses.dataclass(frozen=True, eq=False)
class Cache(Operator):
    """The elements of the first complete pass, kept for all passes in the file `path` or in memory.

    Without a path, each process that runs a copy of the plan has contents of its own.
    """

    kind: ClassVar[str] = "cache"
    outside_fingerprint: ClassVar[frozenset[str]] = frozenset({"path"})
    path: str | None = None

    def __post_init__(self) -> None:
        if self.path is not None:
            try:
                path = os.fspath(self.path)
            except TypeError as error:
                raise InvalidTypeError(
                    f"cache takes the path of a local file, or None for memory, got {self.path!r}"
                ) from error
            if not isinstance(path, str) or not path or not is_local(path):
                raise InvalidArgumentError(f"cache takes the path of a local file, got {path!r}")
            object.__setattr__(self, "path", path)
        # Contents by the drawn seeds of the plan, which restoring an iterator replaces.
        object.__setattr__(self, "_memory", {})

    def with_inputs(self, *inputs: Node) -> Node:
        node = super().with_inputs(*inputs)
        object.__setattr__(node, "_memory", self._memory)  # type: ignore[attr-defined]
        return node

    def open(self, context: RunContext) -> BatchStream:
        first = dataclasses.replace(context, epoch=0, window=None, split_order=None)
        return _CacheStream(self, lambda: self.input.run(first), first)

    def attach(self, stream: BatchStream, context: RunContext) -> BatchStream:
        return _CacheStream(self, lambda: stream, context)

    def contents(self) -> Contents | None:
        """Returns the contents of the cache; None while they are not complete."""
        if self.path is not None:
            return open_file(self.path, fingerprint(self.input), self._typed_plan)
        found: MemoryContents | None = self._memory.get(self.seeds())  # type: ignore[attr-defined]
        return found

    def seeds(self) -> tuple[int, ...]:
        """Returns the drawn seeds of the input."""
        return tuple(drawn_seeds(self.input))

    def writer(self, context: RunContext) -> CacheWriter:
        """Returns a writer that fills the cache."""
        if self.path is None:
            memory: dict[Any, MemoryContents] = self._memory  # type: ignore[attr-defined]
            return MemoryWriter(memory, self.seeds())
        plan = fingerprint(self.input)
        return FileWriter(
            self.path,
            plan,
            self._typed_plan,
            self.seeds(),
            lambda: self.input.sample(context).schema,
        )

    def _typed_plan(self) -> str:
        """Returns the fingerprint of the plan with all types stated, as a data service runs it.

        "" if the types cannot be found here; a generator, for one, may yield its rows only once.
        """
        nodes = walk(self.input)
        if any(node.kind == "generator" or node.unrepeatable for node in nodes):
            return ""
        if not any(node.lacks_schema for node in nodes):
            return fingerprint(self.input)
        try:
            return fingerprint(freeze_schemas(self.input))
        except DataServiceError as error:
            logger.info("the types of a cache's rows are not known here: %s", error)
            return ""


class _CacheStream(BatchStream):
    """Reads the cache if it is complete, else the input; fills it if it starts at the beginning."""

    def __init__(
        self, node: Cache, open_input: Callable[[], BatchStream], context: RunContext
    ) -> None:
        self._node = node
        self._open_input = open_input
        self._context = context
        self._next = 0  # number of the next batch
        self._contents: Contents | None = None
        self._stream: BatchStream | None = None
        self._writer: CacheWriter | None = None
        self._ended = False

    def __next__(self) -> pa.RecordBatch:
        self._context.check()
        if self._ended:
            raise StopIteration
        self._begin()
        batch = self._kept() if self._contents is not None else self._fresh()
        if batch is None:
            self._ended = True
            raise StopIteration
        self._next += 1
        return batch

    def _begin(self) -> None:
        if self._contents is not None or self._stream is not None:
            return
        self._contents = self._node.contents()
        if self._contents is None:
            self._stream = self._open_input()
            if self._next == 0:
                self._writer = self._node.writer(self._context)

    def _kept(self) -> pa.RecordBatch | None:
        assert self._contents is not None
        return self._contents.batch(self._next) if self._next < len(self._contents) else None

    def _fresh(self) -> pa.RecordBatch | None:
        assert self._stream is not None
        state = self._stream.state()
        batch = next(self._stream, None)
        if self._writer is not None:
            if batch is None:
                self._writer.finish()
                self._writer = None
            else:
                self._writer.add(batch, state)
        return batch

    def state(self) -> State:
        if self._ended:
            return {"batch": self._next, "input": None, "seeds": list(self._content_seeds())}
        self._begin()
        position: State = {"batch": self._next, "seeds": list(self._content_seeds())}
        if self._stream is not None:
            return {**position, "input": self._stream.state()}
        assert self._contents is not None
        if self._next >= len(self._contents):
            return {**position, "input": None}
        inner = self._contents.state(self._next)
        return {**position, "input": inner, **({} if inner else {"only_kept": True})}

    def _content_seeds(self) -> tuple[int, ...]:
        return self._node.seeds() if self._contents is None else self._contents.seeds

    def restore(self, state: State) -> None:
        self._next = int(state["batch"])
        self._begin()
        if tuple(state["seeds"]) != self._content_seeds():
            raise FailedPreconditionError(
                f"the position was saved while {self._node.path!r} was another cache, with its "
                "rows in another order; give the shuffles before cache a seed, or keep the file"
            )
        if self._contents is None and state.get("only_kept"):
            raise FailedPreconditionError(
                f"the position was saved with the cache {self._node.path!r}, which no longer "
                "exists, and the data service now hands out the rows in another order; keep the "
                "file, or start over without the state"
            )
        if state["input"] is None and self._contents is None:
            self._ended = True
        elif self._stream is not None:
            self._stream.restore(state["input"])

    def close(self) -> None:
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None
        if self._contents is not None:
            self._contents.close()
        if self._stream is not None:
            self._stream.close()

    def location(self) -> str:
        if self._stream is not None:
            return self._stream.location()
        return f"the cache {self._node.path or 'in memory'}, batch {self._next - 1}"
