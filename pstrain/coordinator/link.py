"""The connection to one trainer: configures it, sends orders, receives results, reconnects.

Passes messages on, and decides nothing about closures. Invariant: a trainer that the scheduler
knows has been sent every live resource before the first closure.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

from dataservice.errors import (
    CancelledError,
    DataServiceError,
    DeadlineExceededError,
    UnavailableError,
)
from dataservice.runtime.auth import TlsConfig
from dataservice.runtime.rpc import RpcClient
from pstrain.coordinator.functions import PickledFunctions
from pstrain.coordinator.lost_trainers import (
    Settlement,
    merged,
    settle_services,
)
from pstrain.coordinator.orders import Outbox, RunResult
from pstrain.coordinator.scheduler import Scheduler
from pstrain.coordinator.server_recovery import ServerRecovery
from pstrain.coordinator.settling import SettlingTurns
from pstrain.coordinator.trainer_messages import Requests, position_of, result_of
from pstrain.errors import AbortedError
from pstrain.trainer.client import RemoteParameters
from pstrain.vocabulary import trainer_name
from pstrain.wire import trainer_pb2 as pb

logger = logging.getLogger(__name__)

_SERVICE = pb.DESCRIPTOR.services_by_name["Trainer"]
_TRANSIENT = (UnavailableError, DeadlineExceededError, CancelledError)
_CONFIGURE_TIMEOUT_S = 10.0
_TELL_TIMEOUT_S = 20.0
_STOP_TELL_TIMEOUT_S = 1.0
_ROUND_TIMEOUT_S = 120.0
_RESTORE_TIMEOUT_S = 30.0
_RECONNECT_S = 0.25
_RECONNECT_MAX_S = 3.0
_NOT_TOLD = (
    "the loss of %d trainers could not be told to %s in time: it waits for some time and then "
    "gives what they may have held to other readers"
)


class TrainerLink:
    """The connection to one trainer. Owns one thread from ``start`` to ``stop``, which waits.

    ``settling``: shared by all links of a coordinator.
    """

    def __init__(
        self,
        index: int,
        address: str,
        *,
        configuration: pb.ConfigureRequest,
        scheduler: Scheduler,
        functions: PickledFunctions,
        servers: RemoteParameters,
        incarnations: Iterator[int],
        slots: int,
        token: str,
        recovery: ServerRecovery,
        settling: SettlingTurns,
        tls: TlsConfig | None = None,
    ) -> None:
        self.index = index
        self.address = address
        self._configuration = configuration
        self._scheduler = scheduler
        self._functions = functions
        self._servers = servers
        self._incarnations = incarnations
        self._slots = slots
        self._token, self._tls = token, tls
        self._recovery = recovery
        self._settling = settling
        self._stopping = threading.Event()
        self._stream: Any = None
        self._thread = threading.Thread(target=self._run, name=f"trainer-link-{index}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """Disconnects; waits at most ``timeout_s`` for the thread. Idempotent."""
        self._stopping.set()
        self.leave()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    @property
    def _name(self) -> str:
        """The trainer's name in its present incarnation, by which servers fence it."""
        configuration = self._configuration
        return trainer_name(configuration.session, self.index, configuration.incarnation)

    def leave(self) -> None:
        """Breaks off the stream, if any; a restore under way delays the next one."""
        stream = self._stream
        if stream is not None:
            stream.cancel()

    def _run(self) -> None:
        pause_s = _RECONNECT_S
        while not self._stopping.is_set():
            self._recovery.wait_while_restoring()
            self._configuration.session = self._servers.session
            self._configuration.incarnation = next(self._incarnations)
            try:
                self._configure()
                pause_s = _RECONNECT_S
                with contextlib.closing(self._client()) as client:
                    self._serve(client)
            except _TRANSIENT as error:
                logger.info("trainer %d at %s: %s", self.index, self.address, error)
            except DataServiceError as error:
                if not self._recovery.notice(error):
                    logger.error("trainer %d at %s: %s", self.index, self.address, error)
                    self._scheduler.stop(error)
                    return
            finally:
                if self._scheduler.trainers.silence(self.index):
                    self._settle_loss()
            self._scheduler.waits.check_absent_trainers()
            self._stopping.wait(pause_s)
            pause_s = min(pause_s * 2, _RECONNECT_MAX_S)

    def _client(self) -> RpcClient:
        return RpcClient(self.address, _SERVICE, token=self._token, tls=self._tls)

    def _configure(self) -> None:
        """Configures the trainer, over a connection that ends: its stream has one of its own."""
        with contextlib.closing(self._client()) as client:
            client.call("Configure", self._configuration, timeout_s=_CONFIGURE_TIMEOUT_S)

    def _settle_loss(self) -> None:
        """Settles what the lost trainer left; a server that does not answer ends the scheduling."""
        name = self._name
        marks = self._scheduler.trainers.marks_of(self.index)
        settlement = Settlement({}, {}, {})
        is_stopping = self._stopping.is_set()
        if not is_stopping:
            # A round that is being applied needs what this trainer prepared.
            self._scheduler.rounds.wait_for_round(
                _ROUND_TIMEOUT_S, lambda: self._recovery.is_restoring
            )
            try:
                settlement = self._settling.settle(self._servers, name, self._needs_settling)
            except DataServiceError as error:
                if not self._awaits_restore(error):
                    # A program whose session was replaced gets this error from its next call.
                    level = logging.INFO if isinstance(error, AbortedError) else logging.ERROR
                    logger.log(
                        level, "what trainer %d had committed is not known: %s", self.index, error
                    )
                    self._scheduler.stop(error)
        timeout_s = _STOP_TELL_TIMEOUT_S if is_stopping else _TELL_TIMEOUT_S
        marks = merged(marks, settlement.marks.values())
        services = self._scheduler.trainers.record_settled(name, marks)
        settle_services(name, services, marks, timeout_s)
        self._scheduler.trainers.lost(self.index, settlement)

    def _needs_settling(self) -> bool:
        return not (self._stopping.is_set() or self._recovery.is_restoring)

    def _awaits_restore(self, error: Exception) -> bool:
        """True if a restore is about to undo what the trainer committed: it need not be known."""
        return self._recovery.notice(error) and self._recovery.wait_restoring(_RESTORE_TIMEOUT_S)

    def _serve(self, client: RpcClient) -> None:
        outbox = Outbox()
        name = self._name
        requests = Requests(
            outbox,
            self._scheduler,
            self._functions,
            self._servers,
            trainer=self.index,
            session=self._configuration.session,
            incarnation=self._configuration.incarnation,
        )
        self._stream = client.stream("RunClosures", requests)
        if self._stopping.is_set():
            return
        self._scheduler.trainers.joined(self.index, self._slots, outbox)
        logger.info("trainer %d at %s joined", self.index, self.address)
        self._check_session()
        for reply in self._stream:
            self._learn_services(reply.services)
            ended = [result_of(result, name) for result in reply.results]
            self._check_servers(ended)
            self._scheduler.trainers.results(self.index, ended)
            for answer in reply.cancels:
                self._scheduler.trainers.cancel_answered(
                    self.index, answer.id, answer.attempt, is_granted=answer.is_granted
                )
            for position in reply.positions:
                self._scheduler.barrier.position(self.index, position_of(position))

    def _check_session(self) -> None:
        """Raises CancelledError if a restore began before this trainer joined, and so missed it."""
        if self._recovery.is_restoring or self._configuration.session != self._servers.session:
            raise CancelledError("everything goes back to a checkpoint, in another session")

    def _check_servers(self, ended: Iterable[RunResult]) -> None:
        """Raises the first error that means a lost server, which is then restored.

        What the trainer has committed is then as unclear as if the trainer were lost. Nothing in
        the message counts, because a closure's marks may cover rows of others that ended with it.
        """
        for end in ended:
            if end.error is not None and self._recovery.notice(end.error):
                raise end.error

    def _learn_services(self, services: Iterable[str]) -> None:
        """Notes which data services the trainer reads.

        A service that was not known may have been read by trainers that were lost before, so it is
        told to give back what their readers held. All of them together take no longer than one, as
        loops end, and checkpoints begin, only after this.
        """
        untold = self._scheduler.trainers.services_read(services)
        if not untold:
            return
        until_s = time.monotonic() + _TELL_TIMEOUT_S
        try:
            for told, (name, new) in enumerate(untold.items()):
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    logger.warning(_NOT_TOLD, len(untold) - told, ", ".join(sorted(new)))
                    break
                settle_services(name, new, {}, left_s)
        finally:
            self._scheduler.trainers.released()
