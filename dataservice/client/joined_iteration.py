"""A reader's membership of an iteration: the call that joins it, what the reply says, and the end.

Responsible for joining and for owning the connection. Knows neither streams nor elements.
Invariants: an attempt to join that fails leaves no connection open; a reader that nobody refers to
is closed, and neither garbage collection nor the end of the process waits for that for ever.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from dataservice.client.connection import DispatcherConnection
from dataservice.client.read_spec import ReadSpec, open_request
from dataservice.errors import DataServiceError
from dataservice.ranges import Consumed
from dataservice.runtime.frames import decode_schema
from dataservice.runtime.process.interrupts import HeldInterrupts
from dataservice.wire import dispatcher_pb2 as pb

logger = logging.getLogger(__name__)

# Bounds the closing of a reader: once for its last call, and once for its threads.
RELEASE_TIMEOUT_S: Final = 2.0
MAX_HEARTBEAT_S: Final = 1.0


class JoinedIteration:
    """The iteration that a reader has joined; `close` frees the connection. Thread safe."""

    def __init__(self, spec: ReadSpec, interrupts: HeldInterrupts) -> None:
        """Joins the iteration; blocks until the dispatcher has answered.

        `interrupts` may end the wait.
        """
        self._spec = spec
        self.connection = DispatcherConnection(spec.target)
        try:
            self.joined = self.connection.open_iteration(
                open_request(spec),
                timeout_s=spec.timeout_s,
                should_stop=interrupts.is_due,
                made_s=spec.made_s,
            )
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
        """The id of the dataset that the job reads, which may differ from the one asked for."""
        return self.joined.dataset_id or self._spec.dataset_id

    @property
    def division(self) -> str:
        """An identifier of the windows, or of the list of files, in which positions count."""
        return self.joined.division or self.joined.listing

    @property
    def num_shards(self) -> int:
        """The number of shares of a static policy; 0 under other policies."""
        return self.joined.num_shards

    def stream_command(self) -> dict[str, Any]:
        """Returns what every stream tells its worker; each kind of reader adds its own entries."""
        spec = self._spec
        return {
            "iteration": self.id,
            "reader": self.reader_id,
            "dataset": self.dataset_id,
            "policy": int(spec.policy),
            "epoch": spec.repetition,
            "options": spec.options.to_json(),
        }

    def base(self, timeout_s: float | None = None) -> tuple[Consumed, tuple[str, ...]]:
        """Returns what readers that have left consumed, and the ids of the present readers.

        Calls the dispatcher, unless the job is private to this reader.
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
        """Returns the plan that the job reads, as it was registered."""
        timeout_s = timeout_s or self._spec.timeout_s
        return self.connection.get_dataset(self.dataset_id, timeout_s=timeout_s).plan

    @contextmanager
    def leaving(self) -> Iterator[DispatcherConnection]:
        """Gives the connection for the calls that release the reader, and closes it in the end.

        If they fail, that is only logged: the dispatcher misses the reader's calls in time.
        """
        try:
            yield self.connection
        except DataServiceError as error:
            logger.info("could not release reader %s: %s", self.reader_id, error)
        finally:
            self.close()

    def close(self) -> None:
        """Closes the connection; does not release the reader's place in the iteration.

        A release call does that, or the dispatcher when it does not hear from the reader.
        """
        self.connection.close()


def abandon(close: Callable[[], None]) -> None:
    """Closes a reader whose stream is no longer referenced.

    Garbage collection may run at any point of any thread, also while that thread holds the reader's
    lock, so another thread closes the reader. The main thread, and so the end of the process, waits
    up to `RELEASE_TIMEOUT_S` for it.
    """
    closing = threading.Thread(target=close, name="reader-close", daemon=True)
    try:
        closing.start()
    except RuntimeError:
        # From Python 3.12 on no thread starts while the interpreter shuts down.
        close()
        return
    if threading.current_thread() is threading.main_thread():
        closing.join(RELEASE_TIMEOUT_S)
