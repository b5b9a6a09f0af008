"""The connection to one trainer: configures it, feeds it, hears it, and comes back after a loss.

Turns orders into messages and results into values; it decides nothing about closures.
Invariant: a trainer that the scheduler knows has been sent every live resource before the first
closure, and every function before its first use, again if it was told to forget it.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from dataservice.errors import (
    CancelledError,
    DataServiceError,
    DeadlineExceededError,
    InvalidArgumentError,
    UnavailableError,
)
from dataservice.runtime.auth import TlsConfig
from dataservice.runtime.rpc import RpcClient
from pstrain import remote_errors, results
from pstrain.coordinator.orders import (
    AskPosition,
    Cancel,
    DefineResource,
    Drop,
    DropResource,
    Ended,
    Outbox,
    RoundPart,
    Run,
    Settled,
)
from pstrain.coordinator.recovery import (
    Legacy,
    Servers,
    merged,
    settle_servers,
    settle_services,
)
from pstrain.coordinator.scheduler import Scheduler
from pstrain.coordinator.sent import SentFunctions
from pstrain.vocabulary import CLOSURE_MAX_BYTES, trainer_name
from pstrain.wire import trainer_pb2 as pb

logger = logging.getLogger(__name__)

_TRANSIENT = (UnavailableError, DeadlineExceededError, CancelledError)
_CONFIGURE_TIMEOUT_S = 10.0
_TELL_TIMEOUT_S = 20.0
_STOP_TELL_TIMEOUT_S = 1.0
_ROUND_TIMEOUT_S = 120.0
_RESTORE_TIMEOUT_S = 30.0
_RECONNECT_S = 0.25
_RECONNECT_MAX_S = 3.0
_CLOSURES_PER_MESSAGE = 64
_MESSAGE_BYTES = 1 << 20


class Recovery(Protocol):
    """What is done about lost parameter servers."""

    @property
    def is_restoring(self) -> bool:
        """Whether everything goes back to a checkpoint just now."""

    def wait_open(self) -> None:
        """Blocks while it does."""

    def wait_restoring(self, timeout_s: float) -> bool:
        """Blocks until it does, or is not going to; False after ``timeout_s``."""

    def notice(self, error: Exception) -> bool:
        """Tells of an error; True if it is of a lost server, and is seen to."""


class PickledFunction:
    """A function as it travels; lives as long as somebody may have to send it."""

    __slots__ = ("__weakref__", "id", "name", "pickled")

    def __init__(self, function_id: str, pickled: bytes, name: str = "") -> None:
        self.id = function_id
        self.pickled = pickled
        self.name = name


PickledFunctions = weakref.WeakValueDictionary[str, PickledFunction]


class TrainerLink:
    """Owns one thread from ``start`` to ``stop``."""

    def __init__(
        self,
        index: int,
        address: str,
        *,
        configuration: pb.ConfigureRequest,
        scheduler: Scheduler,
        functions: PickledFunctions,
        servers: Servers,
        incarnations: Iterator[int],
        slots: int,
        token: str,
        recovery: Recovery,
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
        self._stopping = threading.Event()
        self._stream: Any = None
        self._thread = threading.Thread(target=self._run, name=f"trainer-link-{index}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """Idempotent; waits at most ``timeout_s`` for the thread."""
        self._stopping.set()
        stream = self._stream
        if stream is not None:
            stream.cancel()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    @property
    def _name(self) -> str:
        """Of the present incarnation."""
        configuration = self._configuration
        return trainer_name(configuration.session, self.index, configuration.incarnation)

    def leave(self) -> None:
        """Breaks off the stream, if there is one; :meth:`Recovery.wait_open` keeps it away."""
        stream = self._stream
        if stream is not None:
            stream.cancel()

    def _run(self) -> None:
        pause_s = _RECONNECT_S
        descriptor = pb.DESCRIPTOR.services_by_name["Trainer"]
        while not self._stopping.is_set():
            self._recovery.wait_open()
            client = RpcClient(self.address, descriptor, token=self._token, tls=self._tls)
            self._configuration.session = self._servers.session
            self._configuration.incarnation = next(self._incarnations)
            try:
                client.call("Configure", self._configuration, timeout_s=_CONFIGURE_TIMEOUT_S)
                pause_s = _RECONNECT_S
                self._serve(client)
            except _TRANSIENT as error:
                logger.info("trainer %d at %s: %s", self.index, self.address, error)
            except DataServiceError as error:
                if not self._recovery.notice(error):
                    logger.error("trainer %d at %s: %s", self.index, self.address, error)
                    self._scheduler.stop(error)
                    return
            finally:
                client.close()
                if self._scheduler.trainer_silenced(self.index):
                    self._settle_loss()
            self._scheduler.waiting.give_up_if_alone()
            self._stopping.wait(pause_s)
            pause_s = min(pause_s * 2, _RECONNECT_MAX_S)

    def _settle_loss(self) -> None:
        """Settles what the trainer left; a server that cannot be asked ends the scheduling."""
        name = self._name
        services, rows = self._scheduler.left_by(self.index, name)
        legacy = Legacy({}, {}, {})
        is_stopping = self._stopping.is_set()
        if not is_stopping and not self._recovery.is_restoring:
            # A round that is being applied needs what this trainer prepared.
            self._scheduler.wait_for_round(_ROUND_TIMEOUT_S, lambda: self._recovery.is_restoring)
        if not is_stopping and not self._recovery.is_restoring:
            try:
                legacy = settle_servers(self._servers, name)
            except DataServiceError as error:
                if not self._awaits_restore(error):
                    logger.error(
                        "what trainer %d had committed is not known: %s", self.index, error
                    )
                    self._scheduler.stop(error)
        timeout_s = _STOP_TELL_TIMEOUT_S if is_stopping else _TELL_TIMEOUT_S
        settle_services(name, services, merged(rows, legacy.rows.values()), timeout_s)
        self._scheduler.trainer_lost(self.index, legacy)

    def _awaits_restore(self, error: Exception) -> bool:
        """Whether what the trainer has committed is about to be undone, so that it need not be
        known."""
        return self._recovery.notice(error) and self._recovery.wait_restoring(_RESTORE_TIMEOUT_S)

    def _serve(self, client: RpcClient) -> None:
        outbox = Outbox()
        requests = self._requests(outbox, self._configuration.incarnation)
        self._stream = client.stream("RunClosures", requests)
        if self._stopping.is_set():
            return
        self._scheduler.trainer_joined(self.index, self._slots, outbox)
        logger.info("trainer %d at %s joined", self.index, self.address)
        try:
            self._check_session()
            for reply in self._stream:
                self._learn_services(reply.services)
                ended = [self._ended(result) for result in reply.results]
                self._check_servers(ended)
                self._scheduler.results(self.index, ended)
                for answer in reply.cancels:
                    self._scheduler.cancel_answered(
                        self.index, answer.id, answer.attempt, is_granted=answer.is_granted
                    )
                for position in reply.positions:
                    self._scheduler.holding.position(self.index, _position(position))
        finally:
            outbox.items.put(None)

    def _check_session(self) -> None:
        """A restore that began before this trainer had joined has not told it to leave."""
        if self._recovery.is_restoring or self._configuration.session != self._servers.session:
            raise CancelledError("everything goes back to a checkpoint, in another session")

    def _check_servers(self, ended: Iterable[Ended]) -> None:
        """Raises an error of a lost server, which is seen to.

        What the trainer has committed is as unclear then as that of one that was lost. Nothing of
        the message counts, for the marks of a closure may cover rows of others that ended with it.
        """
        for end in ended:
            if end.error is not None and self._recovery.notice(end.error):
                raise end.error

    def _learn_services(self, services: Iterable[str]) -> None:
        new, lost_names = self._scheduler.reads_services(services)
        if new:
            for name in lost_names:
                settle_services(name, new, {}, _TELL_TIMEOUT_S)

    def _requests(self, outbox: Outbox, incarnation: int) -> Iterator[pb.RunRequest]:
        """Messages for the trainer; orders that wait together travel together."""
        sent = SentFunctions()
        while (item := outbox.items.get()) is not None:
            request = pb.RunRequest(
                session=self._configuration.session,
                incarnation=incarnation,
                low_water=self._scheduler.low_water(),
                is_traced=self._scheduler.is_traced,
                dropped_function_ids=sent.forget(),
            )
            ended = False
            size_bytes = 0
            while True:
                size_bytes += self._add(request, item, sent)
                if len(request.closures) >= _CLOSURES_PER_MESSAGE or size_bytes >= _MESSAGE_BYTES:
                    break
                try:
                    item = outbox.items.get_nowait()
                except queue.Empty:
                    break
                if item is None:
                    ended = True
                    break
            # As late as can be: none of its closures may know rows from before a restore.
            request.key_generation = self._servers.key_maps.generation
            yield request
            if ended:
                return

    def _add(self, request: pb.RunRequest, item: object, sent: SentFunctions) -> int:
        """Adds an order to a message; about how many bytes that makes."""
        match item:
            case DefineResource():
                if item.id in request.dropped_resource_ids:
                    # All of a message is dropped last; what is defined again is dropped by that.
                    request.dropped_resource_ids.remove(item.id)
                request.resources.add(id=item.id, pickled=item.pickled)
                return len(item.pickled)
            case DropResource():
                request.dropped_resource_ids.append(item.id)
            case Drop():
                request.dropped.add(id=item.closure, attempt=item.attempt)
            case Cancel():
                request.cancelled.add(id=item.closure, attempt=item.attempt)
            case AskPosition():
                request.positions_of.append(item.resource_id)
            case Settled():
                request.settled.extend(item.closures)
            case Run():
                return self._add_closure(request, item, sent)
        return 0

    def _add_closure(self, request: pb.RunRequest, run: Run, sent: SentFunctions) -> int:
        closure, size_bytes = run.closure, len(run.closure.pickled_arguments)
        inputs = (
            [results.encode(value.peek()) for value in closure.inputs] if closure.inputs else ()
        )
        if inputs:
            size_bytes += sum(map(len, inputs))
            if size_bytes > CLOSURE_MAX_BYTES:
                self._refuse(run, size_bytes)
                return 0
        if not sent.use(closure.function_id):
            pickled = self._functions[closure.function_id].pickled
            sent.add(closure.function_id, len(pickled))
            request.functions.add(id=closure.function_id, pickled=pickled)
            size_bytes += len(pickled)
        added = request.closures.add(
            id=closure.id,
            attempt=run.attempt,
            function_id=closure.function_id,
            pickled_arguments=closure.pickled_arguments,
            parts_decided=run.parts,
        )
        if inputs:
            added.inputs.extend(inputs)
        return size_bytes

    def _refuse(self, run: Run, size_bytes: int) -> None:
        """Its arguments came to more than travels."""
        error = InvalidArgumentError(
            f"the arguments of {run.closure.name}, with the values of closures among them, take "
            f"{size_bytes:,} bytes; at most {CLOSURE_MAX_BYTES:,} travel: write large values to "
            "files, or keep them in variables"
        )
        self._scheduler.results(self.index, [Ended(run.closure.id, run.attempt, None, error)])

    def _ended(self, result: pb.ClosureResult) -> Ended:
        rows = tuple(json.loads(result.rows_json)) if result.rows_json else ()
        value: Any = None
        error: Exception | None = None
        part: RoundPart | None = None
        if result.WhichOneof("outcome") == "error_json":
            error = remote_errors.decode(result.error_json)
        elif not result.was_dropped:
            value = results.decode(result.value)
        if result.is_prepared:
            part = RoundPart(self._name, tuple(result.servers), result.has_gradient, rows)
        return Ended(
            result.id,
            result.attempt,
            value,
            error,
            needs_settling=result.needs_settling,
            rows=rows,
            part=part,
            was_dropped=result.was_dropped,
            seconds=result.seconds,
            commit_s=result.commit_seconds,
            met_end=result.met_end,
        )


def _position(position: pb.Position) -> Any:
    if position.error_json:
        return remote_errors.decode(position.error_json)
    return json.loads(position.json)
