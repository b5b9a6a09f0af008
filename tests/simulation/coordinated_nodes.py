"""The processes of coordinated reads: workers that give rounds, and consumers that step together.

Real: the consumer's `RoundReader` with its threads, trackers and streams; the worker's service,
membership, rounds and their buffer; the dispatcher. Modelled: the pipeline, which makes numbered
elements, and the wires. Like TCP, a wire is in order and loses nothing unless it breaks.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from dataservice.client.read_spec import ReadSpec
from dataservice.client.round_reader import RoundReader
from dataservice.errors import (
    CancelledError,
    DataServiceError,
    DeadlineExceededError,
    UnavailableError,
)
from dataservice.job_options import JobOptions
from dataservice.runtime.exchanges.message import Message
from dataservice.vocabulary import ShardingPolicy
from tests.simulation.fibers import Event, Fiber, Process, SimpleQueue, running, wait
from tests.simulation.stage import HASTE
from tests.simulation.worker_node import WorkerNode
from tests.simulation.world import STAGE, Call, World

SCHEMA = pa.schema({"element": pa.int64(), "maker": pa.string()})
ATTEMPT_TIMEOUT_S = 10.0 / HASTE
TIMEOUT_S = 60.0
_ORDER_S = 1e-9
_AGAIN_S = 0.05


class Thread:
    """Stands for `dataservice.runtime.threads.StoppableThread`."""

    def __init__(
        self,
        target: Callable[[Any], None],
        *,
        owner: str,
        name: str,
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> None:
        self.stop_event = Event()
        self._target, self._on_failure = target, on_failure
        self._fiber = Fiber(self._run, name=f"{owner}:{name}")

    def start(self) -> Thread:
        self._fiber.start()
        return self

    def is_alive(self) -> bool:
        return self._fiber.is_alive()

    def request_stop(self) -> None:
        self.stop_event.set()

    def stop(self, timeout_s: float) -> bool:
        self.stop_event.set()
        if Fiber.current is not self._fiber:
            self._fiber.join(timeout_s)
        return not self._fiber.is_alive()

    def _run(self) -> None:
        try:
            self._target(self.stop_event)
        except Exception as error:
            if self._on_failure is None:
                raise
            self._on_failure(error)


class Connection:
    """Stands for the client's `DispatcherConnection`, as far as consumers use it."""

    token, tls = "token", None

    def __init__(self, *_args: object, **_security: object) -> None:
        pass

    def open_iteration(
        self,
        request: Any,
        *,
        timeout_s: float,
        should_stop: Any,
        made_s: float | None = None,  # noqa: ARG002
    ) -> Any:
        return self.ask("OpenIteration", request, timeout_s, ATTEMPT_TIMEOUT_S, should_stop)

    def sync_rounds(self, request: Any, *, timeout_s: float, should_stop: Any) -> Any:
        return self.ask("SyncRounds", request, timeout_s, ATTEMPT_TIMEOUT_S, should_stop)

    def release_reader(self, request: Any, *, timeout_s: float) -> None:
        STAGE.world.post(running().node, "ReleaseReader", request, timeout_s)

    def close(self) -> None:
        pass

    def ask(
        self,
        method: str,
        request: Any,
        timeout_s: float,
        attempt_timeout_s: float,
        should_stop: Any,
    ) -> Any:
        """Makes a call, waits for its answer and returns it; raises an answered error."""
        fiber, answers = running(), []

        def answered(value: Any) -> None:
            answers.append(value)
            fiber.wake()

        world, node = STAGE.world, fiber.node
        Call(
            world, node, method, request, answered, timeout_s, attempt_timeout_s, should_stop
        ).attempt()
        while not answers:
            wait(None)
        if isinstance(answers[0], DataServiceError):
            raise answers[0]
        return answers[0]


class Wire:
    """A connection of a consumer to a worker, with the state of both ends."""

    protocol, shares_memory = "simulated", False

    def __init__(self, reader: Process, worker: GivingNode, command: dict[str, Any]) -> None:
        self.command = command
        self._reader, self._worker, self._world = reader, worker, reader.world
        self._up, self._down = SimpleQueue(), SimpleQueue()
        self._arrivals_s = {True: 0.0, False: 0.0}
        self.is_over = False

    # The consumer's end

    def connect(self, timeout_s: float) -> None:
        world = self._world
        world.wires.append(self)
        delay_s = world.blocked_s(self._reader, self._worker) + world.latency_s()
        world.at(delay_s, self._worker, self._accept, any_life=True)
        if not isinstance(self.recv(timeout_s), Message):
            raise UnavailableError("no answer")

    def send(self, header: bytes, _body: object = None) -> None:
        self._pass(True, self._up.put, Message(header, None))

    def recv(self, timeout_s: float | None = None) -> Message:
        try:
            item = self._down.get(timeout_s)
        except queue.Empty:
            raise DeadlineExceededError("silent") from None
        if isinstance(item, Exception):
            self._down.put(item)
            raise item
        return item

    def cancel(self) -> None:
        self.end(CancelledError("cancelled"))

    def end(self, error: Exception) -> None:
        """Fails both ends; messages in flight are lost."""
        if not self.is_over:
            self.is_over = True
            self._world.wires.remove(self)
            self._down.put(error)
            self._pass(True, self._up.put, CancelledError("the consumer has gone"))

    # The worker's end

    def _accept(self) -> None:
        if self._worker.alive:
            self._worker.spawn(self._worker.serve, WorkerEnd(self))
            self._pass(False, self._down.put, Message(b"", None))
        else:
            self._world.at(0.001, self._reader, self.end, UnavailableError("refused"))

    def worker_died(self, worker: Process) -> None:
        """Has the worker's host reset the connection, if it is that worker's."""
        if worker is self._worker:
            delay_s = self._world.latency_s()
            self._world.at(delay_s, self._reader, self.end, UnavailableError("connection reset"))

    def _pass(self, is_up: bool, action: Callable[..., None], item: object) -> None:
        source, target = (self._reader, self._worker) if is_up else (self._worker, self._reader)
        world = self._world
        delay_s = world.blocked_s(source, target) + world.latency_s()
        arrival_s = max(self._arrivals_s[is_up] + _ORDER_S, world.now_s + delay_s)
        self._arrivals_s[is_up] = arrival_s
        world.at(arrival_s - world.now_s, target, action, item)


class WorkerEnd:
    """Stands for `dataservice.worker.outgoing.Channel`."""

    shares_memory = False

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    def send(self, header: bytes, body: Any = None) -> None:
        if self.wire.is_over:
            raise CancelledError("the consumer has gone")
        self.wire._pass(False, self._arrive, Message(header, body))

    def _arrive(self, message: Message) -> None:
        if not self.wire.is_over:
            self.wire._down.put(message)

    def recv(self) -> Message | None:
        item = self.wire._up.get()
        if isinstance(item, Exception):
            raise item
        return item

    def cancelled(self) -> bool:
        return self.wire.is_over


@contextmanager
def open_exchange(
    address: str, command: dict[str, Any], *, timeout_s: float, **_security: object
) -> Iterator[Wire]:
    """Stands for `dataservice.runtime.exchanges.transport.open_exchange`."""
    wire = Wire(running().node, STAGE.world.workers[address], command)
    try:
        wire.connect(timeout_s)
        yield wire
    finally:
        wire.cancel()


class Elements:
    """Stands for a plan; each pass over it numbers its elements and never ends."""

    compression = None
    is_batched = True

    def run_whole(
        self,
        _epoch: int,
        _is_closed: Callable[[], bool],
        *,
        variant: str,  # noqa: ARG002
    ) -> Iterator[pa.RecordBatch]:
        node = running().node
        STAGE.ids += 1
        maker = f"{node.name}/{STAGE.ids}"
        number = 0
        while True:
            wait(node.compute_s * node.world.dice.random())
            yield pa.record_batch({"element": [number], "maker": [maker]}, schema=SCHEMA)
            number += 1


class GivingNode(WorkerNode, Process):
    """A worker that gives rounds."""

    def crash(self) -> None:
        """Kills the process (SIGKILL); consumers see their streams reset."""
        Process.crash(self)
        for wire in list(self.world.wires):
            wire.worker_died(self)

    def serve(self, end: WorkerEnd) -> None:
        try:
            self.service.stream(end.wire.command, end)
        except DataServiceError as error:
            end.wire._pass(False, end.wire._down.put, error)


class ConsumerNode(Process):
    """A program that takes elements step by step; several may begin as the same consumer."""

    def __init__(
        self, world: World, index: int, number: int, *, use_s: float, window: int, in_step: bool
    ) -> None:
        super().__init__(world, f"consumer{index}.{number}")
        self.index = index
        self.reader: Any = None
        self.is_gone = False
        self._use_s, self._in_step = use_s, in_step
        self._spec = ReadSpec(
            target="dispatcher:1",
            dataset_id=world.dispatcher.dataset_id,
            policy=ShardingPolicy.OFF,
            job_name="job",
            max_elements=window,
            timeout_s=TIMEOUT_S,
            options=JobOptions(num_consumers=world.consumers),  # type: ignore[attr-defined]
            consumer_index=index,
        )

    def boot(self) -> None:
        self.spawn(self._run)

    def close(self, pause_s: float) -> None:
        """Closes the reader; another program begins as this consumer after `pause_s`."""
        self.spawn(self._close, pause_s)

    def _run(self) -> None:
        world: Any = self.world
        try:
            self.reader = RoundReader(self._spec)
            while True:
                taken = self.reader.take()
                step = world.checker.took(self, taken)
                wait(self._use_s * world.dice.uniform(0.2, 2.0))
                while self._in_step and not world.checker.is_over_for_all(step):
                    world.checker.wait_for_step()
        except CancelledError:
            return
        except DataServiceError as error:
            world.checker.failed(self, error)
        self._go(_AGAIN_S)

    def _close(self, pause_s: float) -> None:
        if self.reader is not None:
            self.reader.close()
        self._go(pause_s)

    def _go(self, pause_s: float) -> None:
        world: Any = self.world
        self.is_gone = True
        world.restart_consumer(self.index, pause_s)
