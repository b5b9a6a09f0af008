"""The rpcs of a trainer: sessions of coordinators, streams of closures, and its status.

Knows nothing of the gRPC server around it, nor of how closures run. Invariant: at most one session
is alive; closures of an older session may finish, but the parameter servers refuse their commits
and their results are dropped.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Iterator

from dataservice.errors import CancelledError
from dataservice.runtime.identity import new_id
from pstrain.errors import FailedPreconditionError
from pstrain.sessions.ids import is_older
from pstrain.sessions.presence import Presence
from pstrain.trainer.client import RemoteParameters
from pstrain.trainer.closure_stream import ClosureStream
from pstrain.trainer.trainer_session import TrainerSession
from pstrain.wire import trainer_pb2 as pb

logger = logging.getLogger(__name__)

Connect = Callable[[pb.ConfigureRequest], RemoteParameters]
"""Connects to the parameter servers of a session."""


class TrainerService:
    """Implements the rpcs of trainer.proto. Thread-safe.

    A coordinator counts in ``presence`` exactly while its stream of closures is open.
    """

    def __init__(self, connect: Connect, presence: Presence) -> None:
        self._connect = connect
        self._presence = presence
        self._incarnation = new_id("trainer")
        self._lock = threading.Lock()
        self._session: TrainerSession | None = None
        self._over: set[str] = set()
        self._closures_run = 0

    def configure(self, request: pb.ConfigureRequest) -> pb.ConfigureReply:
        self._note_if_over(request)
        with self._lock:
            self._refuse_older(request)
        parameters = self._connect(request)
        try:
            with self._lock:
                self._refuse_older(request)
                old, self._session = self._session, TrainerSession(request, parameters)
        except FailedPreconditionError:
            parameters.close()
            raise
        if old is not None:
            logger.info("session %s replaces %s", request.session, old.id)
            old.close()
        return pb.ConfigureReply(incarnation=self._incarnation, pid=os.getpid())

    def _note_if_over(self, request: pb.ConfigureRequest) -> None:
        """Notes that the current session is over if its servers have an older one, the requested.

        A program whose clock is behind that of an earlier one makes such a session if the servers
        were all restarted, since they then do not know of the earlier session.
        """
        current = self._session
        if current is None or not is_older(request.session, current.id):
            return
        if current.was_replaced_by(request.session):
            self._over.add(current.id)

    def _refuse_older(self, request: pb.ConfigureRequest) -> None:
        """Raises for a session, or an incarnation of it, older than the current one, or over."""
        current = self._session
        if current is None:
            return
        is_behind = is_older(request.session, current.id) and current.id not in self._over
        if is_behind or request.session in self._over:
            raise FailedPreconditionError(
                f"session {request.session} is over: another coordinator, or a newer "
                "ParameterServerStrategy of this program, has taken this trainer over"
            )
        if request.session == current.id and request.incarnation < current.incarnation:
            raise CancelledError("a later Configure of the same session has come before this one")

    def run_closures(self, requests: Iterator[pb.RunRequest]) -> Iterator[pb.RunReply]:
        """Yields results in the order in which closures end, until the stream is closed."""
        with self._presence:
            yield from ClosureStream(requests, self._current, self._note_run).replies()

    def _note_run(self) -> None:
        self._closures_run += 1

    def leave(self, request: pb.LeaveRequest) -> pb.LeaveReply:
        """Notes that a session's program has ended; ignored if the session was replaced."""
        current = self._session
        if current is not None and current.id == request.session:
            self._presence.record_program_end()
        return pb.LeaveReply()

    def get_status(self, request: pb.GetStatusRequest) -> pb.GetStatusReply:  # noqa: ARG002
        session_id = self._session.id if self._session is not None else None
        status = {"session": session_id, "closures_run": self._closures_run, "pid": os.getpid()}
        return pb.GetStatusReply(json=json.dumps(status))

    def close(self) -> None:
        """Ends the session. Idempotent."""
        with self._lock:
            old, self._session = self._session, None
        if old is not None:
            old.close()

    def _current(self, request: pb.RunRequest) -> TrainerSession:
        """Returns the session of a message; raises for an old stream that comes back to life."""
        current = self._session
        if current is None:
            raise CancelledError(
                "this trainer was started anew since the coordinator has configured it"
            )
        if current.id != request.session:
            raise FailedPreconditionError(
                f"session {request.session} is not the trainer's current one: another coordinator "
                "has taken it over"
            )
        if current.incarnation != request.incarnation:
            raise CancelledError("the coordinator has configured this trainer anew")
        return current
