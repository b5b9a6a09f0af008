"""Converts orders to protobuf messages to a trainer, and its replies to ends of runs.

Knows no connection, and decides nothing. Invariant: on one stream a function is sent before its
first use, and again if the trainer was told to evict it; orders keep their order.
"""

from __future__ import annotations

import json
import queue
from collections.abc import Callable
from typing import Any

from pstrain.coordinator.functions import PickledFunctions
from pstrain.coordinator.orders import (
    AskPosition,
    CancelRun,
    DefineResource,
    DropResource,
    DropRun,
    Order,
    Outbox,
    RoundPart,
    RunResult,
    Settled,
    StartRun,
)
from pstrain.coordinator.scheduler import Scheduler
from pstrain.coordinator.sent_functions import SentFunctions
from pstrain.errors import InvalidArgumentError
from pstrain.serialization import remote_errors, results
from pstrain.trainer.client import RemoteParameters
from pstrain.vocabulary import CLOSURE_MAX_BYTES
from pstrain.wire import trainer_pb2 as pb

_CLOSURES_PER_MESSAGE = 64
_MESSAGE_BYTES = 1 << 20


class Requests:
    """The messages of one stream to a trainer; orders that are queued together travel together.

    They are over when the ``outbox`` is. ``trainer``: the trainer's index.
    """

    def __init__(
        self,
        outbox: Outbox,
        scheduler: Scheduler,
        functions: PickledFunctions,
        servers: RemoteParameters,
        *,
        trainer: int,
        session: str,
        incarnation: int,
    ) -> None:
        self._outbox = outbox
        self._scheduler = scheduler
        self._functions = functions
        self._servers = servers
        self._trainer = trainer
        self._session, self._incarnation = session, incarnation
        self._sent = SentFunctions()
        # A trainer whose stream begins knows no values yet.
        self._told = len(servers.dropped)
        self.is_over = False

    def listen(self, wake: Callable[[], None]) -> None:
        self._outbox.listen(wake)

    def take(self) -> pb.RunRequest | None:
        """Returns a message with the orders that wait, or with as many as fit; None if none do."""
        order = self._next()
        if order is None:
            return None
        request = pb.RunRequest(
            session=self._session,
            incarnation=self._incarnation,
            low_water=self._scheduler.trainers.low_water(),
            is_traced=self._scheduler.is_traced,
            dropped_function_ids=self._sent.forget(),
        )
        if len(self._servers.dropped) > self._told:
            request.dropped_variables.extend(self._servers.dropped[self._told :])
            self._told += len(request.dropped_variables)
        self._fill(request, order)
        # Read as late as possible: no closure of it may use key rows from before a restore.
        request.key_generation = self._servers.key_maps.generation
        return request

    def _next(self) -> Order | None:
        """Returns the next order, None if there is none for now, or none any more."""
        if self.is_over:
            return None
        try:
            order = self._outbox.get_nowait()
        except queue.Empty:
            return None
        self.is_over = order is None
        return order

    def _fill(self, request: pb.RunRequest, order: Order) -> None:
        """Adds an order, and those that wait behind it if there is room."""
        following: Order | None = order
        size_bytes = 0
        while following is not None:
            size_bytes += self._add(request, following)
            if len(request.closures) >= _CLOSURES_PER_MESSAGE or size_bytes >= _MESSAGE_BYTES:
                return
            following = self._next()

    def _add(self, request: pb.RunRequest, item: Order) -> int:
        """Adds an order to a message; returns about how many bytes that adds."""
        match item:
            case DefineResource():
                if item.id in request.dropped_resource_ids:
                    # A trainer handles drops last; defining a resource anew also drops the old.
                    request.dropped_resource_ids.remove(item.id)
                request.resources.add(id=item.id, pickled=item.pickled)
                return len(item.pickled)
            case DropResource():
                request.dropped_resource_ids.append(item.id)
            case DropRun():
                request.dropped.add(id=item.closure, attempt=item.attempt)
            case CancelRun():
                request.cancelled.add(id=item.closure, attempt=item.attempt)
            case AskPosition():
                request.positions_of.append(item.resource_id)
            case Settled():
                request.settled.extend(item.closures)
            case StartRun():
                return self._add_closure(request, item)
        return 0

    def _add_closure(self, request: pb.RunRequest, run: StartRun) -> int:
        closure = run.closure
        inputs = [results.encode(value.peek()) for value in closure.inputs]
        size_bytes = len(closure.pickled_arguments) + sum(map(len, inputs))
        if size_bytes > CLOSURE_MAX_BYTES:
            self._refuse(run, size_bytes)
            return 0
        if not self._sent.use(closure.function_id):
            pickled = self._functions[closure.function_id].pickled
            self._sent.add(closure.function_id, len(pickled))
            request.functions.add(id=closure.function_id, pickled=pickled)
            size_bytes += len(pickled)
        request.closures.add(
            id=closure.id,
            attempt=run.attempt,
            function_id=closure.function_id,
            pickled_arguments=closure.pickled_arguments,
            inputs=inputs,
            parts_decided=run.parts,
        )
        return size_bytes

    def _refuse(self, run: StartRun, size_bytes: int) -> None:
        """Ends a run with an error, because its arguments are too large to send."""
        error = InvalidArgumentError(
            f"the arguments of {run.closure.name}, with the values of closures among them, take "
            f"{size_bytes:,} bytes; at most {CLOSURE_MAX_BYTES:,} travel: write large values to "
            "files, or keep them in variables"
        )
        self._scheduler.trainers.results(
            self._trainer, [RunResult(run.closure.id, run.attempt, None, error)]
        )


def result_of(result: pb.ClosureResult, trainer_name: str) -> RunResult:
    """Returns how a run ended. ``trainer_name``: the name that servers know its trainer by."""
    marks = tuple(json.loads(result.rows_json)) if result.rows_json else ()
    value: Any = None
    error: Exception | None = None
    part: RoundPart | None = None
    if result.WhichOneof("outcome") == "error_json":
        error = remote_errors.decode(result.error_json)
    elif not result.was_dropped:
        value = results.decode(result.value)
    if result.is_prepared:
        part = RoundPart(trainer_name, tuple(result.servers), result.has_gradient, marks)
    return RunResult(
        result.id,
        result.attempt,
        value,
        error,
        needs_settling=result.needs_settling,
        marks=marks,
        part=part,
        was_dropped=result.was_dropped,
        seconds=result.seconds,
        commit_s=result.commit_seconds,
        ended_iterators=frozenset(result.ended_resource_ids),
    )


def position_of(position: pb.Position) -> Any:
    """Returns the position of a trainer's iterator, or the error that it met."""
    if position.error_json:
        return remote_errors.decode(position.error_json)
    return json.loads(position.json)
