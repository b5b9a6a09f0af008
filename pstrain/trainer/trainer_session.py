"""One coordinator's session on a trainer: its functions and iterators, and how one closure runs.

Resolves what closures refer to and encodes what they return. Must not know what a closure does, nor
when it runs (the closure stream decides that). Invariant: every closure that is run has a result,
which its committer sends, unless the session is over.
"""

from __future__ import annotations

import contextvars
import functools
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import dataservice
from dataservice.errors import CancelledError
from pstrain.errors import InvalidArgumentError
from pstrain.serialization import pickling, remote_errors, results
from pstrain.strategy.replica import Replica
from pstrain.strategy.scope import entered_scope
from pstrain.trainer.client import RemoteParameters
from pstrain.trainer.committing import Committer
from pstrain.trainer.context import InputContext, trainer_scope
from pstrain.trainer.resources import TrainerIterator, open_dataset
from pstrain.trainer.result_queue import ResultQueue
from pstrain.trainer.rounds import RoundCommitter
from pstrain.trainer.staging import ClosureRun, PendingPart
from pstrain.variables.parameters import begin_step, current_staging
from pstrain.vocabulary import CLOSURE_MAX_BYTES, StepToken, trainer_name
from pstrain.wire import trainer_pb2 as pb

logger = logging.getLogger(__name__)

_ASK_TIMEOUT_S = 2.0


class SentFunction:
    """A function as it arrived; it is unpickled when it is first called."""

    __slots__ = ("_load", "_loaded", "_pickled")

    def __init__(self, pickled: bytes, load: Callable[[bytes], Callable[..., Any]]) -> None:
        self._pickled, self._load = pickled, load
        self._loaded: Callable[..., Any] | None = None

    def get(self) -> Callable[..., Any]:
        if self._loaded is None:
            self._loaded = self._load(self._pickled)
            self._pickled = b""
        return self._loaded


class ClosureOrder(NamedTuple):
    """A closure with its function, which may be evicted before the closure runs."""

    closure: pb.Closure
    function: SentFunction


class TrainerSession:
    """The functions, iterators and committer of one coordinator's session on this trainer."""

    def __init__(self, request: pb.ConfigureRequest, parameters: RemoteParameters) -> None:
        self.id = request.session
        self.trainer_index = request.trainer_index
        self.closures_in_flight = max(1, request.closures_in_flight)
        self._context = InputContext(
            request.trainer_count, request.input_pipeline_id, max(1, request.num_replicas_in_sync)
        )
        self._strategy = Replica(self._context.num_replicas_in_sync)
        self._scope = contextvars.Context().run(self._entered)
        self._parameters = parameters
        self.incarnation = request.incarnation
        # Also names the owner of its readers at data services.
        self._name = trainer_name(request.session, request.trainer_index, request.incarnation)
        self.replies = ResultQueue(lambda: 0)
        self.committer = self._new_committer(request)
        self._functions: dict[str, SentFunction] = {}
        self._resources: dict[str, TrainerIterator] = {}
        self._where = f"trainer {request.trainer_index}, pid {os.getpid()}"

    def _new_committer(self, request: pb.ConfigureRequest) -> Committer:
        def send(results: list[pb.ClosureResult]) -> None:
            self.replies.put(pb.RunReply(results=results))

        def give_up(error: Exception) -> None:
            self.replies.put(error)

        common = (self._parameters, self._name, send, give_up, self._failed)
        if request.in_rounds:
            return RoundCommitter(*common, request.keeps_elements)
        return Committer(*common, self.closures_in_flight)

    def token(self, closure: int, attempt: int) -> StepToken:
        """Returns the token that identifies a run."""
        return StepToken(self.id, closure, attempt)

    def define(self, request: pb.RunRequest) -> None:
        self._parameters.key_maps.advance(request.key_generation)
        if request.dropped_variables:
            self._parameters.forget_variables(request.dropped_variables)
        for function_id in request.dropped_function_ids:
            self._functions.pop(function_id, None)
        for function in request.functions:
            self._functions[function.id] = SentFunction(function.pickled, self._loads)
        for resource in request.resources:
            make = functools.partial(self._make_iterator, resource.pickled)
            replaced = self._resources.get(resource.id)
            self._resources[resource.id] = TrainerIterator(make, self._note_taken, resource.id)
            if replaced is not None:
                replaced.close()
        for resource_id in request.dropped_resource_ids:
            dropped = self._resources.pop(resource_id, None)
            if dropped is not None:
                dropped.close()

    def position(self, resource_id: str) -> pb.Position:
        """Returns an iterator's position; null if it was not used yet, or the error it met."""
        position = pb.Position(resource_id=resource_id)
        resource = self._resources.get(resource_id)
        try:
            position.json = json.dumps(None if resource is None else resource.position())
        except Exception as error:
            position.error_json = remote_errors.encode(error, self._where)
        return position

    def order(self, closure: pb.Closure) -> ClosureOrder:
        """Pairs a closure with its function, as defined when its message arrived."""
        return ClosureOrder(closure, self._functions[closure.function_id])

    def run(self, order: ClosureOrder, held: PendingPart | None = None) -> PendingPart | None:
        """Runs one closure to its end; whatever it raises becomes its result, which is sent.

        Returns what is held back, for the next run of the same thread or for :meth:`flush`.
        """
        closure = order.closure
        started_s = time.perf_counter()
        result = pb.ClosureResult(id=closure.id, attempt=closure.attempt)
        token = self.token(closure.id, closure.attempt)
        run = self.committer.new_run(token, closure.parts_decided, held)
        try:
            self.committer.check_wanted(run)
            # In a copy: the next closure must not see what this one sets in its context.
            result.value = self._scope.copy().run(self._value_of, order, run)
        except BaseException as error:  # sys.exit() in a closure ends the closure, not its thread
            run.explain_taken_elements(error)
            result.error_json = remote_errors.encode(error, self._where)
            if run.only_met_end(error):
                result.ended_resource_ids.extend(sorted(run.ended_resources))
        run.ran_s = time.perf_counter()
        result.seconds = run.ran_s - started_s
        try:
            return self.committer.end(run, result)
        except CancelledError:
            logger.debug("nobody hears of the end of closure %d", result.id)
        except Exception as error:
            self._end_failed(run, result, error)
        return run.held

    def _entered(self) -> contextvars.Context:
        """Returns the context of closures, made once, because all enter the same two scopes."""
        place = trainer_scope(self.trainer_index, self._context.input_pipeline_id)
        with place, entered_scope(self._strategy):
            return contextvars.copy_context()

    def _value_of(self, order: ClosureOrder, run: ClosureRun) -> bytes:
        """Runs a closure in a context of its own, and returns its encoded result."""
        # Outside the step: importing the function's modules may create variables.
        function = order.function.get()
        begin_step(run.token, run)
        args, kwargs = self._arguments(order.closure)
        return _bounded(results.encode(function(*args, **kwargs)))

    def flush(self, held: PendingPart | None) -> None:
        """Commits what was held back by a thread that has no closure to run now."""
        try:
            self.committer.flush(held)
        except CancelledError:
            logger.debug("nobody hears of the end of what was held")

    def cancel(self, run: pb.RunId) -> pb.CancelAnswer:
        """Cancels a run; the answer grants it if nothing of the run is or will be committed."""
        is_granted = self.committer.cancel((run.id, run.attempt))
        return pb.CancelAnswer(id=run.id, attempt=run.attempt, is_granted=is_granted)

    def note_late(self, late: pb.RunId) -> None:
        """Notes that a run's round was decided without it; :meth:`give_back` follows its end."""
        if isinstance(self.committer, RoundCommitter):
            self.committer.note_late(self.token(late.id, late.attempt))

    def give_back(self, late: pb.RunId) -> None:
        """Undoes a late run that has ended."""
        if isinstance(self.committer, RoundCommitter):
            self.committer.give_back(self.token(late.id, late.attempt))

    def _end_failed(self, run: ClosureRun, result: pb.ClosureResult, error: Exception) -> None:
        """Ends a closure whose commit failed as one that failed."""
        try:
            self.committer.end(run, self._failed(result, error))
        except CancelledError:
            logger.debug("nobody hears of the end of closure %d", result.id)

    def _failed(self, result: pb.ClosureResult, error: Exception) -> pb.ClosureResult:
        failed = pb.ClosureResult(id=result.id, attempt=result.attempt, seconds=result.seconds)
        failed.error_json = remote_errors.encode(error, self._where)
        return failed

    def _note_taken(self, source: int, receipt: Any) -> None:
        run = current_staging()
        if isinstance(run, ClosureRun):
            self.committer.take(run, source, receipt)

    def was_replaced_by(self, session: str) -> bool:
        """True if parameter servers say that they are in ``session``, and none is in this one."""
        found = self._parameters.sessions(timeout_s=_ASK_TIMEOUT_S)
        return session in found and self.id not in found

    def close(self) -> None:
        self.committer.close()
        for resource in self._resources.values():
            resource.close()
        self._parameters.close()

    def _loads(self, pickled: bytes) -> Any:
        return pickling.loads(pickled, self._resolve)

    def _arguments(self, closure: pb.Closure) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns (args, kwargs) of a closure; an empty message stands for no arguments."""
        if not closure.inputs:
            pickled = closure.pickled_arguments
            return self._loads(pickled) if pickled else ((), {})
        inputs = [results.decode(value) for value in closure.inputs]

        def resolve(key: tuple[Any, ...]) -> Any:
            return inputs[key[1]] if key[0] == "input" else self._resolve(key)

        found: tuple[tuple[Any, ...], dict[str, Any]] = pickling.loads(
            closure.pickled_arguments, resolve
        )
        return found

    def _make_iterator(self, pickled: bytes) -> Iterator[Any]:
        source, epoch, positions = self._loads(pickled)
        iterator: Any = open_dataset(source, epoch, self._context, self._name)
        services = getattr(iterator, "services", None)
        position = positions.get(str(self.trainer_index))
        # A position in a data service is shared: the coordinator loads it into the service.
        if position is not None and not dataservice.is_service_state(position):
            iterator.load_state_dict(position)
        if services:
            # Told before the first element is used: the coordinator settles it after a loss.
            self.replies.put(pb.RunReply(services=services))
        return iterator

    def _resolve(self, key: tuple[str, ...]) -> Any:
        match key:
            case ("parameters",):
                return self._parameters
            case ("strategy",):
                return self._strategy
            case ("resource", resource_id) if resource_id in self._resources:
                return self._resources[resource_id]
            case ("resource", _):
                raise InvalidArgumentError(
                    "this per-worker iterator was closed: make another with iter()"
                )
        raise InvalidArgumentError(f"unknown reference {key!r} in a closure")


def _bounded(value: bytes) -> bytes:
    if len(value) > CLOSURE_MAX_BYTES:
        raise InvalidArgumentError(
            f"a closure returned {len(value):,} bytes; at most {CLOSURE_MAX_BYTES:,} travel to the "
            "coordinator: return less, or write it to a file or a variable"
        )
    return value
