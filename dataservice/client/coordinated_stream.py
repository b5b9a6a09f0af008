"""One consumer's elements of coordinated reads, as the source of a local pipeline.

Responsible for the stream's position, which is the number of the next round. The data are endless,
so a restored stream goes on with whatever elements the workers give in that round. Knows no
protocol: the reader does the work. Invariant: a stream that is closed or garbage-collected leaves
its place to another reader.
"""

from __future__ import annotations

import weakref
from typing import Any

import pyarrow as pa

from dataservice.client.joined_iteration import abandon
from dataservice.client.read_spec import ReadSpec
from dataservice.client.round_reader import RoundReader
from dataservice.dataset.stream import BatchStream, RunContext, State
from dataservice.errors import InvalidArgumentError
from dataservice.runtime.process.ending import end_with_program
from dataservice.runtime.process.forking import Origin


class CoordinatedStream(BatchStream):
    """A consumer's elements. Joins on creation; several threads may take from it at once."""

    def __init__(self, spec: ReadSpec, context: RunContext) -> None:
        self._origin = Origin()
        self.reader = RoundReader(spec, context.interrupts)
        self._context = context
        self._finalizer = weakref.finalize(self, abandon, self.reader.close)
        end_with_program(self.reader, RoundReader.close)

    def __next__(self) -> pa.RecordBatch:
        self._context.check()
        self._context.interrupts.let_through()
        self._origin.check("this consumer of coordinated reads")
        return self.reader.take(self._context.interrupts).batch

    def stats(self) -> dict[str, Any]:
        """Returns counters of rows, bytes and waiting time of this consumer."""
        return self.reader.statistics.as_dict()

    def state(self) -> State:
        return {"round": self.reader.next_round}

    def restore(self, state: State) -> None:
        number = state.get("round")
        if not isinstance(number, int):
            raise InvalidArgumentError(f"not a position of coordinated reads: {state!r:.200}")
        self.reader.seek(number)

    def close(self) -> None:
        if self._origin.is_here:
            self._finalizer.detach()
            self.reader.close()

    def location(self) -> str:
        return f"data service {self.reader.iteration.id}"
