"""A reader's membership of an iteration: the call that joins it, and what the answer says.

Joins it and owns the connection; knows neither streams nor elements. Invariant: a place that could
not be had leaves no connection behind.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from dataservice.client.connection import Connection
from dataservice.client.read_spec import ReadSpec, open_request, stream_command
from dataservice.ranges import Consumed
from dataservice.runtime.frames import decode_schema
from dataservice.runtime.interrupts import HeldInterrupts
from dataservice.wire import dispatcher_pb2 as pb

# The end of a reader is bounded by this: for its last call, and for its threads.
RELEASE_TIMEOUT_S: Final = 2.0
MAX_HEARTBEAT_S: Final = 1.0


def _keep_all(_reply: pb.OpenIterationReply) -> None: ...


class JoinedIteration:
    """What was joined; `close` frees the connection. Thread safe."""

    def __init__(
        self,
        spec: ReadSpec,
        interrupts: HeldInterrupts,
        narrow: Callable[[pb.OpenIterationReply], None] = _keep_all,
    ) -> None:
        """Blocks; `interrupts` may end that. `narrow` leaves out workers of the answer."""
        self._spec = spec
        self.connection = Connection(spec.target, token=spec.token)
        try:
            self.joined = self.connection.open_iteration(
                open_request(spec),
                timeout_s=spec.timeout_s,
                should_stop=interrupts.is_due,
                made_s=spec.made_s,
            )
            narrow(self.joined)
            self.schema = decode_schema(self.joined.schema)
        except BaseException:
            self.connection.close()
            interrupts.let_through()
            raise
        self.id = self.joined.iteration_id
        self.reader_id = self.joined.reader_id
        self.heartbeat_s = min(MAX_HEARTBEAT_S, self.joined.heartbeat_s)

    @property
    def dataset_id(self) -> str:
        """The job's own, which need not be the one that was asked for."""
        return self.joined.dataset_id or self._spec.dataset_id

    @property
    def division(self) -> str:
        """Stands for the windows, or for the files dealt out, that positions count in."""
        return self.joined.division or self.joined.listing

    @property
    def num_shards(self) -> int:
        """Into how many shares a static policy divides; 0 under others."""
        return self.joined.num_shards

    def stream_command(self) -> dict[str, Any]:
        """Tells a worker whose rows of what it is to send; more is said by kind of reader."""
        return stream_command(self._spec, self.joined)

    def base(self, timeout_s: float | None = None) -> tuple[Consumed, tuple[str, ...]]:
        """What was consumed by nobody who reads now, and who reads now.

        A call to the dispatcher, unless nobody else can know the job.
        """
        if self._spec.job_name is None:
            position = self._spec.position
            known = Consumed() if position is None else position.consumed.copy()
            return known, (self.reader_id,)
        request = pb.DescribePositionRequest(reader_id=self.reader_id, iteration_id=self.id)
        timeout_s = timeout_s or self._spec.timeout_s
        reply = self.connection.describe_position(request, timeout_s=timeout_s)
        return Consumed.from_json(json.loads(reply.consumed_json)), tuple(reply.peers)

    def plan(self, timeout_s: float | None = None) -> bytes:
        """The plan that the job reads, as it was registered."""
        timeout_s = timeout_s or self._spec.timeout_s
        return self.connection.get_dataset(self.dataset_id, timeout_s=timeout_s).plan

    def close(self) -> None:
        """Closes the connection; the place is given up by a call, or when nobody is heard."""
        self.connection.close()
