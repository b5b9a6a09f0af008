"""One stream of closures from a coordinator: read by one thread, run by a few.

Knows the order of operations: definitions come before the runs that use them, giving back comes
after. Must not know what the operations do: the session carries them out. Invariant: however a
stream ends, its threads end, and so does the iterator over its results.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from typing import TypeAlias

from dataservice.errors import CancelledError, UnavailableError
from pstrain.trainer.result_queue import ResultQueue
from pstrain.trainer.staging import PendingPart
from pstrain.trainer.trainer_session import ClosureOrder, TrainerSession
from pstrain.wire import trainer_pb2 as pb

logger = logging.getLogger(__name__)

Order: TypeAlias = "ClosureOrder | pb.RunId"
"""A closure to run, or a late run whose elements have to be given back."""


class ClosureStream:
    """A stream of closures. ``session_of`` returns a message's session.

    ``note_run`` is called at the end of each run.
    """

    def __init__(
        self,
        requests: Iterator[pb.RunRequest],
        session_of: Callable[[pb.RunRequest], TrainerSession],
        note_run: Callable[[], None],
    ) -> None:
        self._requests = requests
        self._session_of = session_of
        self._note_run = note_run
        self._waiting: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
        self._outgoing = ResultQueue(self._waiting.qsize)
        self._runners: list[threading.Thread] = []
        self._session: TrainerSession | None = None

    def replies(self) -> Iterator[pb.RunReply]:
        """Yields results in the order in which closures end, until the stream is closed."""
        threading.Thread(target=self._read, name="closures", daemon=True).start()
        while (message := self._outgoing.take()) is not None:
            if isinstance(message, Exception):
                raise message
            yield message

    def _read(self) -> None:
        """Feeds the runner threads; at its end, always ends them and the results."""
        try:
            for request in self._requests:
                self._handle(request)
        except (CancelledError, UnavailableError) as error:
            logger.info("closure stream ended: %s", error)
        except Exception as error:
            self._outgoing.put(error)
        finally:
            self._drain()
            for _ in self._runners:
                self._waiting.put(None)
            if self._session is not None:
                self._session.committer.close()
            self._outgoing.put(None)

    def _handle(self, request: pb.RunRequest) -> None:
        session = self._session_of(request)
        if self._session is not None and session is not self._session:
            raise CancelledError("the coordinator has configured this trainer anew")
        self._session = session
        session.replies = self._outgoing
        session.committer.low_water = request.low_water
        session.committer.is_traced = request.is_traced
        session.committer.settle(request.settled)
        session.define(request)
        for resource_id in request.positions_of:
            self._outgoing.put(pb.RunReply(positions=[session.position(resource_id)]))
        while len(self._runners) < session.closures_in_flight:
            self._start_runner(session)
        for late in request.dropped:
            session.note_late(late)
        session.committer.admit((each.id, each.attempt) for each in request.closures)
        for closure in request.closures:
            self._waiting.put(session.order(closure))
        for late in request.dropped:
            self._waiting.put(late)
        for run in request.cancelled:
            self._outgoing.put(pb.RunReply(cancels=[session.cancel(run)]))

    def _start_runner(self, session: TrainerSession) -> None:
        name = f"closure-runner-{len(self._runners)}"
        runner = threading.Thread(target=self._run, args=(session,), name=name, daemon=True)
        runner.start()
        self._runners.append(runner)

    def _run(self, session: TrainerSession) -> None:
        held: PendingPart | None = None
        while (order := self._next(session, held)) is not None:
            if isinstance(order, pb.RunId):
                session.give_back(order)
            else:
                held = session.run(order, held)
                self._note_run()

    def _next(self, session: TrainerSession, held: PendingPart | None) -> Order | None:
        """Returns the next order; before waiting for one, commits what was held back."""
        try:
            return self._waiting.get_nowait()
        except queue.Empty:
            session.flush(held)
            return self._waiting.get()

    def _drain(self) -> None:
        try:
            while True:
                self._waiting.get_nowait()
        except queue.Empty:
            return
